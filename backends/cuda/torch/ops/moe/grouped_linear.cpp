// concord::grouped_linear and its derivative on CUDA: libtorch's grouped GEMM if it has one (bf16), and for the
// weight gradient, which accumulates in fp32, a kernel for Hopper and one for other devices. None of them waits for the
// device, nor checks |ends|. Other types and sizes take the reference, which waits.
#include <ATen/ops/_grouped_mm.h>

#include <limits>

#include "backends/cuda/torch/ops/choices.h"
#include "backends/cuda/torch/ops/moe/moe_kernels.h"
#include "backends/cuda/torch/ops/tensors.h"

namespace concord::cuda::torch_side {
namespace {

using at::Tensor;

// [grouped]
const Choice kProduct[2] = {{"grouped_linear: a GEMM for each group", kAllTypes},
                            {"grouped_linear: libtorch's grouped GEMM", {Type::bf16}}};
// A kernel that the device cannot or need not use is not offered.
enum WeightsWay { kByGroup, kOneKernel, kOnHopper };
const Choice kWeights[3] = {
    {"grouped_linear_weight_grad_: a GEMM for each group", kAllTypes},
    {"grouped_linear_weight_grad_: one kernel", kShortTypes, [] { return !is_hopper(); }},
    {"grouped_linear_weight_grad_: one kernel for Hopper", kShortTypes, is_hopper},
};

bool is_aligned_at_16(const Tensor& x) { return reinterpret_cast<uintptr_t>(x.const_data_ptr()) % 16 == 0; }

// Lines of a dense matrix, or of a stack of them, begin at multiples of 16 bytes.
bool is_whole(const Tensor& x) { return x.size(-1) % 8 == 0 && is_aligned_at_16(x) && x.is_contiguous(); }

// As it is stored, or turned: a stack that files have as [groups, in, out].
bool is_whole_either_way(const Tensor& stack) { return is_whole(stack) || is_whole(stack.transpose(1, 2)); }

bool is_short(const Tensor& x) { return x.scalar_type() == at::kBFloat16 || x.scalar_type() == at::kHalf; }

bool goes_grouped(const Tensor& rows, const Tensor& weight) {
  const bool grouped = rows.scalar_type() == at::kBFloat16 && rows.size(0) > 0 && is_whole(rows) &&
                       weight.size(1) % 8 == 0 && weight.size(2) % 8 == 0 && is_whole_either_way(weight);
  kProduct[grouped].take(type_of(rows));
  return grouped;
}

Tensor reference_of(const char* name, const Tensor& a, const Tensor& b, const Tensor& ends) {
  return reference(name, {a, b, ends})[0].toTensor();
}

Tensor forward_on_device(const Tensor& x, const Tensor& weight, const Tensor& ends) {
  if (!goes_grouped(x, weight)) return reference_of("concord::grouped_linear", x, weight, ends);
  return at::_grouped_mm(x, weight.transpose(1, 2), ends.to(at::kInt));
}

Tensor input_grad_on_device(const Tensor& grad, const Tensor& weight, const Tensor& ends) {
  if (!goes_grouped(grad, weight)) return reference_of("concord::grouped_linear_input_grad", grad, weight, ends);
  return at::_grouped_mm(grad, weight, ends.to(at::kInt));
}

bool fits_kernel(const Tensor& main, const Tensor& grad, const Tensor& x) {
  return is_short(grad) && grad.scalar_type() == x.scalar_type() && main.scalar_type() == at::kFloat &&
         is_whole(grad) && is_whole(x) && is_whole_either_way(main);
}

// Both kernels take the same sizes, but the one for Hopper counts rows in 32-bit integers. Considers the current
// device.
WeightsWay way_of(const Tensor& main, const Tensor& grad, const Tensor& x) {
  if (!fits_kernel(main, grad, x)) return kByGroup;
  return is_hopper() && grad.size(0) <= std::numeric_limits<int32_t>::max() ? kOnHopper : kOneKernel;
}

// main (+)= grad^T x; a main gradient that is stored turned is x^T grad.
void weight_grad(Tensor& main, const Tensor& grad, const Tensor& x, const Tensor& ends, bool adds) {
  const OnDevice device(grad.device());
  const WeightsWay way = way_of(main, grad, x);
  kWeights[way].take(type_of(grad));
  if (way == kByGroup) {
    if (!adds) main.zero_();
    reference("concord::grouped_linear_weight_grad_", {main, grad, x, ends});
    return;
  }
  const bool turned = !main.is_contiguous();
  const Tensor &left = turned ? x : grad, &right = turned ? grad : x, limits = ends.contiguous();
  const GroupedRows shape{main.size(0), grad.size(0), left.size(1), right.size(1), adds};
  const auto kernel = way == kOnHopper ? grouped_weight_grad_hopper : grouped_weight_grad;
  kernel(where(grad), shape, left.const_data_ptr(), right.const_data_ptr(), limits.const_data_ptr<int64_t>(),
         main.mutable_data_ptr<float>());
}

void add_on_device(Tensor& main, const Tensor& grad, const Tensor& x, const Tensor& ends) {
  weight_grad(main, grad, x, ends, /*adds=*/true);
}
void set_on_device(Tensor& main, const Tensor& grad, const Tensor& x, const Tensor& ends) {
  weight_grad(main, grad, x, ends, /*adds=*/false);
}

TORCH_LIBRARY_IMPL(concord, CUDA, m) {
  m.impl("grouped_linear", forward_on_device);
  m.impl("grouped_linear_input_grad", input_grad_on_device);
  m.impl("grouped_linear_weight_grad_", add_on_device);
  m.impl("grouped_linear_weight_grad_set_", set_on_device);
}

}  // namespace
}  // namespace concord::cuda::torch_side
