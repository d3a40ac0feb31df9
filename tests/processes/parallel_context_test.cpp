// Attention over sequences that are sharded over ranks, in real processes, compared with attention on the whole
// sequence in fp64.
//
// The bound. Scores are sums of n products, so exp of one has a relative error of at most (n + 2) u |s| with |s| the
// sum of magnitudes; a query's output is a mean of values with such weights, over at most S keys, merged from cp blocks
// that are each rounded to the tensors' type. Gradients are sums over at most S tokens of products of these.
#include <ATen/ops/cat.h>
#include <gmock/gmock.h>

#include <cmath>
#include <numeric>

#include "core/base/config_error.h"
#include "core/parallel/async_collectives.h"
#include "core/parallel/context_attention.h"
#include "core/parallel/context_slices.h"
#include "tests/processes/groups/group_job.h"
#include "tests/processes/parallel_samples.h"

namespace concord::tests {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Attend = decltype(&ring_attention);

struct Case {
  std::vector<int64_t> lengths;  // one: a batch of two such sequences; several: packed
  int64_t heads = 4;
  int64_t kv_heads = 2;
  int64_t window = 0;
  at::ScalarType type = at::kDouble;
  bool extras = false;  // a cap and sinks
};

constexpr int64_t kSize = 6;  // head size

bool is_packed(const Case& c) { return c.lengths.size() > 1; }
int64_t tokens_of(const Case& c) { return std::accumulate(c.lengths.begin(), c.lengths.end(), int64_t{0}); }

std::vector<int64_t> boundaries(const Case& c) {
  std::vector<int64_t> all;
  if (is_packed(c)) all.push_back(0);
  for (size_t i = 0; is_packed(c) && i < c.lengths.size(); ++i) all.push_back(all.back() + c.lengths[i]);
  return all;
}

at::Tensor tensor_of(const Case& c, int64_t heads, uint64_t seed) {
  std::vector<int64_t> shape{tokens_of(c), heads, kSize};
  if (!is_packed(c)) shape.insert(shape.begin(), 2);
  return sample(shape, seed, c.type);
}

struct AttentionOutcome {
  std::vector<at::Tensor> parts;  // out, dq, dk, dv and, if there are sinks, their gradient
};

template <class Function>
AttentionOutcome run(const std::vector<at::Tensor>& inputs, const at::Tensor& grad, Function attend) {
  std::vector<at::Tensor> leaves;
  for (const at::Tensor& input : inputs) leaves.push_back(input.clone().requires_grad_(true));
  const at::Tensor out = attend(leaves);
  out.backward(grad);
  AttentionOutcome outcome{{out.detach()}};
  for (const at::Tensor& leaf : leaves) outcome.parts.push_back(leaf.grad());
  return outcome;
}

double bound_of(const Case& c, size_t which, int64_t ranks) {
  const double n = kSize, tokens = static_cast<double>(tokens_of(c));
  const double score = std::sqrt(n);  // |s| <= n / sqrt(n), values are below 1
  const double unit = (tokens + 2 * (n + 2) * score + 16) * sum_rounding_of(c.type) +
                      (4.0 + static_cast<double>(ranks)) * rounding_of(c.type);
  const double group = static_cast<double>(c.heads / c.kv_heads);
  const double gradient = 2 * n / std::sqrt(n);  // gradient of a score: |g| |v| twice, times the scale
  // The gradient of a sink is the sum of p (grad out) over all queries of the batch.
  const double size[] = {1, gradient, gradient * tokens * group, tokens * group, 2 * tokens * n};
  return 4 * unit * size[which];
}

void check(ParallelContext& job, const Case& c, Attend attend) {
  ProcessGroup& group = job.group(GroupKind::cp);
  AttentionOptions options{.causal = true, .window = c.window};
  const std::vector<int64_t> cuts = boundaries(c);
  std::vector<at::Tensor> whole{tensor_of(c, c.heads, 1), tensor_of(c, c.kv_heads, 2), tensor_of(c, c.kv_heads, 3)};
  if (c.extras) whole.push_back(sample({c.heads}, 5, c.type));
  if (c.extras) options.cap = 0.8;
  const auto with = [&](const std::vector<at::Tensor>& leaves) {
    AttentionOptions all = options;
    if (c.extras) all.sinks = leaves[3];
    return all;
  };
  const at::Tensor grad = tensor_of(c, c.heads, 4);
  std::vector<at::Tensor> wide;
  for (const at::Tensor& each : whole) wide.push_back(each.to(at::kDouble));
  const AttentionOutcome wanted = run(wide, grad.to(at::kDouble), [&](const auto& leaves) {
    return attention(leaves[0], leaves[1], leaves[2], with(leaves), cuts);
  });

  const int64_t dim = is_packed(c) ? 0 : 1;
  const auto mine = [&](const at::Tensor& x) { return take_context_slices(x, c.lengths, dim, group); };
  std::vector<at::Tensor> own{here(mine(whole[0])), here(mine(whole[1])), here(mine(whole[2]))};
  if (c.extras) own.push_back(here(whole[3]));
  AttentionOutcome got = run(own, here(mine(grad)), [&](const auto& leaves) {
    return attend(leaves[0], leaves[1], leaves[2], group, with(leaves), cuts);
  });
  if (c.extras) {  // each rank's gradient covers its own queries
    const at::Tensor all = gather(got.parts[4].to(at::kDouble).unsqueeze(0), group, 0).take();
    got.parts[4] = all.sum(0).to(c.type);
  }
  const char* const names[] = {"out", "dq", "dk", "dv", "dsinks"};
  for (size_t i = 0; i < got.parts.size(); ++i) {
    EXPECT_EQ(got.parts[i].scalar_type(), c.type);
    const at::Tensor right = i < 4 ? mine(wanted.parts[i]) : wanted.parts[i];
    const double error = got.parts[i].to(at::kCPU, at::kDouble).sub(right).abs().max().item<double>();
    EXPECT_LE(error, bound_of(c, i, group.size())) << names[i] << " over " << group.size() << " ranks, " << c.type;
  }
}

void check_all(ParallelContext& job, Attend attend, bool windows) {
  for (const at::ScalarType type : {at::kDouble, at::kFloat, at::kBFloat16}) {
    check(job, {.lengths = {48}, .type = type}, attend);
    check(job, {.lengths = {16}, .heads = 2, .kv_heads = 2, .type = type}, attend);
    check(job, {.lengths = {16, 8, 40}, .type = type}, attend);
    check(job, {.lengths = {48}, .type = type, .extras = true}, attend);
    check(job, {.lengths = {16, 8, 40}, .type = type, .extras = true}, attend);
    if (windows) check(job, {.lengths = {48}, .window = 11, .type = type, .extras = true}, attend);
    if (windows) check(job, {.lengths = {48}, .window = 11, .type = type}, attend);
    if (windows) check(job, {.lengths = {16, 40}, .window = 5, .type = type}, attend);
  }
}

class ContextParallel : public ::testing::TestWithParam<int> {};

TEST_P(ContextParallel, RingAttentionIsThatOfTheWholeSequence) {
  expect_job(GetParam(), {.context_parallel_size = GetParam()},
             [](ParallelContext& job) { check_all(job, ring_attention, false); });
}

TEST_P(ContextParallel, GatheredAttentionIsThatOfTheWholeSequenceAlsoWithAWindow) {
  expect_job(GetParam(), {.context_parallel_size = GetParam()},
             [](ParallelContext& job) { check_all(job, gathered_attention, true); });
}

// Also with fewer key heads than ranks, and with 6 key heads over 4 ranks, of which neither divides the other.
TEST_P(ContextParallel, UlyssesAttentionIsThatOfTheWholeSequence) {
  expect_job(GetParam(), {.context_parallel_size = GetParam()}, [](ParallelContext& job) {
    for (const at::ScalarType type : {at::kDouble, at::kFloat, at::kBFloat16}) {
      for (const int64_t kv_heads : {1, 2, 4})
        check(job, {.lengths = {48}, .kv_heads = kv_heads, .type = type}, ulysses_attention);
      check(job, {.lengths = {16}, .heads = 12, .kv_heads = 6, .type = type}, ulysses_attention);
      check(job, {.lengths = {16, 8, 40}, .type = type}, ulysses_attention);
      check(job, {.lengths = {48}, .type = type, .extras = true}, ulysses_attention);
      check(job, {.lengths = {16, 8, 40}, .type = type, .extras = true}, ulysses_attention);
      check(job, {.lengths = {48}, .window = 11, .type = type, .extras = true}, ulysses_attention);
      check(job, {.lengths = {16, 40}, .window = 5, .type = type}, ulysses_attention);
    }
  });
}

INSTANTIATE_TEST_SUITE_P(OfRanks, ContextParallel, ::testing::Values(1, 2, 4));

TEST(ContextParallelTogether, WithTensorParallelismEachKeepsToItsOwnGroup) {
  expect_job(4, {.tensor_model_parallel_size = 2, .context_parallel_size = 2}, [](ParallelContext& job) {
    check(job, {.lengths = {48}}, ring_attention);
    check(job, {.lengths = {16, 8, 40}}, gathered_attention);
    check(job, {.lengths = {16, 8, 40}}, ulysses_attention);
  });
}

TEST(ContextParallelTogether, WhatCannotBeMeantIsRefusedWithTheNumbers) {
  expect_job(2, {.context_parallel_size = 2}, [](ParallelContext& job) {
    ProcessGroup& group = job.group(GroupKind::cp);
    const auto refusal = [&](int64_t tokens, const AttentionOptions& options,
                             std::vector<int64_t> cuts) -> std::string {
      const at::Tensor x = here(cuts.empty() ? sample({1, tokens, 2, kSize}, 1) : sample({tokens, 2, kSize}, 1));
      try {
        ring_attention(x, x, x, group, options, cuts);
      } catch (const ConfigError& error) {
        return error.what();
      }
      return "accepted";
    };
    EXPECT_THAT(refusal(7, {}, {}), AllOf(HasSubstr("14 tokens"), HasSubstr("2 ranks"), HasSubstr("multiple of 4")));
    EXPECT_THAT(refusal(8, {.window = 4}, {}), HasSubstr("window = 4"));
    EXPECT_THAT(refusal(8, {}, {0, 6, 16}), HasSubstr("6 tokens"));
    EXPECT_THAT(refusal(8, {}, {0, 8, 12}), HasSubstr("16"));
    const at::Tensor three_heads = here(sample({1, 8, 3, kSize}, 1));
    try {
      ulysses_attention(three_heads, three_heads, three_heads, group);
      ADD_FAILURE() << "3 heads were split over 2 ranks";
    } catch (const ConfigError& error) {
      EXPECT_THAT(error.what(), AllOf(HasSubstr("1 x 2 ranks"), HasSubstr("3 heads"), HasSubstr("cp_comm_type p2p")));
    }
  });
}

}  // namespace
}  // namespace concord::tests
