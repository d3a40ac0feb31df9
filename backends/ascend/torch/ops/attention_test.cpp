// Which attention the fused kernel of torch_npu computes and which the reference, and that both are right. On the
// simulated CANN (sim_npu_attention); ops_test draws many more shapes.
#include "core/ops/attention/attention.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/randn.h>
#include <ATen/record_function.h>
#include <gmock/gmock.h>
#include <torch/csrc/autograd/function.h>

#include <cstring>
#include <string>

#include "core/ops/attention/attention_parts.h"
#include "core/torch/device.h"
#include "platform/cpp/concord.hpp"

namespace concord {
namespace {

using at::Tensor;

c10::Device npu() { return torch_device(current_platform(), 0); }

// Counts the calls of torch_npu's fused attention and of the update of its parts, and how often sinks are applied to a
// result, while it lives.
class FusedCalls {
 public:
  FusedCalls() {
    forward = backward = updates = sinks = 0;
    handle_ = at::addGlobalCallback(at::RecordFunctionCallback(&FusedCalls::seen).scopes({at::RecordScope::FUNCTION}));
  }
  ~FusedCalls() { at::removeCallback(handle_); }
  FusedCalls(const FusedCalls&) = delete;
  FusedCalls& operator=(const FusedCalls&) = delete;

  static int forward, backward, updates, sinks;

 private:
  static std::unique_ptr<at::ObserverContext> seen(const at::RecordFunction& call) {
    if (std::strcmp(call.name(), "npu::npu_fusion_attention") == 0) ++forward;
    if (std::strcmp(call.name(), "npu::npu_fusion_attention_grad") == 0) ++backward;
    if (std::strcmp(call.name(), "npu::npu_ring_attention_update") == 0) ++updates;
    if (std::strcmp(call.name(), "aten::logaddexp") == 0) ++sinks;
    return nullptr;
  }
  at::CallbackHandle handle_;
};
int FusedCalls::forward = 0;
int FusedCalls::backward = 0;
int FusedCalls::updates = 0;
int FusedCalls::sinks = 0;

struct Input {
  Input(std::vector<int64_t> sizes, int64_t kv_heads, at::ScalarType type = at::kFloat)
      : q(at::randn(sizes).to(type)),
        k(at::randn({sizes[0], sizes[1], kv_heads, sizes[3]}).to(type)),
        v(at::randn({sizes[0], sizes[1], kv_heads, sizes[3]}).to(type)),
        grad(at::randn(sizes).to(type)) {}
  Tensor q, k, v, grad;
};

struct Gradients {
  Tensor out, q, k, v;
  Tensor sinks;  // undefined without
};

Gradients run(const Input& in, c10::Device device, const AttentionOptions& options, const std::vector<int64_t>& cuts) {
  const auto leaf = [&](const Tensor& x) { return x.to(device).detach().requires_grad_(true); };
  const Tensor q = leaf(in.q), k = leaf(in.k), v = leaf(in.v);
  AttentionOptions own = options;
  if (options.sinks.defined()) own.sinks = leaf(options.sinks.to(in.q.scalar_type()));
  const Tensor out = attention(q, k, v, own, cuts);
  EXPECT_THAT(out.grad_fn()->name(),
              ::testing::HasSubstr("CppNode"));  // not that of libtorch's operators, which save more
  out.backward(in.grad.to(device));
  return {out.detach(), q.grad(), k.grad(), v.grad(), own.sinks.defined() ? own.sinks.grad() : Tensor()};
}

void expect_near(const Tensor& got, const Tensor& wanted, double relative) {
  const double off = (got.to(at::kCPU, at::kDouble) - wanted.to(at::kDouble)).abs().max().item<double>();
  EXPECT_LE(off, relative * (1 + wanted.abs().max().item<double>()));
}

// Runs |in| on the device and in fp64 on the host. The bound is for sums of up to some hundred terms, each of which is
// rounded a few times.
void check(const Input& in, const AttentionOptions& options, const std::vector<int64_t>& cuts, int fused_calls,
           bool applies_sinks = false) {
  const FusedCalls count;
  const Gradients got = run(in, npu(), options, cuts);
  EXPECT_EQ(FusedCalls::sinks > 0, applies_sinks);
  EXPECT_EQ(FusedCalls::forward, fused_calls);
  EXPECT_EQ(FusedCalls::backward, fused_calls);
  Input wide = in;
  for (Tensor* each : {&wide.q, &wide.k, &wide.v, &wide.grad}) *each = each->to(at::kDouble);
  const Gradients right = run(wide, c10::kCPU, options, cuts);
  const bool narrow = in.q.scalar_type() == at::kBFloat16 || in.q.scalar_type() == at::kHalf;
  const double bound = in.q.scalar_type() == at::kDouble ? 1e-12 : narrow ? 2e-2 : 1e-5;
  expect_near(got.out, right.out, bound);
  expect_near(got.q, right.q, bound);
  expect_near(got.k, right.k, bound);
  expect_near(got.v, right.v, bound);
  ASSERT_EQ(got.sinks.defined(), right.sinks.defined());
  if (got.sinks.defined()) expect_near(got.sinks, right.sinks, bound);
}

TEST(AscendAttention, IsTheFusedKernelWithinItsLimits) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kHalf}) {
    SCOPED_TRACE(c10::toString(type));
    check(Input({2, 33, 6, 16}, 2, type), {}, {}, 1);
    check(Input({2, 33, 6, 16}, 6, type), {.causal = false}, {}, 1);
    check(Input({2, 33, 6, 16}, 3, type), {.window = 7}, {}, 1);
    check(Input({1, 40, 4, 16}, 2, type), {}, {0, 9, 9, 25, 40}, 1);
    check(Input({1, 40, 4, 16}, 2, type), {.window = 5, .scale = 0.3}, {0, 9, 25, 40}, 1);
    check(Input({1, 40, 4, 16}, 4, type), {.causal = false}, {0, 1, 40}, 1);
  }
}

TEST(AscendAttention, IsTheReferenceBeyondThem) {
  check(Input({2, 9, 4, 16}, 2, at::kDouble), {}, {}, 0);
  check(Input({1, 3, 257, 8}, 257), {}, {}, 0);
  check(Input({1, 3, 2, 776}, 1), {}, {}, 0);
  std::vector<int64_t> cuts(1026);
  for (size_t i = 0; i < cuts.size(); ++i) cuts[i] = static_cast<int64_t>(i);
  check(Input({1, 1025, 1, 8}, 1), {}, cuts, 0);
}

// torch_npu's derivative takes sinks with 16-bit types only. The sinks are as large as the scores, so that they matter.
TEST(AscendAttention, TakesSinksIntoTheFusedKernel) {
  const Tensor sinks = at::randn({6}).to(at::kBFloat16).to(at::kFloat);
  for (const at::ScalarType type : {at::kBFloat16, at::kHalf}) {
    SCOPED_TRACE(c10::toString(type));
    check(Input({2, 33, 6, 16}, 2, type), {.sinks = sinks}, {}, 1);
    check(Input({2, 33, 6, 16}, 3, type), {.window = 7, .sinks = sinks}, {}, 1);
    check(Input({1, 40, 6, 16}, 2, type), {.window = 5, .sinks = sinks}, {0, 9, 9, 25, 40}, 1);
  }
  check(Input({2, 33, 6, 16}, 2), {.sinks = sinks}, {}, 1, /*applies_sinks=*/true);
  const Input in({2, 33, 6, 16}, 2, at::kBFloat16);
  const AttentionOptions options{.sinks = sinks.to(npu(), at::kBFloat16)};
  const Tensor once = attention(in.q.to(npu()), in.k.to(npu()), in.v.to(npu()), options);  // without derivatives
  expect_near(once, run(in, npu(), {.sinks = sinks}, {}).out.to(at::kCPU), 0);
}

// Parts of the keys, merged by the vendor's update where it takes the sizes.
TEST(AscendAttention, PartsAreMergedByTheVendorsUpdate) {
  const auto merges = [](const Input& in, int updates) {
    const auto part = [&](int64_t begin, int64_t count, bool causal) {
      AttentionPart made = attention_part(in.q.to(npu()), in.k.narrow(1, begin, count).to(npu()),
                                          in.v.narrow(1, begin, count).to(npu()), {.causal = causal});
      made.out = made.out.to(at::kFloat);
      return made;
    };
    const int64_t tokens = in.q.size(1);
    const FusedCalls calls;
    const AttentionPart own = part(tokens, tokens, true), others = part(0, tokens, false);
    const AttentionForward got = as_forward(merged(own, others));
    // Slices of a larger result, as in a step of ring attention for some of the queries.
    const AttentionPart some = merged(own.queries(2, 3), others.queries(2, 3));
    EXPECT_EQ(FusedCalls::updates, updates);
    Input wide = in;
    for (Tensor* each : {&wide.q, &wide.k, &wide.v}) *each = each->to(at::kDouble);
    const AttentionForward right = attention_forward(wide.q, wide.k, wide.v, {.causal = true});
    const double bound = in.q.scalar_type() == at::kFloat ? 1e-5 : 2e-2;
    expect_near(got.out, right.out, bound);
    expect_near(got.lse, right.lse, bound);
    expect_near(some.out, right.out.narrow(1, 2, 3), bound);
    expect_near(as_forward(some).lse, right.lse.narrow(2, 2, 3), bound);
  };
  const auto input = [](int64_t rows, int64_t heads, int64_t width, at::ScalarType type) {
    Input in({rows, 9, heads, width}, heads / 2, type);
    in.k = at::randn({rows, 18, heads / 2, width}).to(type);
    in.v = at::randn({rows, 18, heads / 2, width}).to(type);
    return in;
  };
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kHalf}) {
    SCOPED_TRACE(c10::toString(type));
    merges(input(1, 4, 24, type), 2);  // [S, B, N n]
    merges(input(3, 4, 64, type), 2);  // [T, N, n]
    merges(input(3, 4, 24, type), 0);  // several rows with heads must be multiples of 64
    merges(input(3, 4, 768, type), 2);
  }
}

// As in ring attention, the log-sum-exps of parts of the keys are merged, and the gradients of a part follow from the
// merged result.
TEST(AscendAttention, OfPartsOfTheKeysMakesTheWhole) {
  const Input in({2, 12, 4, 16}, 2);
  const auto on_device = [&](const Tensor& x) { return x.to(npu()); };
  const AttentionOptions all{.causal = false};
  const AttentionForward whole = attention_forward(in.q, in.k, in.v, all);
  Tensor lse;
  std::vector<Tensor> keys, values;
  Tensor queries;
  for (const int64_t begin : {0, 5}) {
    const int64_t count = begin == 0 ? 5 : 7;
    const Tensor q = on_device(in.q), k = on_device(in.k.narrow(1, begin, count)),
                 v = on_device(in.v.narrow(1, begin, count));
    const Tensor part = attention_forward(q, k, v, all).lse.to(at::kCPU);
    lse = lse.defined() ? lse.logaddexp(part) : part;
    const AttentionBackward grads =
        attention_backward(on_device(in.grad), q, k, v, {on_device(whole.out), on_device(whole.lse)}, all);
    queries = queries.defined() ? queries + grads.dq.to(at::kCPU) : grads.dq.to(at::kCPU);
    keys.push_back(grads.dk.to(at::kCPU));
    values.push_back(grads.dv.to(at::kCPU));
  }
  expect_near(lse, whole.lse, 1e-5);
  const AttentionBackward right = attention_backward(in.grad, in.q, in.k, in.v, whole, all);
  expect_near(queries, right.dq, 1e-5);
  expect_near(at::cat(keys, 1), right.dk, 1e-5);
  expect_near(at::cat(values, 1), right.dv, 1e-5);
}

}  // namespace
}  // namespace concord
