// concord::attention and its derivative on CUDA: libtorch's flash attention and cuDNN's, neither of which has a matrix
// of queries by keys. What is beyond them (fp32, fp64, odd sizes of heads) goes to the reference.
//
// B batch, S queries, T keys, N query heads, n size of a head.
#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/_flash_attention_backward.h>
#include <ATen/ops/_flash_attention_forward.h>
#include <ATen/ops/_scaled_dot_product_cudnn_attention.h>
#include <ATen/ops/_scaled_dot_product_cudnn_attention_backward.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <stdexcept>
#include <string>

#include "backends/cuda/torch/ops/choices.h"
#include "backends/cuda/torch/ops/tensors.h"

namespace concord::cuda::torch_side {
namespace {

using at::IntArrayRef;
using at::Tensor;
using Pair = std::tuple<Tensor, Tensor>;
using Triple = std::tuple<Tensor, Tensor, Tensor>;

// Arguments of flash attention for the keys that a query attends to.
struct Sight {
  bool causal;
  std::optional<int64_t> left, right;  // keys before and after the query's own; none: all
};

Sight sight_of(bool causal, int64_t window) {
  if (window > 0) return {causal, window - 1, 0};
  return {causal, std::nullopt, std::nullopt};
}

bool fits_flash(const Tensor& q, const Tensor& k) {
  const bool narrow = q.scalar_type() == at::kBFloat16 || q.scalar_type() == at::kHalf;
  return narrow && q.numel() > 0 && k.numel() > 0 && q.size(3) % 8 == 0 && q.size(3) <= 256;
}

bool cudnn_is_wanted() {
  static const bool wanted = [] {
    const char* const said = std::getenv("CONCORD_CUDA_ATTENTION");
    const std::string how = said == nullptr ? "cudnn" : said;
    if (how != "cudnn" && how != "flash") {
      throw std::runtime_error("CONCORD_CUDA_ATTENTION is '" + how + "'; it must be cudnn (the default) or flash");
    }
    return how == "cudnn";
  }();
  return wanted;
}

// cuDNN counts the diagonal from the first key, Concord from the last: the same if the numbers of keys and
// queries are equal. Short sequences are not worth the graph that it compiles for each shape. Its backward pass sums
// with atomic operations; flash attention's does not if libtorch is set to be deterministic.
bool fits_cudnn(const Tensor& q, const Tensor& k, IntArrayRef cu_seqlens, int64_t window) {
  constexpr int64_t kLong = 512;
  return cudnn_is_wanted() && !at::globalContext().deterministicAlgorithms() && fits_flash(q, k) &&
         cu_seqlens.empty() && window == 0 && q.size(1) == k.size(1) && q.size(1) >= kLong && q.size(1) % 64 == 0 &&
         q.size(3) % 16 == 0 && q.size(3) <= 128;
}

// What the kernel chooses among, on the way forth or back.
struct Ways {
  Choice cudnn, flash, packed, reference;
};
const Ways kForth = {{"attention: cuDNN", kShortTypes, cudnn_is_wanted},
                     {"attention: flash", kShortTypes},
                     {"attention: flash, packed", kShortTypes},
                     {"attention: the reference", kAllTypes}};
const Ways kBack = {{"attention_backward: cuDNN", kShortTypes, cudnn_is_wanted},
                    {"attention_backward: flash", kShortTypes},
                    {"attention_backward: flash, packed", kShortTypes},
                    {"attention_backward: the reference", kAllTypes}};

const Choice& choose(const Ways& ways, const Tensor& q, const Tensor& k, IntArrayRef cu_seqlens, int64_t window) {
  const Choice& way = fits_cudnn(q, k, cu_seqlens, window) ? ways.cudnn
                      : !fits_flash(q, k)                  ? ways.reference
                      : cu_seqlens.empty()                 ? ways.flash
                                                           : ways.packed;
  way.take(type_of(q));
  return way;
}

// --------------------------------------------------------------------------------------------------------------- cuDNN
// It takes [B, heads, tokens, n], any strides.

Pair with_cudnn(const Tensor& q, const Tensor& k, const Tensor& v, bool causal, double scale) {
  const auto made = at::_scaled_dot_product_cudnn_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2),
                                                            std::nullopt, /*compute_log_sumexp=*/true,
                                                            /*dropout_p=*/0.0, causal, false, scale);
  return {std::get<0>(made).transpose(1, 2), std::get<1>(made).reshape({q.size(0), q.size(2), q.size(1)})};
}

Triple with_cudnn_backward(const Tensor& grad, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& out,
                           const Tensor& lse, bool causal, double scale) {
  const Tensor none;
  const Tensor seed = at::empty({}, q.options().dtype(at::kLong));  // seed of the unused dropout
  const auto made = at::_scaled_dot_product_cudnn_attention_backward(
      grad.transpose(1, 2), q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), out.transpose(1, 2),
      lse.unsqueeze(-1), seed, seed, none, none, none, q.size(1), k.size(1), /*dropout_p=*/0.0, causal, scale);
  return {std::get<0>(made).transpose(1, 2), std::get<1>(made).transpose(1, 2), std::get<2>(made).transpose(1, 2)};
}

// --------------------------------------------------------------------------------------------------------------- flash
// It takes [B, tokens, heads, n], or [tokens, heads, n] if sequences are packed, dense in the last dim.

Tensor laid(const Tensor& x, IntArrayRef cu_seqlens) {
  const Tensor dense = x.stride(-1) == 1 ? x : x.contiguous();
  return cu_seqlens.empty() ? dense : dense.squeeze(0);
}
Tensor as_batch(const Tensor& x, IntArrayRef cu_seqlens) { return cu_seqlens.empty() ? x : x.unsqueeze(0); }

struct Packing {
  Tensor cuts;  // [sequences + 1] of int32 on the device; undefined: nothing is packed
  int64_t longest_q, longest_k;
};

Packing packing_of(const Tensor& q, const Tensor& k, IntArrayRef cu_seqlens) {
  if (cu_seqlens.empty()) return {{}, q.size(1), k.size(1)};
  int64_t longest = 0;
  for (size_t i = 1; i < cu_seqlens.size(); ++i) longest = std::max(longest, cu_seqlens[i] - cu_seqlens[i - 1]);
  const Tensor cuts = at::tensor(cu_seqlens, at::TensorOptions(at::kInt)).to(q.device(), /*non_blocking=*/true);
  return {cuts, longest, longest};
}

std::optional<Tensor> maybe(const Tensor& x) { return x.defined() ? std::optional(x) : std::nullopt; }

Pair with_flash(const Tensor& q, const Tensor& k, const Tensor& v, IntArrayRef cu_seqlens, const Sight& sight,
                double scale) {
  const Packing p = packing_of(q, k, cu_seqlens);
  const auto made = at::_flash_attention_forward(laid(q, cu_seqlens), laid(k, cu_seqlens), laid(v, cu_seqlens),
                                                 maybe(p.cuts), maybe(p.cuts), p.longest_q, p.longest_k,
                                                 /*dropout_p=*/0.0, sight.causal, /*return_debug_mask=*/false, scale,
                                                 sight.left, sight.right);
  return {as_batch(std::get<0>(made), cu_seqlens), as_batch(std::get<1>(made), cu_seqlens)};
}

Triple with_flash_backward(const Tensor& grad, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& out,
                           const Tensor& lse, IntArrayRef cu_seqlens, const Sight& sight, double scale) {
  const Packing p = packing_of(q, k, cu_seqlens);
  const Tensor rows = cu_seqlens.empty() ? lse.contiguous() : lse.squeeze(0).contiguous();
  const Tensor state = at::zeros({2}, q.options().dtype(at::kLong));  // state of the unused dropout
  const auto made = at::_flash_attention_backward(laid(grad, cu_seqlens), laid(q, cu_seqlens), laid(k, cu_seqlens),
                                                  laid(v, cu_seqlens), laid(out, cu_seqlens), rows, p.cuts, p.cuts,
                                                  p.longest_q, p.longest_k, /*dropout_p=*/0.0, sight.causal, state, {},
                                                  scale, sight.left, sight.right);
  const auto batch = [&](const Tensor& x) { return as_batch(x, cu_seqlens); };
  return {batch(std::get<0>(made)), batch(std::get<1>(made)), batch(std::get<2>(made))};
}

// ------------------------------------------------------------------------------------------------------------- kernels

Pair attention(const Tensor& q, const Tensor& k, const Tensor& v, IntArrayRef cu_seqlens, bool causal, int64_t window,
               double scale) {
  const OnDevice device(q.device());
  const Choice& way = choose(kForth, q, k, cu_seqlens, window);
  if (&way == &kForth.cudnn) return with_cudnn(q, k, v, causal, scale);
  if (&way != &kForth.reference) return with_flash(q, k, v, cu_seqlens, sight_of(causal, window), scale);
  const auto made = reference("concord::attention", {q, k, v, cu_seqlens, causal, window, scale});
  return {made.at(0).toTensor(), made.at(1).toTensor()};
}

Triple attention_backward(const Tensor& grad, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& out,
                          const Tensor& lse, IntArrayRef cu_seqlens, bool causal, int64_t window, double scale) {
  const OnDevice device(q.device());
  const Choice& way = choose(kBack, q, k, cu_seqlens, window);
  if (&way == &kBack.cudnn) return with_cudnn_backward(grad, q, k, v, out, lse, causal, scale);
  if (&way != &kBack.reference) {
    return with_flash_backward(grad, q, k, v, out, lse, cu_seqlens, sight_of(causal, window), scale);
  }
  const auto made =
      reference("concord::attention_backward", {grad, q, k, v, out, lse, cu_seqlens, causal, window, scale});
  return {made.at(0).toTensor(), made.at(1).toTensor(), made.at(2).toTensor()};
}

TORCH_LIBRARY_IMPL(concord, CUDA, m) {
  m.impl("attention", attention);
  m.impl("attention_backward", attention_backward);
}

}  // namespace
}  // namespace concord::cuda::torch_side
