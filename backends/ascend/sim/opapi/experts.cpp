// Experts: products of groups of rows with one matrix per group, and tokens permuted by expert and back.
// Quantisation, activations and the padded mode are errors.
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/stack.h>

#include <algorithm>

#include "backends/ascend/sim/opapi/operator.h"

namespace concord::ascend::sim {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;
using OptionalTensors = std::optional<Tensors>;
using OptionalInts = std::optional<Ints>;
using OptionalOut = std::optional<Out>;
using OptionalOuts = std::optional<Outs>;

static void refuse_unless(bool simulated, const char* what) {
  if (!simulated) throw OperatorError(kAclnnParamInvalid, std::string("not simulated: ") + what);
}

// torch_npu passes a list that is not given as none, or with its second task queue as one of nothing.
static bool is_absent(const OptionalTensors& list) {
  return !list || std::none_of(list->begin(), list->end(), [](const Tensor& each) { return each.defined(); });
}

// The sizes of groups: |list| has their ends (0) or sizes (1).
static Ints group_sizes(const Tensor& list, int64_t type) {
  refuse_unless(type == 0 || type == 1, "a group list that has neither ends nor sizes");
  Ints sizes;
  int64_t begin = 0;
  for (int64_t i = 0; i < list.numel(); ++i) {
    const int64_t value = list[i].item<int64_t>();
    sizes.push_back(type == 0 ? value - begin : value);
    begin = value;
  }
  return sizes;
}

// 16-bit operands are accumulated in fp32, and the sum is rounded once.
static Tensor product(const Tensor& a, const Tensor& b) { return at::mm(a.to(at::kFloat), b.to(at::kFloat)); }

// [m, k] with [g, k, n] in groups of rows -> [m, n].
static Tensor products_of_rows(const Tensor& x, const Tensor& weight, const Ints& sizes) {
  Tensors parts;
  int64_t begin = 0;
  for (size_t i = 0; i < sizes.size(); begin += sizes[i++]) {
    parts.push_back(product(x.narrow(0, begin, sizes[i]), weight[static_cast<int64_t>(i)]));
  }
  return at::cat(parts);
}

// [m, k] with [k, n] in groups of k -> [g, m, n]
static Tensor products_of_columns(const Tensor& x, const Tensor& weight, const Ints& sizes) {
  Tensors parts;
  int64_t begin = 0;
  for (const int64_t size : sizes) {
    parts.push_back(product(x.narrow(1, begin, size), weight.narrow(0, begin, size)));
    begin += size;
  }
  return at::stack(parts);
}

static void add_products(const Tensor& x, const Tensor& weight, const Ints& sizes, const InOut& y, bool is_of_weights) {
  refuse_unless(is_of_weights, "an added product that is not that of weights");
  y = *y + products_of_columns(x.t(), weight, sizes).view(y->sizes());
}

// [tokens, k]: where the rows of a token are.
static Tensor places_of(const Tensor& sorted_indices, int64_t tokens) {
  return sorted_indices.to(at::kLong).view({tokens, -1});
}

static Tensor sum_of_rows(const Tensor& rows, const Tensor& places, const OptionalTensor& probs) {
  Tensor sum;
  for (int64_t j = 0; j < places.size(1); ++j) {
    Tensor part = rows.index_select(0, places.select(1, j)).to(at::kFloat);
    if (probs) part = part * probs->narrow(1, j, 1).to(at::kFloat);
    sum = sum.defined() ? sum + part : part;
  }
  return sum;
}

// Formatted by hand: clang-format breaks every operator over several lines.
// clang-format off
OPERATOR(GroupedMatmulV5, (Tensors x, Tensors weight, OptionalTensors bias, OptionalTensors scale,
                           OptionalTensors offset, OptionalTensors antiquant_scale, OptionalTensors antiquant_offset,
                           OptionalTensors per_token_scale, OptionalTensor group_list, OptionalTensors activation_input,
                           OptionalTensors activation_quant_scale, OptionalTensors activation_quant_offset,
                           int64_t split_item, int64_t group_type, int64_t group_list_type, int64_t act_type,
                           OptionalInts, Outs out, OptionalOuts activation_feature, OptionalOuts dynamic_scale) {
  bool plain = act_type == 0;
  for (const auto* each : {&bias, &scale, &offset, &antiquant_scale, &antiquant_offset, &per_token_scale,
                           &activation_input, &activation_quant_scale, &activation_quant_offset}) {
    plain = plain && is_absent(*each);
  }
  plain = plain && (!activation_feature || activation_feature->empty()) && (!dynamic_scale || dynamic_scale->empty());
  refuse_unless(plain, "grouped products with biases, scales or activations");
  refuse_unless(x.size() == 1 && weight.size() == 1 && out.size() == 1 && split_item == 3 && group_list.has_value(),
                "grouped products of several tensors");
  refuse_unless(group_type == 0 || group_type == 2, "groups of an axis other than m or k");
  const Ints sizes = group_sizes(*group_list, group_list_type);
  out[0] = group_type == 0 ? products_of_rows(x[0], weight[0], sizes) : products_of_columns(x[0], weight[0], sizes);
})
OPERATOR(GroupedMatmulAdd, (Tensor x, Tensor weight, Tensor group_list, InOut y, bool transpose_x,
                            bool transpose_weight, int64_t group_type) {
  add_products(x, weight, group_sizes(group_list, 0), y, transpose_x && !transpose_weight && group_type == 2);
})
// What torch_npu calls on the Ascend950.
OPERATOR(GroupedMatmulAddV2, (Tensor x, Tensor weight, Tensor group_list, InOut y, bool transpose_x,
                              bool transpose_weight, int64_t group_type, int64_t group_list_type) {
  const Ints sizes = group_sizes(group_list, group_list_type);
  add_products(x, weight, sizes, y, transpose_x && !transpose_weight && group_type == 2);
})

// Chooses by rounded probabilities (CANN's page); ties, which that page does not mention, go to the lower index. A row
// that is finished chooses no expert.
OPERATOR(MoeGatingTopKSoftmax, (Tensor x, OptionalTensor finished, int64_t k, Out y, Out experts, Out row_indices) {
  const Tensor p = at::softmax(x.to(at::kFloat), -1);
  const Tensor order = p.argsort(/*stable=*/true, /*dim=*/-1, /*descending=*/true).narrow(-1, 0, k);
  y = p.gather(-1, order);
  experts = finished ? order.masked_fill(finished->unsqueeze(-1), x.size(-1)) : order;
  const int64_t rows = x.numel() / x.size(-1);
  row_indices.reshaped(at::arange(rows * k, at::kInt).view({k, rows}).t());
})

OPERATOR(MoeTokenPermute, (Tensor tokens, Tensor indices, int64_t rows, bool padded, Out permuted, Out sorted_indices) {
  refuse_unless(!padded, "the padded mode");
  const int64_t k = indices.dim() == 1 ? 1 : indices.size(1);
  const Tensor order = indices.flatten().argsort(/*stable=*/true, /*dim=*/0, /*descending=*/false);
  permuted = tokens.index_select(0, order.div(k, "floor")).narrow(0, 0, rows);
  sorted_indices = at::empty_like(order).index_copy_(0, order, at::arange(order.size(0), order.options()));
})
OPERATOR(MoeTokenPermuteGrad, (Tensor gradient, Tensor sorted_indices, int64_t k, bool padded, Out out) {
  refuse_unless(!padded, "the padded mode");
  out = sum_of_rows(gradient, places_of(sorted_indices, sorted_indices.size(0) / k), {});
})
OPERATOR(MoeTokenUnpermute, (Tensor permuted, Tensor sorted_indices, OptionalTensor probs, bool padded, OptionalInts,
                             Out out) {
  refuse_unless(!padded, "the padded mode");
  out = sum_of_rows(permuted, places_of(sorted_indices, out->size(0)), probs);
})
OPERATOR(MoeTokenUnpermuteGrad, (Tensor permuted, Tensor gradient, Tensor sorted_indices, OptionalTensor probs,
                                 bool padded, OptionalInts, Out permuted_gradient, OptionalOut probs_gradient) {
  refuse_unless(!padded && probs.has_value() == probs_gradient.has_value(), "the padded mode");
  const Tensor places = places_of(sorted_indices, gradient.size(0)).flatten();
  const int64_t k = places.size(0) / gradient.size(0);
  const Tensor wide = gradient.to(at::kFloat).repeat_interleave(k, 0);  // row by row, in the order of tokens
  const Tensor rows = probs ? wide * probs->reshape({-1, 1}).to(at::kFloat) : wide;
  permuted_gradient = at::empty_like(rows).index_copy_(0, places, rows);
  if (probs) *probs_gradient = (wide * permuted.index_select(0, places).to(at::kFloat)).sum(1).view(probs->sizes());
})

// clang-format on
}  // namespace concord::ascend::sim
