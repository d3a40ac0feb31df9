// The operators of experts on Ascend: torch_npu's grouped products (CANN's GroupedMatmul, GroupedMatmulAdd), which take
// the ends of groups from the device, so that the host waits for nothing, and its operators that put tokens into the
// order of their experts and back. What is beyond their limits goes to the reference.
//
// n rows, g groups, h, o sizes of inputs and outputs, t tokens, k choices of a token.
#include <ATen/TensorOperators.h>

#include <tuple>

#include "backends/ascend/torch/ops/dispatcher.h"

namespace concord::ascend::torch_side {
namespace {

using at::Tensor;
using MaybeTensor = std::optional<Tensor>;

// ------------------------------------------------------------------------------------------------------------ groups

// CANN's documentation of GroupedMatmul: groups of a list, and sizes of an axis.
constexpr int64_t kMaxGroups = 1024, kMaxAxis = 65535;

bool is_known(const Tensor& x) {
  const auto type = x.scalar_type();
  return type == at::kFloat || type == at::kHalf || type == at::kBFloat16;
}

bool fits(const Tensor& a, const Tensor& b, const Tensor& ends) {
  return is_known(a) && a.scalar_type() == b.scalar_type() && a.numel() > 0 && b.numel() > 0 &&
         ends.numel() <= kMaxGroups && a.size(-1) <= kMaxAxis && b.size(-1) <= kMaxAxis;
}

// Groups along the rows of |a| (0) or along the axis that is added up (2).
Tensor grouped(const c10::OperatorHandle& op, const Tensor& a, const Tensor& b, const Tensor& ends,
               int64_t group_type) {
  constexpr int64_t kOneTensor = 3, kEnds = 0;
  return call(op, {{"x", std::vector<Tensor>{a}},
                   {"weight", std::vector<Tensor>{b}},
                   {"group_list", ends},
                   {"split_item", kOneTensor},
                   {"group_type", group_type},
                   {"group_list_type", kEnds}})
      .at(0)
      .toTensorVector()
      .at(0);
}

const std::optional<c10::OperatorHandle>& grouped_matmul() {
  static const auto op = find("npu_grouped_matmul");
  return op;
}

Tensor grouped_linear(const Tensor& x_nh, const Tensor& weight_goh, const Tensor& ends) {
  if (!grouped_matmul() || !fits(x_nh, weight_goh, ends)) {
    return reference("concord::grouped_linear", {x_nh, weight_goh, ends}).at(0).toTensor();
  }
  return grouped(*grouped_matmul(), x_nh.contiguous(), weight_goh.transpose(1, 2), ends, 0);
}

Tensor grouped_linear_input_grad(const Tensor& grad_no, const Tensor& weight_goh, const Tensor& ends) {
  if (!grouped_matmul() || !fits(grad_no, weight_goh, ends)) {
    return reference("concord::grouped_linear_input_grad", {grad_no, weight_goh, ends}).at(0).toTensor();
  }
  return grouped(*grouped_matmul(), grad_no.contiguous(), weight_goh, ends, 0);
}

Tensor grouped_linear_weight_grad(const Tensor& grad_no, const Tensor& x_nh, const Tensor& ends) {
  if (!grouped_matmul() || !fits(grad_no, x_nh, ends)) {
    return reference("concord::grouped_linear_weight_grad", {grad_no, x_nh, ends}).at(0).toTensor();
  }
  return grouped(*grouped_matmul(), grad_no.contiguous().t(), x_nh.contiguous(), ends, 2);
}

// The vendor's addition is of 16-bit operands to 32 bits; 32-bit ones lose nothing if they are added afterwards.
void grouped_linear_weight_grad_(Tensor& main_goh, const Tensor& grad_no, const Tensor& x_nh, const Tensor& ends) {
  static const auto added = find("npu_grouped_matmul_add_");
  const bool is_wide = main_goh.scalar_type() == at::kFloat;
  if (!added || !is_wide || !main_goh.is_contiguous() || !fits(grad_no, x_nh, ends)) {
    reference("concord::grouped_linear_weight_grad_", {main_goh, grad_no, x_nh, ends});
  } else if (grad_no.scalar_type() == at::kFloat) {
    main_goh.add_(grouped_linear_weight_grad(grad_no, x_nh, ends));
  } else {
    call(*added, {{"input", main_goh.flatten(0, 1)},
                  {"x", grad_no.contiguous()},
                  {"weight", x_nh.contiguous()},
                  {"group_list", ends}});
  }
}

void grouped_linear_weight_grad_set_(Tensor& main_goh, const Tensor& grad_no, const Tensor& x_nh, const Tensor& ends) {
  main_goh.zero_();
  grouped_linear_weight_grad_(main_goh, grad_no, x_nh, ends);
}

// ------------------------------------------------------------------------------------------------------------ tokens

// CANN's documentation of MoeTokenPermute.
constexpr int64_t kMaxChoices = 512, kMaxPlaces = 16777214;

bool fits_tokens(const Tensor& rows, int64_t k) {
  return is_known(rows) && rows.numel() > 0 && k >= 1 && k <= kMaxChoices;
}

// The vendor sorts the experts of tokens itself, stably. The places of rows, in their stead, sort to the same order.
Tensor moe_permute(const Tensor& x_th, const Tensor& order, const Tensor& inverse) {
  static const auto permute = find("npu_moe_token_permute");
  const int64_t tokens = x_th.size(0), k = tokens == 0 ? 0 : order.size(0) / tokens;
  if (!permute || !fits_tokens(x_th, k) || inverse.numel() > kMaxPlaces) {
    return reference("concord::moe_permute", {x_th, order, inverse}).at(0).toTensor();
  }
  return call(*permute, {{"tokens", x_th.contiguous()}, {"indices", inverse.view({tokens, k})}}).at(0).toTensor();
}

// Without weights it is the derivative of a permutation.
Tensor moe_combine(const Tensor& rows, const MaybeTensor& weights, const Tensor& order, const Tensor& inverse,
                   int64_t k) {
  static const auto unpermute = find("npu_moe_token_unpermute"), sum = find("npu_moe_token_permute_grad");
  if (!unpermute || !sum || !fits_tokens(rows, k) || (weights && !is_known(*weights))) {
    return reference("concord::moe_combine", {rows, weights, order, inverse, k}).at(0).toTensor();
  }
  const Tensor places = inverse.to(at::kInt);
  if (weights) {
    return call(*unpermute,
                {{"permuted_tokens", rows.contiguous()}, {"sorted_indices", places}, {"probs", weights->contiguous()}})
        .at(0)
        .toTensor();
  }
  const int64_t tokens = inverse.size(0) / k;
  return call(*sum, {{"tokens", rows.narrow(0, 0, tokens)},  // only its shape is looked at
                     {"grad_permuted_tokens", rows.contiguous()},
                     {"indices", inverse.view({tokens, k})},
                     {"sorted_indices", places}})
      .at(0)
      .toTensor();
}

std::tuple<Tensor, Tensor> moe_combine_backward(const Tensor& grad_th, const Tensor& rows, const Tensor& weights_tk,
                                                const Tensor& order, const Tensor& inverse) {
  static const auto backward = find("npu_moe_token_unpermute_grad");
  Stack made;
  if (!backward || !fits_tokens(rows, weights_tk.size(1)) || !is_known(weights_tk)) {
    made = reference("concord::moe_combine_backward", {grad_th, rows, weights_tk, order, inverse});
  } else {
    made = call(*backward, {{"permuted_tokens", rows.contiguous()},
                            {"grad_unpermuted_tokens", grad_th.contiguous()},
                            {"sorted_indices", inverse.to(at::kInt)},
                            {"probs", weights_tk.contiguous()}});
  }
  return {made.at(0).toTensor(), made.at(1).toTensor()};
}

TORCH_LIBRARY_IMPL(concord, PrivateUse1, m) {
  m.impl("grouped_linear", grouped_linear);
  m.impl("grouped_linear_input_grad", grouped_linear_input_grad);
  m.impl("grouped_linear_weight_grad", grouped_linear_weight_grad);
  m.impl("grouped_linear_weight_grad_", grouped_linear_weight_grad_);
  m.impl("grouped_linear_weight_grad_set_", grouped_linear_weight_grad_set_);
  m.impl("moe_permute", moe_permute);
  m.impl("moe_combine", moe_combine);
  m.impl("moe_combine_backward", moe_combine_backward);
}

}  // namespace
}  // namespace concord::ascend::torch_side
