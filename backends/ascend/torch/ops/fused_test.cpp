// Which norms, rotations, activations, losses and weight gradients are torch_npu's operators and which the reference,
// and that both are right. On the simulated CANN (sim_npu_attention_test); ops_test draws many more shapes.
#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <cmath>

#include "backends/ascend/torch/ops/testing/vendor_calls.h"
#include "core/ops/attention/rope.h"
#include "core/ops/grad_sink.h"
#include "core/ops/linear.h"
#include "core/ops/loss/cross_entropy.h"
#include "core/ops/norm/rms_norm.h"
#include "core/ops/swiglu.h"
#include "core/torch/device.h"
#include "platform/cpp/concord.hpp"

namespace concord {
namespace {

using at::Tensor;

// Part of a layer with odd sizes: a norm of a sum, a product whose weight gradient is added to ones, a rotation of 6 of
// 10 elements of 3 heads, SwiGLU, and a norm.
constexpr int64_t kTokens = 7, kHidden = 13, kHeads = 3, kHead = 10, kRotated = 6;

struct FusedResults {
  Tensor y, dx, dbranch, dnorm, main;
};

FusedResults run_fused(c10::Device device, at::ScalarType type, const std::vector<Tensor>& given) {
  const auto leaf = [&](size_t i) { return given[i].to(type).to(device).detach().requires_grad_(true); };
  const auto wide = type == at::kDouble ? at::kDouble : at::kFloat;
  const Tensor x = leaf(0), branch = leaf(1), norm = leaf(2), weight = leaf(3), last = leaf(4);
  const Tensor angles = given[5].to(wide);
  GradSink sink{.main = at::ones(weight.sizes(), at::TensorOptions(device).dtype(wide))};
  const auto [sum, normed] = add_rms_norm(x, branch, norm, 1e-6);
  const Tensor heads = linear(normed, weight, {}, &sink).unflatten(-1, {kHeads, kHead});
  const Tensor turned = rope(heads, angles.cos().to(device), angles.sin().to(device));
  const Tensor y = rms_norm(swiglu(turned.flatten(-2)), last, 1e-6) + sum.narrow(-1, 0, 1);
  y.backward(given[6].to(type).to(device));
  return {y.detach(), x.grad(), branch.grad(), norm.grad(), sink.main};
}

// The largest difference, as a part of the largest value.
double fused_error(const Tensor& got, const Tensor& wanted) {
  const double off = (got.to(at::kCPU, at::kDouble) - wanted).abs().max().item<double>();
  return off / wanted.abs().max().item<double>();
}

TEST(AscendFused, AreTheVendorsOperatorsForTypesThatItHas) {
  const std::vector<Tensor> given{
      at::randn({kTokens, kHidden}),           at::randn({kTokens, kHidden}),   at::randn({kHidden}),
      at::randn({kHeads * kHead, kHidden}),    at::randn({kHeads * kHead / 2}), at::randn({kTokens, kRotated / 2}),
      at::randn({kTokens, kHeads * kHead / 2})};
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kHalf, at::kDouble}) {
    SCOPED_TRACE(c10::toString(type));
    std::vector<Tensor> rounded;
    for (const Tensor& each : given) rounded.push_back(each.to(type).to(at::kDouble));
    const int times = type == at::kDouble ? 0 : 1;
    const VendorCalls count;
    const FusedResults got = run_fused(torch_device(current_platform(), 0), type, rounded);
    EXPECT_EQ(count.of("add_rms_norm"), times);
    EXPECT_EQ(count.of("rms_norm"), times);
    EXPECT_EQ(count.of("rms_norm_backward"), 2 * times);
    EXPECT_EQ(count.of("rotary_mul"), 2 * times);
    EXPECT_EQ(count.of("swiglu"), times);
    EXPECT_EQ(count.of("swiglu_backward"), times);
    EXPECT_EQ(count.of("grouped_matmul_add_"), type == at::kBFloat16 || type == at::kHalf ? 1 : 0);
    const FusedResults right = run_fused(c10::kCPU, at::kDouble, rounded);
    // About ten roundings follow one another: 10 units of the type each way.
    const double unit = type == at::kDouble ? 1e-15 : type == at::kFloat ? 6e-8 : type == at::kHalf ? 4.9e-4 : 3.9e-3;
    EXPECT_LE(fused_error(got.y, right.y), 20 * unit);
    EXPECT_LE(fused_error(got.dx, right.dx), 20 * unit);
    EXPECT_LE(fused_error(got.dbranch, right.dbranch), 20 * unit);
    EXPECT_LE(fused_error(got.dnorm, right.dnorm), 20 * unit);
    EXPECT_LE(fused_error(got.main, right.main), 20 * unit);
  }
}

struct RotatedHeads {
  Tensor heads, dqkv;
};

RotatedHeads run_rope_qkv(c10::Device device, at::ScalarType type, const std::vector<Tensor>& given) {
  const Tensor qkv = given[0].to(type).to(device).detach().requires_grad_(true);
  const Tensor angles = given[1].to(type == at::kDouble ? at::kDouble : at::kFloat);
  const Heads made = rope_qkv(qkv, angles.cos().to(device), angles.sin().to(device), kHeads, 1);
  const Tensor heads = at::cat({made.q, made.k, made.v}, -2);
  heads.backward(given[2].to(type).to(device));
  return {heads.detach(), qkv.grad()};
}

class AscendHeads : public ::testing::TestWithParam<int64_t> {};

// Heads of multiples of 32 elements take one call for queries and keys, others one each.
TEST_P(AscendHeads, AreRotatedByTheVendorsOperators) {
  const int64_t head = GetParam();
  const std::vector<Tensor> given{at::randn({kTokens, 2, (kHeads + 2) * head}), at::randn({kTokens, 1, head / 2}),
                                  at::randn({kTokens, 2, kHeads + 2, head})};
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kHalf, at::kDouble}) {
    SCOPED_TRACE(c10::toString(type));
    std::vector<Tensor> rounded;
    for (const Tensor& each : given) rounded.push_back(each.to(type).to(at::kDouble));
    const VendorCalls count;
    const RotatedHeads got = run_rope_qkv(torch_device(current_platform(), 0), type, rounded);
    const bool is_packed = head % 32 == 0;
    EXPECT_EQ(count.of("mrope"), type == at::kDouble || !is_packed ? 0 : 2);
    EXPECT_EQ(count.of("rotary_mul"), type == at::kDouble || is_packed ? 0 : 4);
    const RotatedHeads right = run_rope_qkv(c10::kCPU, at::kDouble, rounded);
    // One rounding of the result, and of factors and products, each by up to sqrt(2) of the largest element.
    const double unit = type == at::kDouble ? 2e-15 : type == at::kFloat ? 1e-6 : type == at::kHalf ? 4.9e-4 : 3.9e-3;
    const double bound = 3.9 * unit;
    EXPECT_LE(fused_error(got.heads, right.heads), bound);
    EXPECT_LE(fused_error(got.dqkv, right.dqkv), bound);
  }
}
INSTANTIATE_TEST_SUITE_P(Sizes, AscendHeads, ::testing::Values(10, 32));

// A scaled sum, and a rotation of more than 896 elements.
TEST(AscendFused, AreTheReferenceBeyondTheVendorsLimits) {
  const c10::Device device = torch_device(current_platform(), 0);
  const VendorCalls count;
  const Tensor x = at::randn({kTokens, kHidden}), branch = at::randn({kTokens, kHidden}), weight = at::randn({kHidden});
  const NormedSum made = add_rms_norm(x.to(device), branch.to(device), weight.to(device), 1e-6, 0.5);
  EXPECT_LE(fused_error(made.normed, add_rms_norm(x, branch, weight, 1e-6, 0.5).normed.to(at::kDouble)), 1e-6);
  EXPECT_EQ(count.of("add_rms_norm"), 0);
  EXPECT_EQ(count.of("rms_norm"), 1);
  const Tensor heads = at::randn({2, kHeads, 898}), angles = at::randn({2, 449});
  const Tensor turned = rope(heads.to(device), angles.cos().to(device), angles.sin().to(device));
  EXPECT_LE(fused_error(turned, rope(heads, angles.cos(), angles.sin()).to(at::kDouble)), 1e-6);
  EXPECT_EQ(count.of("rotary_mul"), 0);
}

struct Entropy {
  Tensor loss, grad;
};

Entropy run_cross_entropy(c10::Device device, const Tensor& logits, const Tensor& labels,
                          const CrossEntropyOptions& options) {
  Tensor x = logits.to(device).clone();
  const auto wide = logits.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  Tensor loss = at::zeros({logits.size(0)}, at::TensorOptions(device).dtype(wide));
  cross_entropy_with_grad(x, loss, labels.to(device), options);
  return {loss, x};
}

// With and without padding columns. Smoothing is left to the reference.
TEST(AscendFused, CrossEntropyReadsTheLogitsFewTimes) {
  const c10::Device device = torch_device(current_platform(), 0);
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kHalf, at::kDouble}) {
    for (const int64_t used : {37, 40}) {
      for (const double smoothing : {0.0, 0.1}) {
        SCOPED_TRACE(c10::toString(type));
        const Tensor logits = at::randn({kTokens, 40}).mul(3).to(type);
        const Tensor labels = at::tensor({3, -100, 36, 0, 5, 5, 12}, at::kLong);
        const CrossEntropyOptions options{.vocabulary = used, .label_smoothing = smoothing, .expected_grad = 0.125};
        const VendorCalls count;
        const Entropy got = run_cross_entropy(device, logits, labels, options);
        EXPECT_EQ(count.of_libtorch("scatter_add_"), type == at::kDouble || smoothing > 0 ? 0 : 1);
        const Entropy right = run_cross_entropy(c10::kCPU, logits.to(at::kDouble), labels, options);
        // Ten roundings of losses up to some 20 and of probabilities; gradients are rounded to the type.
        const double unit = type == at::kDouble ? 1e-15 : 6e-8;
        const double grad_unit = type == at::kBFloat16 ? 3.9e-3 : type == at::kHalf ? 4.9e-4 : 20 * unit;
        EXPECT_LE(fused_error(got.loss, right.loss), 20 * unit);
        EXPECT_LE(fused_error(got.grad, right.grad), grad_unit);
        EXPECT_EQ(got.grad.select(0, 1).abs().max().item<double>(), 0);
        EXPECT_EQ(got.grad.narrow(1, used, 40 - used).abs().sum().item<double>(), 0);
      }
    }
  }
}

// A rotation after another one with other angles, in the same memory.
// With this many columns each row is computed by itself. Equal logits have probabilities of 1 / columns.
TEST(AscendFused, CrossEntropyOfManyLogitsIsComputedInParts) {
  constexpr int64_t kRows = 3, kColumns = (1 << 24) + 1, kIgnored = 1;
  const c10::Device device = torch_device(current_platform(), 0);
  Tensor logits = at::ones({kRows, kColumns}, at::TensorOptions(device).dtype(at::kBFloat16));
  Tensor losses = at::ones({kRows}, at::TensorOptions(device).dtype(at::kFloat));
  const Tensor labels = at::tensor({5, -100, 7}, at::kLong);
  cross_entropy_with_grad(logits, losses, labels.to(device), {.expected_grad = 1.0 / 2});
  for (int64_t row = 0; row < kRows; ++row) {
    SCOPED_TRACE(row);
    const bool counts = row != kIgnored;
    const double p = counts ? 0.5 / kColumns : 0, loss = counts ? std::log(static_cast<double>(kColumns)) : 0;
    EXPECT_NEAR(losses[row].item<double>(), loss, 1e-5);
    const Tensor grad = logits[row].cpu();
    const int64_t label = counts ? labels[row].item<int64_t>() : 5;
    EXPECT_NEAR(grad[label].item<double>(), counts ? -0.5 : 0, 1e-7);
    grad[label] = p;
    EXPECT_NEAR(grad.min().item<double>(), p, p / 256);
    EXPECT_NEAR(grad.max().item<double>(), p, p / 256);
  }
}

TEST(AscendFused, AnglesThatWereOverwrittenCountFromThenOn) {
  const c10::Device device = torch_device(current_platform(), 0);
  const Tensor x = at::randn({kTokens, kHeads, kHead});
  const Tensor cos = at::ones({kTokens, kHead / 2}).to(device), sin = cos - cos;
  EXPECT_EQ(fused_error(rope(x.to(device), cos, sin), x.to(at::kDouble)), 0);
  const Tensor angles = at::randn({kTokens, kHead / 2});
  cos.copy_(angles.cos());
  sin.copy_(angles.sin());
  EXPECT_LE(fused_error(rope(x.to(device), cos, sin), rope(x, angles.cos(), angles.sin()).to(at::kDouble)), 3e-7);
}

}  // namespace
}  // namespace concord
