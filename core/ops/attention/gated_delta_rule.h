// concord::gated_delta_rule: linear attention by a state instead of keys (Yang, Kautz, Hatamizadeh, "Gated Delta
// Networks", 2024), as Qwen 3 Next has it. Each head has a matrix S, [n, m], at first 0. With q and k of length 1, q
// divided by sqrt(n) besides, token t does
//
//   S <- exp(g_t) S                              forgets (g_t <= 0),
//   S <- S + k_t (beta_t (v_t - S^T k_t))^T      corrects what the state says of its key,
//   out_t = S^T q_t                              reads.
//
// Computed in chunks of 64 tokens, in each of which the corrections are one triangular system, in fp32 (fp64 for
// Double): memory and time grow with the number of tokens. Backward computes the states again. The host and all devices
// have the reference, composed of libtorch's operators; the same bits in every run.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>

namespace concord {

struct DeltaRule {
  at::Tensor out;    // [B, S, heads, m], of the type of |v|
  at::Tensor state;  // [B, heads, n, m], or of each packed sequence; fp32 (fp64 for Double); has no derivative
};

// |q|, |k| [B, S, key heads, n], |v| [B, S, heads, m], of one type and device: heads / key heads neighbours share a
// key. |g|, |beta| [B, S, heads] in fp32 (fp64 for Double). Both 0: the token changes nothing. |state|: where it begins
// if it is not 0, then without a derivative. Packed sequences (B = 1) begin at |cu_seqlens|, each with 0; empty: not
// packed. Throws ConfigError, with the sizes, if they do not fit.
DeltaRule gated_delta_rule(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& g,
                           const at::Tensor& beta, const at::Tensor& state = {}, at::IntArrayRef cu_seqlens = {});

}  // namespace concord
