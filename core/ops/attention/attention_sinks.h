// Attention sinks (GPT-OSS): one more key per head, seen by every query, whose score is a parameter and whose value is
// 0. It takes a part of the softmax and adds nothing, so it can be applied to what any attention has computed: with
// l = logaddexp(lse, sink) instead of lse, out times exp(lse - l). The derivative of q, k and v is then that of an
// attention whose keys are a part of the whole.
#pragma once

#include "core/ops/attention/attention_parts.h"

namespace concord::ops {

// |parts| of all keys without the sinks -> with |sinks| [heads].
AttentionForward with_sinks(const AttentionForward& parts, const at::Tensor& sinks);
// The gradient of |sinks|; |grad| is that of whole.out, |whole| what with_sinks gave.
at::Tensor sinks_grad(const at::Tensor& grad, const AttentionForward& whole, const at::Tensor& sinks);

}  // namespace concord::ops
