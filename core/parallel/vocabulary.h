// The two ends of a model, where the vocabulary is cut over a tensor-parallel group: rank r has rows r v to (r + 1) v
// of the embedding and of the output's weight, the last of them padding. The loss on such logits is
// core/ops/cross_entropy.h.
#pragma once

#include <cstdint>

#include "core/mesh/process_group.h"
#include "core/ops/grad_sink.h"

namespace concord {

// The smallest multiple of |multiple| * |degree| that holds |vocabulary|: Megatron's, whose multiple is 128. Throws
// ConfigError where one of them is not positive.
int64_t padded_vocabulary(int64_t vocabulary, int64_t degree, int64_t multiple = 128);

// |ids| int64 [tokens, ...], the same on all ranks -> [tokens, ..., n]: whole, or with |sequence_parallel| this rank's
// part of the tokens. |vocabulary| is without padding. Throws ConfigError as embedding and divide do. |group| has to
// live until backward is done.
at::Tensor vocab_parallel_embedding(const at::Tensor& weight, const at::Tensor& ids, int64_t vocabulary,
                                    ProcessGroup& group, bool sequence_parallel = false,
                                    const GradSink* sink = nullptr);

}  // namespace concord
