// Attention sinks (GPT-OSS): an additional key per head, seen by every query, whose score is a parameter and whose
// value is 0. It takes a fraction of the softmax and adds nothing, so it can be applied to the result of any attention:
// with l = logaddexp(lse, sink) instead of lse, out is multiplied by exp(lse - l). The derivative of q, k and v is then
// that of an attention whose keys are a part of the whole.
#pragma once

#include "core/ops/attention/attention_parts.h"

namespace concord::ops {

// Applies |sinks| [heads] to |parts|, the attention over all keys without sinks.
AttentionForward with_sinks(const AttentionForward& parts, const at::Tensor& sinks);
// Returns the gradient of |sinks|; |grad| is that of whole.out, |whole| the result of with_sinks().
at::Tensor sinks_grad(const at::Tensor& grad, const AttentionForward& whole, const at::Tensor& sinks);

}  // namespace concord::ops
