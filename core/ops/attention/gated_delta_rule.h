// concord::gated_delta_rule: linear attention with a state instead of keys (Yang, Kautz, Hatamizadeh, "Gated Delta
// Networks", 2024), as in Qwen3-Next. Each head has a matrix S, [n, m], initially 0. With q and k of length 1, and q
// also divided by sqrt(n), token t computes
//
//   S <- exp(g_t) S                              decay (g_t <= 0),
//   S <- S + k_t (beta_t (v_t - S^T k_t))^T      correction of the value stored for its key,
//   out_t = S^T q_t                              output.
//
// Computed in chunks of 64 tokens, in each of which the corrections are one triangular system, in fp32 (fp64 for
// Double): memory and time are linear in the number of tokens. Backward recomputes the states. The host and all devices
// use the reference, composed of libtorch's operators; results are bitwise reproducible.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>

namespace concord {

struct DeltaRule {
  at::Tensor out;    // [B, S, heads, m], in the type of |v|
  at::Tensor state;  // [B, heads, n, m], or per packed sequence; fp32 (fp64 for Double); not differentiable
};

// |q|, |k| [B, S, key heads, n], |v| [B, S, heads, m], of one type and device: heads / key heads adjacent heads share a
// key. |g|, |beta| [B, S, heads] in fp32 (fp64 for Double). If both are 0, the token changes nothing. |state| is the
// initial state, if not 0, without a derivative. Packed sequences (B = 1) start at |cu_seqlens|, each with a state of
// 0; empty: not packed. Throws ConfigError, with the sizes, if they do not match.
DeltaRule gated_delta_rule(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& g,
                           const at::Tensor& beta, const at::Tensor& state = {}, at::IntArrayRef cu_seqlens = {});

}  // namespace concord
