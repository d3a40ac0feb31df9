#include "core/parallel/vocabulary.h"

#include <ATen/core/Tensor.h>

#include "core/ops/embedding.h"
#include "core/parallel/mappings.h"

namespace concord {

at::Tensor vocab_parallel_embedding(const at::Tensor& weight, const at::Tensor& ids, int64_t vocabulary,
                                    ProcessGroup& group, bool sequence_parallel, const GradSink* sink) {
  const EmbeddingOptions options{.first = group.rank() * weight.size(0), .vocabulary = vocabulary};
  const at::Tensor partial = concord::embedding(weight, ids, options, sink);
  return sequence_parallel ? reduce_scatter_to_region(partial, group, 0) : reduce_from_region(partial, group);
}

}  // namespace concord
