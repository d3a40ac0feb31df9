// Attention over parts of the keys, whose results are merged by their log-sum-exp, as in ring attention.
#pragma once

#include "core/ops/attention/attention.h"

namespace concord {

struct AttentionForward {
  at::Tensor out;  // [B, S, heads, n]
  at::Tensor lse;  // [B, heads, S]
};

struct AttentionBackward {
  at::Tensor dq, dk, dv;
};

// Attention over some of the keys. The log-sum-exp of a query's scores is largest + log(sum). Both begin with the
// dimensions [B, heads, S]; further ones are the device's. |sum| is undefined if it is 1 everywhere.
struct AttentionPart {
  at::Tensor out;  // [B, S, heads, n]
  at::Tensor largest, sum;

  // Returns some of the queries, as views.
  AttentionPart queries(int64_t begin, int64_t count) const;
};

// Like attention_forward(), without packed sequences and a window. Throws ConfigError for a window.
AttentionPart attention_part(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                             const AttentionOptions& options);
// Returns the attention over the keys of both. Their outputs are of the type of sums (fp32, fp64 for Double), and so is
// the result.
AttentionPart merged(const AttentionPart& part, const AttentionPart& more);
AttentionForward as_forward(const AttentionPart& part);

}  // namespace concord
