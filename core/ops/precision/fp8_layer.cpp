#include "core/ops/precision/fp8_layer.h"

#include <initializer_list>
#include <optional>
#include <vector>

#include "core/ops/derivative.h"
#include "core/ops/linear.h"

namespace concord {
namespace {

using at::Tensor;
using ops::Backward;
using ops::Forward;
using ops::Tensors;

Tensor rows(const Tensor& x) { return x.reshape({-1, x.size(-1)}); }

std::vector<int64_t> sizes_with(const Tensor& x, int64_t last) {
  auto sizes = x.sizes().vec();
  sizes.back() = last;
  return sizes;
}

std::optional<GradSink> copy_of(const GradSink* sink) { return sink == nullptr ? std::nullopt : std::optional(*sink); }

// Returns the transposed matrix of |from|, which autograd saves.
Tensors kept_of(const Fp8Matrix& from) { return {from.columnwise, from.columnwise_scales}; }

Tensors concatenated(std::initializer_list<Tensors> parts) {
  Tensors all;
  for (const Tensors& part : parts) all.insert(all.end(), part.begin(), part.end());
  return all;
}

Tensor product(const Fp8Matrix& x, const Fp8Matrix& weight, const Tensor& bias, c10::ScalarType type) {
  return fp8_matmul(x.rowwise, x.rowwise_scales, weight.rowwise, weight.rowwise_scales, bias, type, /*fast=*/true);
}

// Returns the input gradient; |kept| is the saved weight.
Tensor input_grad_of(const Fp8Matrix& grad, const Tensor* kept, c10::ScalarType type) {
  return fp8_matmul(grad.rowwise, grad.rowwise_scales, kept[0], kept[1], {}, type, /*fast=*/false);
}

// Adds the weight gradient to |sink|, or returns it for autograd; |kept| is the saved input.
Tensor accumulate_wgrad(const std::optional<GradSink>& sink, const Fp8Matrix& grad, const Tensor* kept,
                        c10::ScalarType type) {
  const Tensor g = grad.columnwise, g_scales = grad.columnwise_scales, x = kept[0], x_scales = kept[1];
  if (!sink) return fp8_matmul(g, g_scales, x, x_scales, {}, type, /*fast=*/false);
  const auto into = [=](Tensor& main, bool adds) { fp8_matmul_into(main, g, g_scales, x, x_scales, adds); };
  sink->add([into](Tensor& main) { into(main, true); }, [into](Tensor& main) { into(main, false); });
  return {};
}

}  // namespace

Fp8Matrix Fp8Layer::weight_of(const Tensor& value) {
  const auto version = static_cast<uint32_t>(value._version());
  if (kept_.rowwise.defined() && kept_of_ == value.const_data_ptr() && kept_version_ == version) return kept_;
  kept_ = {};  // freed first, so that there are never two
  kept_ = fp8_quantise(value, weight);
  kept_of_ = value.const_data_ptr();
  kept_version_ = version;
  return kept_;
}

Fp8Scaling Fp8Layer::scaling_of_input() const {
  Fp8Scaling scaling = input;
  if (!counts_inputs_) scaling.seen = at::Tensor();
  return scaling;
}

Tensor fp8_linear(const Tensor& x, const Tensor& weight, const Tensor& bias, const GradSink* sink, Fp8Layer& layer) {
  const auto type = x.scalar_type();
  const auto run = [&] {
    const Fp8Matrix in = fp8_quantise(rows(x), layer.scaling_of_input()), of_weight = layer.weight_of(weight);
    const Tensor y = product(in, of_weight, bias, type).view(sizes_with(x, weight.size(0)));
    return Forward{y, concatenated({weight.requires_grad() ? kept_of(in) : Tensors(2), kept_of(of_weight)})};
  };
  const auto back = [type, &layer, sink = copy_of(sink), in = x.size(-1)](const Backward& b) {
    const Fp8Matrix grad = fp8_quantise(rows(b.grad), layer.grad);
    Tensors result(3);
    if (b.needed[0]) result[0] = input_grad_of(grad, &b.saved[2], type).view(sizes_with(b.grad, in));
    if (b.needed[1]) result[1] = accumulate_wgrad(sink, grad, &b.saved[0], type);
    if (b.needed[2]) result[2] = linear_bias_grad(b.grad);
    return result;
  };
  return ops::differentiable("linear", {x, weight, bias}, run, back);
}

Tensor fp8_input_grad(const Tensor& grad, const Tensor& weight, Fp8Layer& layer) {
  const Tensors kept = kept_of(layer.weight_of(weight));
  return input_grad_of(fp8_quantise(rows(grad), layer.grad), kept.data(), grad.scalar_type())
      .view(sizes_with(grad, weight.size(1)));
}

Tensor fp8_weight_grad(const GradSink* sink, const Tensor& grad, const Tensor& x, Fp8Layer& layer) {
  const Tensors kept = kept_of(fp8_quantise(rows(x), layer.scaling_of_input()));
  return accumulate_wgrad(copy_of(sink), fp8_quantise(rows(grad), layer.grad), kept.data(), grad.scalar_type());
}

Tensor fp8_mlp(const Tensor& x, const Fp8MlpHalf& gate_up, const Fp8MlpHalf& down) {
  const auto type = x.scalar_type();
  const auto run = [&] {
    const Fp8Matrix in = fp8_quantise(rows(x), gate_up.layer->scaling_of_input());
    const Fp8Matrix up_weight = gate_up.layer->weight_of(gate_up.weight);
    const Tensor both = product(in, up_weight, {}, type);
    const Fp8Matrix middle = fp8_swiglu(both, down.layer->scaling_of_input());
    const Fp8Matrix down_weight = down.layer->weight_of(down.weight);
    return Forward{product(middle, down_weight, {}, type).view(sizes_with(x, down.weight.size(0))),
                   concatenated({{both}, kept_of(in), kept_of(up_weight), kept_of(middle), kept_of(down_weight)})};
  };
  const auto back = [type, up = gate_up.layer, low = down.layer, up_sink = copy_of(gate_up.sink),
                     low_sink = copy_of(down.sink), in = x.size(-1)](const Backward& b) {
    const Tensor *x_kept = &b.saved[1], *up_kept = &b.saved[3], *middle_kept = &b.saved[5], *down_kept = &b.saved[7];
    const Fp8Matrix grad = fp8_quantise(rows(b.grad), low->grad);
    const Fp8Matrix both = fp8_swiglu_backward(input_grad_of(grad, down_kept, type), b.saved[0], up->grad);
    Tensors result(3);
    if (b.needed[0]) result[0] = input_grad_of(both, up_kept, type).view(sizes_with(b.grad, in));
    if (b.needed[1]) result[1] = accumulate_wgrad(up_sink, both, x_kept, type);
    if (b.needed[2]) result[2] = accumulate_wgrad(low_sink, grad, middle_kept, type);
    return result;
  };
  return ops::differentiable("fp8_mlp", {x, gate_up.weight, down.weight}, run, back);
}

}  // namespace concord
