// concord::adamw_narrow_ on CUDA: moments in bf16 and in codes, and weights with a remainder, without a copy in fp32.
// Nothing waits for the device.
#include <algorithm>
#include <optional>

#include "backends/cuda/torch/ops/tensors.h"

namespace concord::cuda::torch_side {
namespace {

using at::Tensor;
using at::TensorList;
using MaybeTensor = std::optional<Tensor>;

constexpr int64_t kCodesPerScale = 256;  // codes that share a scale

bool is_dense_of(const Tensor& tensor, std::initializer_list<at::ScalarType> types) {
  return tensor.is_contiguous() && std::ranges::find(types, tensor.scalar_type()) != types.end();
}

bool are_dense_of(TensorList tensors, std::initializer_list<at::ScalarType> types) {
  return std::ranges::all_of(tensors, [&](const Tensor& tensor) { return is_dense_of(tensor, types); });
}

// Whether all moments have the same type, which is one of the kernel's, and the scales are those of whole blocks.
bool fits_narrow(TensorList moments, TensorList scales, const Tensor& table) {
  const at::ScalarType type = moments[0].scalar_type();
  if (!are_dense_of(moments, {type}) || !is_dense_of(moments[0], {at::kFloat, at::kBFloat16, at::kByte})) return false;
  if (type != at::kByte) return true;
  if (scales.size() != moments.size() || !are_dense_of(scales, {at::kFloat})) return false;
  for (size_t i = 0; i < moments.size(); ++i) {
    if (moments[i].numel() != scales[i].numel() * kCodesPerScale) return false;
  }
  return is_dense_of(table, {at::kFloat}) && table.numel() == 2 * kCodesPerScale &&
         table.device() == moments[0].device();
}

MomentType moment_type(const Tensor& moment) {
  switch (moment.scalar_type()) {
    case at::kByte: return MomentType::codes;
    case at::kBFloat16: return MomentType::bf16;
    default: return MomentType::f32;
  }
}

NarrowMoment moment_of(const Tensor& moment, TensorList scales, size_t i) {
  const bool has_codes = moment.scalar_type() == at::kByte;
  return {moment.mutable_data_ptr(), has_codes ? scales[i].mutable_data_ptr<float>() : nullptr};
}

void step_narrow(TensorList weights, TensorList m, TensorList v, TensorList m_scales, TensorList v_scales,
                 TensorList values, TensorList grads, const Tensor& m_table, const Tensor& v_table,
                 const MaybeTensor& factor, at::ArrayRef<double> numbers) {
  if (weights.empty()) return;
  const bool splits = weights[0].scalar_type() == at::kShort;
  const bool fit = are_dense_of(weights, {splits ? at::kShort : at::kFloat}) &&
                   (!splits || (values.size() == weights.size() && are_dense_of(values, {at::kBFloat16}))) &&
                   are_dense_of(values, {at::kBFloat16, at::kHalf}) &&
                   are_dense_of(grads, {at::kFloat, at::kBFloat16, at::kHalf}) && fits_narrow(m, m_scales, m_table) &&
                   fits_narrow(v, v_scales, v_table) && (!factor || factor->scalar_type() == at::kFloat);
  if (!fit) {
    reference("concord::adamw_narrow_", {weights.vec(), m.vec(), v.vec(), m_scales.vec(), v_scales.vec(), values.vec(),
                                         grads.vec(), m_table, v_table, factor, numbers.vec()});
    return;
  }
  const OnDevice device(weights[0].device());
  const auto n = [&](size_t i) { return static_cast<float>(numbers[i]); };
  std::vector<NarrowAdamWArrays> arrays;
  const bool follows = !values.empty();
  for (size_t i = 0; i < weights.size(); ++i) {
    arrays.push_back({grads[i].const_data_ptr(), type_of(grads[i]), splits, weights[i].mutable_data_ptr(),
                      moment_of(m[i], m_scales, i), moment_of(v[i], v_scales, i),
                      follows ? values[i].mutable_data_ptr() : nullptr, follows ? type_of(values[i]) : Type::bf16,
                      weights[i].numel()});
  }
  adamw_narrow(where(weights[0]).stream,
               {n(0), n(1), n(2), n(3), n(4), n(5), n(6), n(7), factor ? factor->const_data_ptr<float>() : nullptr},
               {moment_type(m[0]), moment_type(v[0]), m_table.const_data_ptr<float>(), v_table.const_data_ptr<float>()},
               arrays);
}

TORCH_LIBRARY_IMPL(concord, CUDA, lib) { lib.impl("adamw_narrow_", step_narrow); }

}  // namespace
}  // namespace concord::cuda::torch_side
