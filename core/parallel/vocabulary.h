// The input embedding and output projection of a model, with the vocabulary sharded over a tensor-parallel group: rank
// r holds rows r v to (r + 1) v of the embedding and of the output weight; the last rows are padding. The loss on such
// logits is core/ops/loss/cross_entropy.h.
#pragma once

#include <cstdint>

#include "core/mesh/process_group.h"
#include "core/ops/grad_sink.h"
#include "core/parallel/padded_vocabulary.h"

namespace concord {

// |ids| int64 [tokens, ...], identical on all ranks -> [tokens, ..., n]: whole, or with |sequence_parallel| this rank's
// part of the tokens. |vocabulary| is without padding. Throws ConfigError like embedding() and divide(). |group| must
// live until backward is done.
at::Tensor vocab_parallel_embedding(const at::Tensor& weight, const at::Tensor& ids, int64_t vocabulary,
                                    ProcessGroup& group, bool sequence_parallel = false,
                                    const GradSink* sink = nullptr);

}  // namespace concord
