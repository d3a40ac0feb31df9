// Samples of MoE operators at real sizes (samples.h): more rows than a block or a chunk of the sort, experts without
// rows, widths with and without vector loads, sizes that a grouped GEMM supports and others, groups that end anywhere.
#include <ATen/TensorOperators.h>
#include <ATen/ops/argsort.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <limits>
#include <numeric>

#include "core/ops/moe/moe_permute.h"
#include "core/ops/testing/samples.h"

namespace concord::ops::testing {
namespace {

using ExpertArguments = std::vector<c10::IValue>;
using ExpertOutputs = std::vector<at::Tensor>;

// --------------------------------------------------------------------------------------------- order, permute, combine

struct RoutedSize {
  int64_t tokens, k, width, experts;
};

// A random start and the experts that follow it; one token in four goes to the first ones.
at::Tensor draw_experts(const RoutedSize& size, Draw& draw) {
  const at::Tensor begin =
      draw.integers({size.tokens}, 0, size.experts - 1) * (draw.integers({size.tokens}, 0, 3) > 0).to(at::kLong);
  std::vector<at::Tensor> choices;
  for (int64_t j = 0; j < size.k; ++j) choices.push_back((begin + j).remainder(size.experts));
  return at::stack(choices, 1);
}

Sample real_order(const RoutedSize& size, Draw& draw, c10::ScalarType) {
  return {{draw_experts(size, draw), size.experts}, 0};
}

Sample real_permute(const RoutedSize& size, Draw& draw, c10::ScalarType type) {
  const ExpertOrder order = order_by_expert(draw_experts(size, draw), size.experts);
  return {{draw.normal({size.tokens, size.width}, type), order.order, order.inverse}, 0};
}

// A sum of k products.
Sample real_combine(const RoutedSize& size, Draw& draw, c10::ScalarType type) {
  const ExpertOrder order = order_by_expert(draw_experts(size, draw), size.experts);
  const at::Tensor rows = draw.normal({size.tokens * size.k, size.width}, type);
  const at::Tensor weights = draw.normal({size.tokens, size.k}, type);
  const auto slack = [=](const ExpertArguments& a, const ExpertOutputs&) {
    const at::Tensor places = a[3].toTensor(), factors = a[1].toTensor().abs().reshape({-1, 1});
    const at::Tensor terms = a[0].toTensor().abs().index_select(0, places) * factors;
    return ExpertOutputs{(static_cast<double>(size.k) + 1) * sum_unit(type) *
                         terms.view({size.tokens, size.k, size.width}).sum(1)};
  };
  return {{rows, weights, order.order, order.inverse, size.k}, 0, {}, slack};
}

// A product, and a sum over the width.
Sample real_combine_backward(const RoutedSize& size, Draw& draw, c10::ScalarType type) {
  const ExpertOrder order = order_by_expert(draw_experts(size, draw), size.experts);
  const at::Tensor grad = draw.normal({size.tokens, size.width}, type);
  const at::Tensor rows = draw.normal({size.tokens * size.k, size.width}, type);
  const auto slack = [=](const ExpertArguments& a, const ExpertOutputs& exact) {
    const at::Tensor of_rows = a[1].toTensor().abs().index_select(0, a[4].toTensor());
    const at::Tensor dots =
        (of_rows.view({size.tokens, size.k, size.width}) * a[0].toTensor().abs().unsqueeze(1)).sum(-1);
    return ExpertOutputs{2 * sum_unit(type) * exact[0].abs(),
                         (roundings_of_sum(size.width) + 2) * sum_unit(type) * dots};
  };
  return {{grad, rows, draw.normal({size.tokens, size.k}, type), order.order, order.inverse}, 0, {}, slack};
}

std::vector<SampleMaker> for_routed(Sample (*make)(const RoutedSize&, Draw&, c10::ScalarType)) {
  const std::vector<RoutedSize> sizes = {{20, 3, 40, 7}, {1500, 8, 1024, 64}, {700, 1, 33, 5}, {515, 4, 1032, 200}};
  std::vector<SampleMaker> makers;
  for (const RoutedSize& size : sizes) {
    makers.push_back([=](Draw& draw, c10::ScalarType type) { return make(size, draw, type); });
  }
  return makers;
}

const RegisterRealSizes kRealOrder("concord::moe_order", for_routed(real_order));
const RegisterRealSizes kRealPermute("concord::moe_permute", for_routed(real_permute));
const RegisterRealSizes kRealCombine("concord::moe_combine", for_routed(real_combine));
const RegisterRealSizes kRealCombineBackward("concord::moe_combine_backward", for_routed(real_combine_backward));

// ------------------------------------------------------------------------------------------------------ grouped_linear

struct GroupedSize {
  int64_t rows, in, out, groups;
};

// Split at random; the second group and the last have no rows.
at::Tensor draw_groups(const GroupedSize& size, Draw& draw) {
  std::vector<int64_t> ends;
  for (int64_t i = 0; i < size.groups - 2; ++i) ends.push_back(draw.between(0, size.rows));
  std::sort(ends.begin(), ends.end());
  ends.insert(ends.begin() + 1, ends.front());
  ends.push_back(size.rows);
  ends[ends.size() - 2] = size.rows;
  return at::tensor(ends, at::kLong);
}

// Applies |product| to the rows of each group and the group's entry of the other operand.
template <class Product>
std::vector<at::Tensor> by_group(const at::Tensor& rows, const at::Tensor& ends, const Product& product) {
  const at::Tensor host = ends.cpu();
  std::vector<at::Tensor> results;
  int64_t begin = 0;
  for (int64_t i = 0; i < host.numel(); ++i) {
    const int64_t end = host.const_data_ptr<int64_t>()[i];
    results.push_back(product(rows.narrow(0, begin, end - begin), i, begin, end));
    begin = end;
  }
  return results;
}

// Tensor cores truncate instead of rounding: up to a whole unit, two roundings.
double product_roundings(int64_t depth) { return 2 * (roundings_of_sum(depth) + 2); }

// x W^T, or with |transposed| false grad W, for each group.
Sample::Slack grouped_slack(int64_t depth, c10::ScalarType type, bool transposed) {
  return [=](const ExpertArguments& a, const ExpertOutputs&) {
    const at::Tensor weight = a[1].toTensor().abs();
    const auto terms =
        by_group(a[0].toTensor().abs(), a[2].toTensor(), [&](const at::Tensor& rows, int64_t i, auto...) {
          return at::mm(rows, transposed ? weight[i].t() : weight[i]);
        });
    return ExpertOutputs{product_roundings(depth) * sum_unit(type) * at::cat(terms)};
  };
}

Sample real_grouped(const GroupedSize& size, Draw& draw, c10::ScalarType type) {
  const at::Tensor x = draw.normal({size.rows, size.in}, type);
  const at::Tensor weight = draw.normal({size.groups, size.out, size.in}, type);
  return {{x, weight, draw_groups(size, draw)}, 0, {}, grouped_slack(size.in, type, true)};
}

Sample real_grouped_input_grad(const GroupedSize& size, Draw& draw, c10::ScalarType type) {
  const at::Tensor grad = draw.normal({size.rows, size.out}, type);
  const at::Tensor weight = draw.normal({size.groups, size.out, size.in}, type);
  return {{grad, weight, draw_groups(size, draw)}, 0, {}, grouped_slack(size.out, type, false)};
}

// main (+)= grad^T x for each group.
Sample::Slack weights_slack(int64_t depth, c10::ScalarType type) {
  return [=](const ExpertArguments& a, const ExpertOutputs&) {
    const at::Tensor other = a[2].toTensor().abs();
    const auto terms = by_group(a[1].toTensor().abs(), a[3].toTensor(),
                                [&](const at::Tensor& rows, int64_t, int64_t begin, int64_t end) {
                                  return at::mm(rows.t(), other.narrow(0, begin, end - begin));
                                });
    return ExpertOutputs{product_roundings(depth) * sum_unit(type) * (a[0].toTensor().abs() + at::stack(terms))};
  };
}

c10::ScalarType main_type(c10::ScalarType type) { return type == at::kDouble ? type : at::kFloat; }

Sample real_grouped_weight_grad(const GroupedSize& size, Draw& draw, c10::ScalarType type) {
  const at::Tensor main = draw.normal({size.groups, size.out, size.in}, main_type(type));
  const at::Tensor grad = draw.normal({size.rows, size.out}, type), x = draw.normal({size.rows, size.in}, type);
  return {{main, grad, x, draw_groups(size, draw)}, 0, {}, weights_slack(size.rows, type)};
}

// Row counts for which kernels that process many rows at once can fail: at the ends of groups.
struct CountedGroups {
  std::vector<int64_t> counts;  // rows of each group
  int64_t in, out;
  bool is_turned = false;  // the main gradient is stored as [groups, in, out]
  int64_t bad_group =
      -1;  // its rows have a NaN on the left and an infinity on the right, which must not affect other groups
};

Sample counted_weight_grad(const CountedGroups& size, Draw& draw, c10::ScalarType type) {
  std::vector<int64_t> ends(size.counts.size());
  std::partial_sum(size.counts.begin(), size.counts.end(), ends.begin());
  const auto groups = static_cast<int64_t>(ends.size()), rows = ends.back();
  const at::Tensor main = size.is_turned ? draw.normal({groups, size.in, size.out}, main_type(type)).transpose(1, 2)
                                         : draw.normal({groups, size.out, size.in}, main_type(type));
  const at::Tensor grad = draw.normal({rows, size.out}, type), x = draw.normal({rows, size.in}, type);
  const bool has_nan = size.bad_group >= 0;
  if (has_nan) {
    const auto bad = static_cast<size_t>(size.bad_group);
    const int64_t count = size.counts[bad], begin = ends[bad] - count;
    grad.narrow(0, begin, count).select(1, 3).fill_(std::numeric_limits<double>::quiet_NaN());
    x.narrow(0, begin, count).select(1, 5).fill_(std::numeric_limits<double>::infinity());
  }
  return {{main, grad, x, at::tensor(ends, at::kLong)}, 0, {}, weights_slack(rows, type), has_nan};
}

std::vector<SampleMaker> for_groups(Sample (*make)(const GroupedSize&, Draw&, c10::ScalarType)) {
  const std::vector<GroupedSize> sizes = {{96, 40, 24, 5}, {1500, 512, 776, 7}, {515, 33, 17, 4}, {1, 256, 128, 3}};
  std::vector<SampleMaker> makers;
  for (const GroupedSize& size : sizes) {
    makers.push_back([=](Draw& draw, c10::ScalarType type) { return make(size, draw, type); });
  }
  return makers;
}

// Groups of one row and of none, of the 32 or 64 rows that a kernel processes at once and of some more or less;
// matrices that end within a tile and that have several.
std::vector<SampleMaker> for_weight_grads() {
  const std::vector<int64_t> uneven = {1, 0, 63, 64, 65, 1, 130, 0, 7, 33};
  const std::vector<CountedGroups> sizes = {
      {.counts = uneven, .in = 328, .out = 200},
      {.counts = uneven, .in = 264, .out = 136, .is_turned = true},
      {.counts = {0, 1111, 0}, .in = 1032, .out = 72},
      {.counts = {100, 77, 130, 1}, .in = 136, .out = 264, .bad_group = 1},
      {.counts = {100, 77, 130, 1}, .in = 264, .out = 136, .is_turned = true, .bad_group = 2},
      {.counts = {0, 0, 0}, .in = 40, .out = 24},
      {.counts = {512, 700, 0, 389, 1024, 1, 448, 1022}, .in = 768, .out = 1536},
  };
  std::vector<SampleMaker> makers = for_groups(real_grouped_weight_grad);
  for (const CountedGroups& size : sizes) {
    makers.push_back([=](Draw& draw, c10::ScalarType type) { return counted_weight_grad(size, draw, type); });
  }
  return makers;
}

const RegisterRealSizes kRealGrouped("concord::grouped_linear", for_groups(real_grouped));
const RegisterRealSizes kRealGroupedInput("concord::grouped_linear_input_grad", for_groups(real_grouped_input_grad));
const RegisterRealSizes kRealGroupedAdd("concord::grouped_linear_weight_grad_", for_weight_grads());
const RegisterRealSizes kRealGroupedSet("concord::grouped_linear_weight_grad_set_", for_weight_grads());

// Without a main gradient, in the type of the operands.
Sample real_grouped_product(const GroupedSize& size, Draw& draw, c10::ScalarType type) {
  Sample made = real_grouped_weight_grad(size, draw, type);
  const at::Tensor none = at::zeros({size.groups, size.out, size.in}, at::kDouble);
  made.arguments.erase(made.arguments.begin());
  made.slack = [none, slack = made.slack](const ExpertArguments& a, const ExpertOutputs& exact) {
    ExpertArguments with_main{none};
    with_main.insert(with_main.end(), a.begin(), a.end());
    return slack(with_main, exact);
  };
  return made;
}
const RegisterRealSizes kRealGroupedProduct("concord::grouped_linear_weight_grad", for_groups(real_grouped_product));

// ---------------------------------------------------------------------------------------------------------- moe_route

struct RouteSize {
  int64_t tokens, experts, k;
};

// Logits of a token differ by 0.1 or more, so that finite differences do not change the choice; except in Double they
// are also multiples of 1/8, some of which are equal.
at::Tensor draw_logits(const RouteSize& size, Draw& draw, c10::ScalarType type) {
  const std::vector<int64_t> sizes = {size.tokens, size.experts};
  if (type != at::kDouble && draw.coin()) return draw.eighths(sizes, type);
  const at::Tensor ranks = draw.normal(sizes, at::kDouble).argsort(int64_t{-1}, /*descending=*/false).to(at::kDouble);
  const double step = std::max(0.15, 4.0 / static_cast<double>(size.experts));
  return (ranks * step + 0.02 * draw.normal(sizes, at::kDouble).clamp(-1, 1) - 2).to(type);
}

// exp(x - largest) has an error of as many roundings as its argument is large; sums and divisions add theirs.
double route_roundings(const at::Tensor& logits) {
  return 16 + 4 * (logits.max() - logits.min()).item<double>() + roundings_of_sum(logits.size(-1));
}

Sample route_sample(const RouteSize& size, Draw& draw, c10::ScalarType type) {
  const at::Tensor logits = draw_logits(size, draw, type);
  const auto slack = [=](const std::vector<c10::IValue>& a, const std::vector<at::Tensor>& exact) {
    const double off = route_roundings(a[0].toTensor().to(at::kDouble)) * sum_unit(type);
    return std::vector<at::Tensor>{off * exact[0].abs(), at::zeros_like(exact[1], at::TensorOptions(at::kDouble))};
  };
  return {{logits, size.k, draw.coin(), draw.coin(), draw.coin() ? 1 : 2.5}, 0, {}, slack};
}

// With p the softmax over all experts and w the weights: a few roundings of each term of p (g - sum(g w)), where the
// sum cancels for experts that were not chosen, and of w (g - sum(g w)).
Sample route_backward_sample(const RouteSize& size, Draw& draw, c10::ScalarType type) {
  const at::Tensor logits = draw_logits(size, draw, type);
  const at::Tensor experts = draw.normal({size.tokens, size.experts}, at::kDouble)
                                 .argsort(int64_t{-1}, /*descending=*/false)
                                 .narrow(-1, 0, size.k);
  const at::Tensor grad = draw.normal({size.tokens, size.k}, type == at::kDouble ? type : at::kFloat);
  const double scale = draw.coin() ? 1 : 2.5;
  const auto slack = [=](const std::vector<c10::IValue>& a, const std::vector<at::Tensor>&) {
    const at::Tensor wide = a[1].toTensor().to(at::kDouble), chosen = a[2].toTensor();
    const at::Tensor g = a[0].toTensor().to(at::kDouble).abs() * scale;
    const at::Tensor p = at::softmax(wide, -1), w = at::softmax(wide.gather(-1, chosen), -1);
    const at::Tensor mean = (g * w).sum(-1, true);
    return std::vector<at::Tensor>{route_roundings(wide) * sum_unit(type) *
                                   (2 * p * mean).scatter_add(-1, chosen, 2 * w * (g + mean))};
  };
  return {{grad, logits, experts.contiguous(), draw.coin(), draw.coin(), scale}, 0, {}, slack};
}

RouteSize draw_route(Draw& draw) {
  const int64_t experts = draw.size();
  return {draw.between(1, 20), experts, draw.between(1, std::min<int64_t>(experts, 9))};
}

// The small samples are the harness's, too.
const RegisterSamples kRoute("concord::moe_route", [](Draw& draw, c10::ScalarType type) {
  return route_sample(draw_route(draw), draw, type);
});
const RegisterSamples kRouteBackward("concord::moe_route_backward", [](Draw& draw, c10::ScalarType type) {
  return route_backward_sample(draw_route(draw), draw, type);
});

// Numbers of experts for 1, 2, 4, 8 and 16 per thread, and more.
std::vector<SampleMaker> for_routes(Sample (*make)(const RouteSize&, Draw&, c10::ScalarType)) {
  const std::vector<RouteSize> sizes = {{20, 7, 3},     {4096, 64, 8}, {515, 128, 8}, {1030, 256, 8},
                                        {260, 512, 10}, {100, 32, 32}, {33, 600, 4}};
  std::vector<SampleMaker> made;
  for (const RouteSize& size : sizes) {
    made.push_back([=](Draw& draw, c10::ScalarType type) { return make(size, draw, type); });
  }
  return made;
}
const RegisterRealSizes kRealRoute("concord::moe_route", for_routes(route_sample));
const RegisterRealSizes kRealRouteBackward("concord::moe_route_backward", for_routes(route_backward_sample));

}  // namespace
}  // namespace concord::ops::testing
