#include "core/parallel/vocabulary.h"

#include <ATen/core/Tensor.h>

#include "core/config_error.h"
#include "core/ops/embedding.h"
#include "core/parallel/mappings.h"
#include "platform/loader/text.h"

namespace concord {

int64_t padded_vocabulary(int64_t vocabulary, int64_t degree, int64_t multiple) {
  if (vocabulary < 1 || degree < 1 || multiple < 1) {
    throw ConfigError(loader::cat("a vocabulary of ", vocabulary, " padded to a multiple of ", multiple, " times ",
                                  degree, " ranks; all three have to be positive"));
  }
  const int64_t unit = multiple * degree;
  return (vocabulary + unit - 1) / unit * unit;
}

at::Tensor vocab_parallel_embedding(const at::Tensor& weight, const at::Tensor& ids, int64_t vocabulary,
                                    ProcessGroup& group, bool sequence_parallel, const GradSink* sink) {
  const EmbeddingOptions options{.first = group.rank() * weight.size(0), .vocabulary = vocabulary};
  const at::Tensor partial = concord::embedding(weight, ids, options, sink);
  return sequence_parallel ? reduce_scatter_to_region(partial, group, 0) : reduce_from_region(partial, group);
}

}  // namespace concord
