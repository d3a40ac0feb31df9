// The LoRA branch of a linear layer, compared with the same sum composed of operators that autograd differentiates.
#include "core/parallel/low_rank.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/zeros.h>
#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <gtest/gtest.h>

#include "core/mesh/initialize.h"
#include "core/ops/dropout.h"
#include "core/parallel/parallel_linear.h"
#include "core/parallel/testing/memory_meter.h"

namespace concord {
namespace {

using at::Tensor;

constexpr int64_t kIn = 10, kOut = 12, kFirst = 3, kSecond = 2;

// Outputs 2 to 6 and 8 to 12 have adapters of different ranks; the others have none.
struct Layer {
  Tensor x = made({5, 2, kIn}), weight = made({kOut, kIn}).requires_grad_(false), bias = made({kOut});
  Tensor a = made({kFirst + kSecond, kIn}), b1 = made({4, kFirst}), b2 = made({4, kSecond});
  RngTracker rng{{11, 12, 13}};

  static Tensor made(std::vector<int64_t> shape) { return at::rand(shape, at::kDouble).sub_(0.5).requires_grad_(true); }
  std::vector<Tensor> leaves() const { return {x, bias, a, b1, b2}; }

  Tensor run(double dropout, bool row, const GradSink* a_sink = nullptr, const GradSink* b_sink = nullptr) {
    const LowRank pair{.a_ri = a,
                       .sink = a_sink,
                       .parts = {{b1, 2, 0.5, b_sink}, {b2, 8, 3, nullptr}},
                       .dropout = dropout,
                       .rng = &rng};
    ProcessGroup& one = initialize({}).group(GroupKind::tp);
    return row ? row_parallel_linear(x, weight, bias, one, {}, nullptr, pair)
               : column_parallel_linear(x, weight, bias, one, {}, nullptr, pair);
  }
  Tensor reference(double probability) {
    Generator generator(rng.current());
    const Tensor z = at::linear(dropout(x, probability, generator), a);
    const Tensor first = at::linear(z.narrow(-1, 0, kFirst), b1).mul(0.5);
    const Tensor second = at::linear(z.narrow(-1, kFirst, kSecond), b2).mul(3);
    const auto none = [&](int64_t columns) { return at::zeros({5, 2, columns}, at::kDouble); };
    return at::linear(x, weight, bias).add(at::cat({none(2), first, none(2), second}, -1));
  }
};

std::vector<Tensor> gradients(const Layer& layer, const Tensor& y) {
  y.backward(at::linear(layer.x.detach(), layer.weight).cos());
  std::vector<Tensor> grads;
  for (const Tensor& leaf : layer.leaves()) {
    grads.push_back(leaf.grad());
    leaf.mutable_grad().reset();
  }
  return grads;
}

// Sums of at most 2 * 12 products of numbers below 3, in fp64.
constexpr double kBound = 1e-13;
double difference(const Tensor& a, const Tensor& b) { return a.sub(b).abs().max().item<double>(); }

TEST(LowRank, IsAddedToItsColumnsWithTheGradientsOfAutograd) {
  for (const double dropout : {0.0, 0.4}) {
    for (const bool row : {false, true}) {
      Layer layer;
      const Tensor wanted = layer.reference(dropout), got = layer.run(dropout, row);
      EXPECT_LE(difference(got, wanted), kBound);
      EXPECT_GT(difference(got, at::linear(layer.x, layer.weight, layer.bias)), 0.01);
      const std::vector<Tensor> wanted_grads = gradients(layer, wanted), grads = gradients(layer, got);
      for (size_t i = 0; i < grads.size(); ++i) EXPECT_LE(difference(grads[i], wanted_grads[i]), kBound) << i;
    }
  }
}

TEST(LowRank, GradientsGoToSinksWhereThereAreSome) {
  Layer layer;
  const std::vector<Tensor> wanted = gradients(layer, layer.reference(0));
  DeferredWgrads later;
  int added = 0;
  const GradSink a{at::zeros(layer.a.sizes(), at::kDouble), [&] { ++added; }, &later};
  const GradSink b{at::zeros(layer.b1.sizes(), at::kDouble), [&] { ++added; }};
  const std::vector<Tensor> rest = gradients(layer, layer.run(0, false, &a, &b));
  EXPECT_FALSE(rest[2].defined());
  EXPECT_FALSE(rest[3].defined());
  EXPECT_LE(difference(b.main, wanted[3]), kBound);
  EXPECT_LE(difference(rest[4], wanted[4]), kBound);
  EXPECT_EQ(added, 1);
  later.run_all();
  EXPECT_EQ(added, 2);
  EXPECT_LE(difference(a.main, wanted[2]), kBound);
}

// Only the gradient of a weight needs the layer's input.
TEST(LowRank, AFrozenLayerWithoutAPairKeepsNothingOfItsInput) {
  const auto kept = [](bool frozen, bool with_pair) {
    Layer layer;
    layer.weight.requires_grad_(!frozen);
    const auto meter = std::make_shared<MemoryMeter>();
    const c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, meter);
    Tensor hidden = layer.x.mul(2);  // kept alive only if it is saved
    layer.x = hidden;
    ProcessGroup& one = initialize({}).group(GroupKind::tp);
    const Tensor y = with_pair ? layer.run(0, false) : column_parallel_linear(hidden, layer.weight, {}, one);
    const int64_t before = meter->held;
    layer.x.reset();
    hidden.reset();
    return before - meter->held;
  };
  EXPECT_GT(kept(true, false), 0) << "freed";
  EXPECT_EQ(kept(false, false), 0);
  EXPECT_EQ(kept(true, true), 0);
}

}  // namespace
}  // namespace concord
