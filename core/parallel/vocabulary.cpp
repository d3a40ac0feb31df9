#include "core/parallel/vocabulary.h"

#include <ATen/core/Tensor.h>

#include "core/ops/embedding.h"
#include "core/parallel/mappings.h"

namespace concord {

// Shapes in names: s tokens, b batch (or more dims, or none), v this rank's rows of the vocabulary, h hidden size.

at::Tensor vocab_parallel_embedding(const at::Tensor& weight_vh, const at::Tensor& ids_sb, int64_t vocabulary,
                                    ProcessGroup& group, bool sequence_parallel, const GradSink* sink) {
  const EmbeddingOptions options{.first = group.rank() * weight_vh.size(0), .vocabulary = vocabulary};
  const at::Tensor partial_sbh = concord::embedding(weight_vh, ids_sb, options, sink);
  return sequence_parallel ? reduce_scatter_to_region(partial_sbh, group, 0) : reduce_from_region(partial_sbh, group);
}

}  // namespace concord
