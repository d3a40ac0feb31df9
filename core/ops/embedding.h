// concord::embedding: rows of a table that may be sharded: an id whose row is on another rank gives zeros, so that the
// sum over the ranks is the complete result. The gradient is added to an fp32 buffer (GradSink) or passed to autograd.
#pragma once

#include <cstdint>

#include "core/ops/grad_sink.h"

namespace concord {

struct EmbeddingOptions {
  int64_t first = 0;       // the id of the table's row 0
  int64_t vocabulary = 0;  // ids are less than this; 0: first + rows
};

// |weight| [rows, n], |ids| int64 of any shape -> [..., n]. Throws ConfigError for sizes that do not match and, if
// libtorch computes on the host, for an id outside the vocabulary.
at::Tensor embedding(const at::Tensor& weight, const at::Tensor& ids, const EmbeddingOptions& options = {},
                     const GradSink* sink = nullptr);

}  // namespace concord
