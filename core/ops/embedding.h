// concord::embedding: rows of a table, of which this rank may have only some: an id whose row is elsewhere gives zeros,
// so that the sum over the ranks is the complete result. The gradient is added to a buffer in fp32 (GradSink), or goes
// to autograd.
#pragma once

#include <cstdint>

#include "core/ops/grad_sink.h"

namespace concord {

struct EmbeddingOptions {
  int64_t first = 0;       // the id of the table's row 0
  int64_t vocabulary = 0;  // ids are below it; 0: no more than this table has
};

// |weight| [rows, n], |ids| int64 of any shape -> [..., n]. Throws ConfigError for sizes that do not fit and, where
// libtorch computes on the host, for an id outside of the vocabulary.
at::Tensor embedding(const at::Tensor& weight, const at::Tensor& ids, const EmbeddingOptions& options = {},
                     const GradSink* sink = nullptr);

}  // namespace concord
