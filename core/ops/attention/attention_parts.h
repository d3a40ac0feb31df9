// Results of attention_forward and attention_backward (core/ops/attention/attention.h).
#pragma once

#include <ATen/core/Tensor.h>

namespace concord {

struct AttentionForward {
  at::Tensor out;  // [B, S, heads, n]
  at::Tensor lse;  // [B, heads, S]
};

struct AttentionBackward {
  at::Tensor dq, dk, dv;
};

}  // namespace concord
