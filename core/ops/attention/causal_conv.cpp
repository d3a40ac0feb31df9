#include "core/ops/attention/causal_conv.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/zeros.h>
#include <fmt/core.h>

#include "core/ops/attention/packed_sequences.h"
#include "core/ops/check.h"
#include "core/ops/derivative.h"
#include "core/ops/dispatch.h"
#include "core/ops/visit_type.h"

namespace concord {
namespace ops::causal_conv_op {
namespace {

using at::IntArrayRef;
using at::Tensor;
using Pair = std::tuple<Tensor, Tensor>;

constexpr const char* kName = "causal_conv";

Tensor wide(const Tensor& x) { return x.to(sum_type(x.scalar_type())); }

// Pads with K - 1 zeros before the first token.
Tensor padded(const Tensor& x, int64_t taps) { return at::constant_pad_nd(wide(x), {0, 0, taps - 1, 0}); }

// Returns the convolution before the activation, one sequence per row.
Tensor convolved(const Tensor& x, const Tensor& weight) {
  const Tensor from = padded(x, weight.size(1)), w = wide(weight);
  Tensor sum = from.narrow(1, 0, x.size(1)) * w.select(1, 0);
  for (int64_t j = 1; j < w.size(1); ++j) sum = sum + from.narrow(1, j, x.size(1)) * w.select(1, j);
  return sum;
}

Tensor reference(const Tensor& x, const Tensor& weight, IntArrayRef cu_seqlens) {
  std::vector<Tensor> out;
  for (const auto& [begin, tokens] : sequences(x.size(1), cu_seqlens)) {
    const Tensor sum = convolved(x.narrow(1, begin, tokens), weight);
    out.push_back((sum * sum.sigmoid()).to(x.scalar_type()));
  }
  return at::cat(out, 1);
}

// d silu(y) = s (1 + y (1 - s)) with s = sigmoid(y). The input gradient of tap j is that of the output K - 1 - j tokens
// later.
Pair reference_backward(const Tensor& grad, const Tensor& x, const Tensor& weight, IntArrayRef cu_seqlens) {
  const Tensor w = wide(weight);
  const int64_t taps = w.size(1);
  std::vector<Tensor> dx;
  Tensor dw = at::zeros(w.sizes(), w.options());
  for (const auto& [begin, tokens] : sequences(x.size(1), cu_seqlens)) {
    const Tensor own = x.narrow(1, begin, tokens), from = padded(own, taps);
    const Tensor sum = convolved(own, weight), s = sum.sigmoid();
    const Tensor dsum = wide(grad.narrow(1, begin, tokens)) * s * (1 + sum * (1 - s));
    const Tensor dfrom = at::zeros(from.sizes(), from.options());
    for (int64_t j = 0; j < taps; ++j) {
      dfrom.narrow(1, j, tokens).addcmul_(dsum, w.select(1, j));
      dw.select(1, j).add_((dsum * from.narrow(1, j, tokens)).sum(at::IntArrayRef{0, 1}));
    }
    dx.push_back(dfrom.narrow(1, taps - 1, tokens).to(x.scalar_type()));
  }
  return {at::cat(dx, 1), dw.to(weight.scalar_type())};
}

Tensor forward_op(const Tensor& x, const Tensor& weight, IntArrayRef cu_seqlens) {
  static const auto op = find<Tensor(const Tensor&, const Tensor&, IntArrayRef)>("concord::causal_conv");
  return op.call(x, weight, cu_seqlens);
}

Pair backward_op(const Tensor& grad, const Tensor& x, const Tensor& weight, IntArrayRef cu_seqlens) {
  static const auto op =
      find<Pair(const Tensor&, const Tensor&, const Tensor&, IntArrayRef)>("concord::causal_conv_backward");
  return op.call(grad, x, weight, cu_seqlens);
}

Tensor autograd(const Tensor& x, const Tensor& weight, IntArrayRef cu_seqlens) {
  const auto run = [&] { return Forward{forward_op(x, weight, cu_seqlens), {x, weight}}; };
  const auto back = [cuts = cu_seqlens.vec()](const Backward& b) {
    const auto [dx, dw] = backward_op(b.grad, b.saved[0], b.saved[1], cuts);
    return Tensors{dx, dw};
  };
  return differentiable(kName, {x, weight}, run, back);
}

TORCH_LIBRARY_FRAGMENT(concord, m) {
  m.def("causal_conv(Tensor x, Tensor weight, int[] cu_seqlens) -> Tensor");
  m.def("causal_conv_backward(Tensor grad, Tensor x, Tensor weight, int[] cu_seqlens) -> (Tensor dx, Tensor dweight)");
}
TORCH_LIBRARY_IMPL(concord, CompositeExplicitAutograd, m) {
  m.impl("causal_conv", reference);
  m.impl("causal_conv_backward", reference_backward);
}
TORCH_LIBRARY_IMPL(concord, Autograd, m) { m.impl("causal_conv", autograd); }

}  // namespace
}  // namespace ops::causal_conv_op

at::Tensor causal_conv(const at::Tensor& x, const at::Tensor& weight, at::IntArrayRef cu_seqlens) {
  using namespace ops::causal_conv_op;
  ops::check_floating(kName, "x", x);
  ops::check_like(kName, "weight", weight, x);
  const bool fits = x.dim() == 3 && weight.dim() == 2 && weight.size(0) == x.size(2) && weight.size(1) > 0;
  if (!fits || x.numel() == 0) {
    ops::refuse(kName, fmt::format("x is {} and weight {}; must be [B, S, channels] and [channels, K], not empty",
                                   ops::text_of(x), ops::text_of(weight)));
  }
  ops::check_packed(kName, x, cu_seqlens);
  return forward_op(x, weight, cu_seqlens);
}

}  // namespace concord
