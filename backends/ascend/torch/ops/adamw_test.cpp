// AdamW on Ascend: neighbours in memory are one call of torch_npu's operator, with the reference's values. On the
// simulated CANN (sim_npu_attention_test).
#include <ATen/TensorOperators.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <utility>

#include "backends/ascend/torch/ops/testing/vendor_calls.h"
#include "core/ops/optimizer/adamw.h"
#include "core/optim/rules/adamw.h"
#include "core/torch/device.h"
#include "platform/cpp/concord.hpp"

namespace concord {
namespace {

using at::Tensor;

constexpr int64_t kSizes[] = {13, 64, 1, 7};  // the last one does not follow the others
constexpr int64_t kTotal = 13 + 64 + 1 + 5 + 7;

std::vector<Tensor> parts_of(const Tensor& flat) {
  std::vector<Tensor> parts;
  int64_t begin = 0;
  for (const int64_t size : kSizes) {
    if (size == 7) begin += 5;
    parts.push_back(flat.narrow(0, begin, size));
    begin += size;
  }
  return parts;
}

struct Flat {
  Tensor weights, m, v, values, grads;
  AdamWLists lists() const {
    return {parts_of(weights), parts_of(m), parts_of(v), values.defined() ? parts_of(values) : std::vector<Tensor>(),
            parts_of(grads)};
  }
  Flat on(c10::Device device, at::ScalarType wide, at::ScalarType narrow) const {
    const auto copy = [&](const Tensor& x, at::ScalarType type) { return x.to(type).to(device).clone(); };
    return {copy(weights, wide), copy(m, wide), copy(v, wide), narrow == wide ? Tensor() : copy(values, narrow),
            copy(grads, narrow)};
  }
};

Flat draw_flat(at::ScalarType narrow) {
  return {at::randn({kTotal}), at::randn({kTotal}), at::randn({kTotal}).square(), at::randn({kTotal}),
          at::randn({kTotal}).to(narrow).to(at::kFloat)};
}

double largest_difference(const Tensor& got, const Tensor& wanted) {
  return (got.to(at::kCPU, at::kDouble) - wanted.to(at::kDouble)).abs().max().item<double>();
}

TEST(AscendAdamW, NeighboursAreOneCallWithTheReferencesValues) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kHalf, at::kDouble}) {
    for (const int64_t t : {1, 100}) {
      SCOPED_TRACE(c10::toString(type));
      const auto wide = type == at::kDouble ? type : at::kFloat;
      const Flat given = draw_flat(type);
      const AdamWStep step = adamw_step({0.9, 0.95, 1e-8}, 1e-2, 0.1, 0.25, t);
      const Flat right = given.on(c10::kCPU, at::kDouble, at::kDouble);
      adamw_(right.lists(), step);
      const Flat got = given.on(torch_device(current_platform(), 0), wide, type);
      const VendorCalls count;
      adamw_(got.lists(), step);
      EXPECT_EQ(count.of_libtorch("_fused_adamw_"), type == at::kDouble ? 0 : 2);
      // Numbers around 1 and fewer than ten roundings; the vendor's 1 - beta2 is that of an fp32 beta2: 2^-24 / 0.05.
      EXPECT_LE(largest_difference(got.m, right.m), 1e-6 * right.m.abs().max().item<double>());
      EXPECT_LE(largest_difference(got.v, right.v), 3e-6 * right.v.abs().max().item<double>());
      EXPECT_LE(largest_difference(got.weights, right.weights), 3e-6 * right.weights.abs().max().item<double>());
      if (!got.values.defined()) continue;
      const AdamWLists lists = got.lists();
      for (size_t i = 0; i < lists.values.size(); ++i) {
        EXPECT_TRUE(at::equal(lists.values[i].cpu(), lists.weights[i].to(type).cpu()));
      }
    }
  }
}

// Two groups that follow one another in memory, of which the second has no weight decay. sim_npu_work_counts counts how
// often their gradients are scaled.
TEST(AscendAdamW, NeighboursOfTwoGroupsHaveTheReferencesValues) {
  const Flat given = draw_flat(at::kBFloat16);
  const auto groups_of = [](const AdamWLists& all) {
    const auto part = [](const std::vector<Tensor>& list, size_t begin, size_t end) {
      return list.empty() ? list : std::vector(list.begin() + begin, list.begin() + end);
    };
    const auto lists = [&](size_t begin, size_t end) {
      return AdamWLists{part(all.weights, begin, end), part(all.m, begin, end), part(all.v, begin, end),
                        part(all.values, begin, end), part(all.grads, begin, end)};
    };
    return std::pair(lists(0, 2), lists(2, 3));
  };
  const AdamWStep decayed = adamw_step({0.9, 0.95, 1e-8}, 1e-2, 0.1, 0.25, 3);
  const AdamWStep plain = adamw_step({0.9, 0.95, 1e-8}, 1e-2, 0, 0.25, 3);
  const Flat right = given.on(c10::kCPU, at::kDouble, at::kDouble);
  const auto [right_first, right_second] = groups_of(right.lists());
  adamw_(right_first, decayed);
  adamw_(right_second, plain);
  const Flat got = given.on(torch_device(current_platform(), 0), at::kFloat, at::kBFloat16);
  const auto [first, second] = groups_of(got.lists());
  const VendorCalls count;
  adamw_groups_({{first, decayed}, {second, plain}});
  EXPECT_EQ(count.of_libtorch("_fused_adamw_"), 2);
  // The bounds are those of the test above.
  EXPECT_LE(largest_difference(got.m, right.m), 1e-6 * right.m.abs().max().item<double>());
  EXPECT_LE(largest_difference(got.v, right.v), 3e-6 * right.v.abs().max().item<double>());
  EXPECT_LE(largest_difference(got.weights, right.weights), 3e-6 * right.weights.abs().max().item<double>());
  EXPECT_TRUE(at::equal(second.values[0].cpu(), second.weights[0].to(at::kBFloat16).cpu()));
}

// Not the weights in a step of rate 0, nor the elements between the tensors.
TEST(AscendAdamW, ChangesNothingButItsTensors) {
  const Flat given = draw_flat(at::kFloat), got = given.on(torch_device(current_platform(), 0), at::kFloat, at::kFloat);
  adamw_(got.lists(), adamw_step({0.9, 0.95, 1e-8}, 0, 0.1, 1, 1));
  EXPECT_TRUE(at::equal(got.weights.cpu(), given.weights));
  EXPECT_FALSE(at::equal(got.m.cpu(), given.m));
  EXPECT_TRUE(at::equal(got.m.cpu().narrow(0, 78, 5), given.m.narrow(0, 78, 5)));
  EXPECT_TRUE(at::equal(got.v.cpu().narrow(0, 78, 5), given.v.narrow(0, 78, 5)));
}

TEST(AscendAdamW, TheFactorOfClippingIsThatOfTheHost) {
  const c10::Device device = torch_device(current_platform(), 0);
  const auto factor_of = [&](double squares, double loss) {
    const Tensor sum = at::tensor({squares}, at::kFloat).to(device), mean = at::tensor({loss}, at::kFloat).to(device);
    return update_factor(sum, mean, 2.0, 8.0);
  };
  constexpr double kInf = std::numeric_limits<double>::infinity(), kNan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(factor_of(16, 1).item<float>(), static_cast<float>(2.0 / (4 + 1e-6) / 8));
  EXPECT_EQ(factor_of(1, 1).item<float>(), 1.0F / 8);
  for (const auto& [squares, loss] : {std::pair(kInf, 1.0), {kNan, 1.0}, {1.0, kInf}, {1.0, kNan}}) {
    const Tensor none = factor_of(squares, loss);
    EXPECT_TRUE(std::isnan(none.item<float>()));
    const Flat given = draw_flat(at::kBFloat16), got = given.on(device, at::kFloat, at::kBFloat16);
    adamw_(got.lists(), adamw_step({0.9, 0.95, 1e-8}, 1e-2, 0.1, 1, 1), none);
    EXPECT_TRUE(at::equal(got.weights.cpu(), given.weights));
    EXPECT_TRUE(at::equal(got.m.cpu(), given.m));
    EXPECT_TRUE(at::equal(got.v.cpu(), given.v));
  }
}

}  // namespace
}  // namespace concord
