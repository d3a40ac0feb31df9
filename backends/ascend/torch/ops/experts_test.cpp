// Which operators of experts are torch_npu's and which the reference, and that both are right. On the simulated CANN
// (sim_npu_attention_test); ops_test draws many more shapes.
#include <ATen/TensorOperators.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include "backends/ascend/torch/ops/testing/vendor_calls.h"
#include "core/ops/moe/grouped_linear.h"
#include "core/ops/moe/moe_permute.h"
#include "core/ops/moe/moe_router.h"
#include "core/torch/device.h"
#include "platform/cpp/concord.hpp"

namespace concord {
namespace {

using at::Tensor;

c10::Device expert_device() { return torch_device(current_platform(), 0); }

// A layer with four experts, of which one has no tokens, into an fp32 sink that is not zero.
struct ExpertResults {
  Tensor y, dx, dweights, main;
};

ExpertResults run_layer(c10::Device device, at::ScalarType type, const std::vector<Tensor>& given) {
  const auto leaf = [&](const Tensor& x) { return x.to(type).to(device).detach().requires_grad_(true); };
  const Tensor x = leaf(given[0]), weights = leaf(given[1]), stack = leaf(given[2]);
  const auto wide = type == at::kDouble ? at::kDouble : at::kFloat;
  GradSink sink{.main = at::ones(stack.sizes(), at::TensorOptions(device).dtype(wide))};
  const Tensor experts = at::tensor({3, 0, 0, 2, 3, 2, 0, 3, 2, 0}, at::kLong).view({5, 2}).to(device);
  const ExpertOrder order = order_by_expert(experts, 4);
  const Tensor y = moe_combine(grouped_linear(moe_permute(x, order), stack, order.ends, &sink), weights, order);
  y.backward(given[3].to(type).to(device));
  return {y.detach(), x.grad(), weights.grad(), sink.main};
}

void expect_close(const Tensor& got, const Tensor& wanted, double relative) {
  const double off = (got.to(at::kCPU, at::kDouble) - wanted.to(at::kDouble)).abs().max().item<double>();
  EXPECT_LE(off, relative * (1 + wanted.abs().max().item<double>()));
}

TEST(AscendExperts, AreTheVendorsOperatorsForTypesThatItHas) {
  const std::vector<Tensor> given{at::randn({5, 6}), at::randn({5, 2}), at::randn({4, 7, 6}), at::randn({5, 7})};
  std::vector<Tensor> rounded;
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kHalf, at::kDouble}) {
    SCOPED_TRACE(c10::toString(type));
    rounded.clear();
    for (const Tensor& each : given) rounded.push_back(each.to(type).to(at::kDouble));
    const int times = type == at::kDouble ? 0 : 1;
    const VendorCalls count;
    const ExpertResults got = run_layer(expert_device(), type, rounded);
    const bool adds = type == at::kBFloat16 || type == at::kHalf;
    EXPECT_EQ(count.of("grouped_matmul"), times * (adds ? 2 : 3));
    EXPECT_EQ(count.of("grouped_matmul_add_"), adds ? 1 : 0);
    EXPECT_EQ(count.of("moe_token_permute"), times);
    EXPECT_EQ(count.of("moe_token_permute_grad"), times);
    EXPECT_EQ(count.of("moe_token_unpermute"), times);
    EXPECT_EQ(count.of("moe_token_unpermute_grad"), times);
    const ExpertResults right = run_layer(c10::kCPU, at::kDouble, rounded);
    const double bound = type == at::kDouble ? 1e-12 : type == at::kFloat ? 1e-5 : 2e-2;
    expect_close(got.y, right.y, bound);
    expect_close(got.dx, right.dx, bound);
    expect_close(got.dweights, right.dweights, bound);
    expect_close(got.main, right.main, bound);
  }
}

// Why the router is not torch_npu's: probabilities of different logits may round to the same number, and then an order
// of ties chooses, whichever it is. If all probabilities differ, the choice is the same.
TEST(AscendExperts, AreChosenByLogitsWhereTheVendorsGatingSeesEqualProbabilities) {
  const auto op = c10::Dispatcher::singleton().findSchemaOrThrow("npu::npu_moe_gating_top_k_softmax", "");
  const auto choices = [&](const Tensor& logits) {
    std::vector<c10::IValue> stack{logits, c10::IValue(), int64_t{2}};
    op.callBoxed(stack);
    return stack.at(1).toTensor().to(at::kCPU, at::kLong);
  };
  const auto ours = [](const Tensor& logits) { return route_tokens(logits, {.top_k = 2}).experts.cpu(); };
  const Tensor apart = at::tensor({0.5F, 2.0F, 1.0F, -3.0F}).view({1, 4}).to(expert_device());
  EXPECT_TRUE(at::equal(ours(apart), choices(apart)));
  const Tensor tied = at::tensor({-200.0F, -150.0F, 0.0F, -300.0F}).view({1, 4}).to(expert_device());
  EXPECT_TRUE(at::equal(ours(tied), at::tensor({2, 1}, at::kLong).view({1, 2})));
  EXPECT_TRUE(at::equal(choices(tied), at::tensor({2, 0}, at::kLong).view({1, 2})));
}

}  // namespace
}  // namespace concord
