// Which attention the fused kernel of torch_npu computes and which the reference, and that both are right. On the
// simulated CANN (sim_npu_attention); ops_test draws many more shapes.
#include "core/ops/attention/attention.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/randn.h>
#include <ATen/record_function.h>
#include <gtest/gtest.h>

#include <cstring>
#include <string>

#include "core/ops/attention/attention_parts.h"
#include "core/torch/device.h"
#include "platform/cpp/concord.hpp"

namespace concord {
namespace {

using at::Tensor;

c10::Device npu() { return torch_device(current_platform(), 0); }

// Counts the calls of torch_npu's fused attention while it lives.
class FusedCalls {
 public:
  FusedCalls() {
    forward = backward = 0;
    handle_ = at::addGlobalCallback(at::RecordFunctionCallback(&FusedCalls::seen).scopes({at::RecordScope::FUNCTION}));
  }
  ~FusedCalls() { at::removeCallback(handle_); }
  FusedCalls(const FusedCalls&) = delete;
  FusedCalls& operator=(const FusedCalls&) = delete;

  static int forward;
  static int backward;

 private:
  static std::unique_ptr<at::ObserverContext> seen(const at::RecordFunction& call) {
    if (std::strcmp(call.name(), "npu::npu_fusion_attention") == 0) ++forward;
    if (std::strcmp(call.name(), "npu::npu_fusion_attention_grad") == 0) ++backward;
    return nullptr;
  }
  at::CallbackHandle handle_;
};
int FusedCalls::forward = 0;
int FusedCalls::backward = 0;

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
};

Gradients run(const Input& in, c10::Device device, const AttentionOptions& options, const std::vector<int64_t>& cuts) {
  const auto leaf = [&](const Tensor& x) { return x.to(device).detach().requires_grad_(true); };
  const Tensor q = leaf(in.q), k = leaf(in.k), v = leaf(in.v);
  const Tensor out = attention(q, k, v, options, cuts);
  out.backward(in.grad.to(device));
  return {out.detach(), q.grad(), k.grad(), v.grad()};
}

void expect_near(const Tensor& got, const Tensor& wanted, double relative) {
  const double off = (got.to(at::kCPU, at::kDouble) - wanted.to(at::kDouble)).abs().max().item<double>();
  EXPECT_LE(off, relative * (1 + wanted.abs().max().item<double>()));
}

// Runs |in| on the device and in fp64 on the host. The bound is for sums of up to some hundred terms, each of which is
// rounded a few times.
void check(const Input& in, const AttentionOptions& options, const std::vector<int64_t>& cuts, int fused_calls) {
  const FusedCalls count;
  const Gradients got = run(in, npu(), options, cuts);
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
