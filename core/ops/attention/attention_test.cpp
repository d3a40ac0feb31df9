#include "core/ops/attention/attention.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/zeros_like.h>
#include <gmock/gmock.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>
#include <numeric>

#include "core/base/config_error.h"
#include "core/ops/attention/attention_parts.h"
#include "core/ops/attention/attention_plan.h"
#include "core/ops/testing/samples.h"

namespace concord::ops::testing::of_attention {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

// Grouped heads, more keys than queries, windows, packed sequences (some of them empty), strides.
Sample draw_attention(Draw& draw, c10::ScalarType type) {
  const int64_t groups = draw.between(1, 3), kv_heads = draw.between(1, 3), n = draw.size();
  const bool packed = draw.coin();
  const bool causal = draw.coin() || draw.coin();
  const int64_t batch = packed ? 1 : draw.between(1, 3);
  std::vector<int64_t> cuts;
  int64_t keys = draw.coin() ? draw.size() : 90 + draw.size();
  if (packed) {
    cuts = {0};
    for (int64_t i = draw.between(1, 4); i > 0; --i) cuts.push_back(cuts.back() + (draw.coin() ? draw.size() : 0));
    if (cuts.back() == 0) cuts.back() = 5;
    keys = cuts.back();
  }
  const int64_t queries = packed || draw.coin() ? keys : draw.between(1, keys);
  const int64_t window = causal && draw.coin() ? draw.size() : 0;
  at::Tensor q = draw.normal({batch, queries, kv_heads * groups, n}, type);
  at::Tensor k = draw.normal({batch, keys, kv_heads, n}, type);
  const at::Tensor v = draw.normal({batch, keys, kv_heads, n}, type);
  if (draw.coin()) k = k.transpose(1, 2).contiguous().transpose(1, 2);
  const double scale = draw.coin() ? 1 / std::sqrt(static_cast<double>(n)) : 0.3;
  // 16-bit kernels round the probabilities before they multiply them with v.
  const double rounded = type == at::kBFloat16 ? 65536 * 2 : type == at::kHalf ? 8192 * 2 : 64;
  return {{q, k, v, cuts, causal, window, scale},
          rounded,
          {largest(v), 4 + largest(q) * largest(k) * static_cast<double>(n)}};
}

Sample draw_backward(Draw& draw, c10::ScalarType type) {
  Sample made = draw_attention(draw, type);
  const auto tensor = [&](size_t i) { return made.arguments[i].toTensor(); };
  const AttentionOptions options{made.arguments[4].toBool(), made.arguments[5].toInt(), made.arguments[6].toDouble()};
  const auto cuts = made.arguments[3].toIntVector();
  const AttentionForward whole =
      attention_forward(tensor(0).to(at::kDouble), tensor(1).to(at::kDouble), tensor(2).to(at::kDouble), options, cuts);
  const auto sums = type == at::kDouble ? type : at::kFloat;
  const at::Tensor grad = draw.normal(tensor(0).sizes().vec(), type);
  const double queries = static_cast<double>(grad.size(1) * grad.size(3));
  const double size =
      largest(grad) * largest(tensor(2)) * (1 + largest(tensor(0)) + largest(tensor(1))) * std::sqrt(queries);
  std::vector<c10::IValue> arguments = {grad, tensor(0), tensor(1), tensor(2), whole.out.to(type), whole.lse.to(sums)};
  arguments.insert(arguments.end(), made.arguments.begin() + 3, made.arguments.end());
  const double rounded = type == at::kBFloat16 || type == at::kHalf ? 65536 * 2 : 256;
  return {arguments, rounded, {size, size, size}};
}

// The reference rounds the result of attention before the sinks scale it.
Sample draw_with_sinks(Draw& draw, c10::ScalarType type) {
  Sample made = draw_attention(draw, type);
  made.arguments.insert(made.arguments.begin() + 3, draw.normal({made.arguments[0].toTensor().size(2)}, type, 2));
  made.magnitudes.resize(1);
  return made;
}

const RegisterSamples kForward("concord::attention", draw_attention);
const RegisterSamples kWithSinks("concord::attention_with_sinks", draw_with_sinks);
const RegisterSamples kBackward("concord::attention_backward", draw_backward);

struct Heads {
  explicit Heads(uint64_t seed, int64_t tokens = 37) {
    Draw draw(seed);
    q = draw.normal({2, tokens, 6, 8}, at::kDouble);
    k = draw.normal({2, tokens, 2, 8}, at::kDouble);
    v = draw.normal({2, tokens, 2, 8}, at::kDouble);
  }
  at::Tensor q, k, v;
};

TEST(Attention, IsLibtorchsWithGroupedHeads) {
  const Heads h(1);
  const at::Tensor expected =
      at::scaled_dot_product_attention(h.q.transpose(1, 2), h.k.transpose(1, 2), h.v.transpose(1, 2), {}, 0.0,
                                       /*is_causal=*/true, std::nullopt, /*enable_gqa=*/true);
  EXPECT_LE(largest(attention(h.q, h.k, h.v) - expected.transpose(1, 2)), 1e-13);
}

TEST(Attention, OfAWindowAsLongAsTheSequenceIsThatWithoutOne) {
  const Heads h(2);
  const at::Tensor all = attention(h.q, h.k, h.v);
  EXPECT_LE(largest(attention(h.q, h.k, h.v, {.window = 37}) - all), 1e-13);
  const at::Tensor shorter = attention(h.q, h.k, h.v, {.window = 36});
  EXPECT_LE(largest((shorter - all).narrow(1, 0, 36)), 1e-13);
  EXPECT_GT(largest((shorter - all).narrow(1, 36, 1)), 1e-6);  // only the last query sees one key less
}

// The last 4 queries, without grouped heads: one piece, which has 6 of the 37 keys.
TEST(Attention, KeysThatNoQuerySeesHaveAGradientOfZero) {
  Draw draw(3);
  const at::Tensor q = draw.normal({2, 4, 2, 8}, at::kDouble);
  const at::Tensor k = draw.normal({2, 37, 2, 8}, at::kDouble).requires_grad_(true),
                   v = draw.normal({2, 37, 2, 8}, at::kDouble);
  attention(q, k, v, {.window = 3}).square().sum().backward();
  ASSERT_EQ(k.grad().sizes(), k.sizes());
  EXPECT_EQ(largest(k.grad().narrow(1, 0, 31)), 0);
  EXPECT_GT(largest(k.grad().narrow(1, 31, 1)), 0);
}

TEST(Attention, OfPackedSequencesIsThatOfEachByItself) {
  const Heads h(3);
  const std::vector<int64_t> cuts = {0, 5, 5, 6, 37};
  const at::Tensor packed = attention(h.q[0], h.k[0], h.v[0], {.window = 9}, cuts);
  std::vector<at::Tensor> alone;
  for (size_t i = 0; i + 1 < cuts.size(); ++i) {
    const int64_t length = cuts[i + 1] - cuts[i];
    if (length == 0) continue;
    const auto part = [&](const at::Tensor& x) { return x.narrow(0, 0, 1).narrow(1, cuts[i], length); };
    alone.push_back(attention(part(h.q), part(h.k), part(h.v), {.window = 9})[0]);
  }
  EXPECT_LE(largest(packed - at::cat(alone)), 1e-13);
}

TEST(Attention, OfTheLastQueriesIsTheEndOfTheWhole) {
  const Heads h(4);
  const at::Tensor all = attention(h.q, h.k, h.v);
  const at::Tensor some = attention(h.q.narrow(1, 20, 17), h.k, h.v);
  EXPECT_LE(largest(some - all.narrow(1, 20, 17)), 1e-13);
}

// Like ring attention: two blocks of keys, merged by their log-sum-exp, and each block's gradient computed from the
// whole's.
TEST(Attention, OfBlocksOfKeysPutTogetherIsTheWholeWithItsGradients) {
  const Heads h(5);
  const AttentionOptions all{.causal = false};
  Draw draw(6);
  const at::Tensor grad = draw.normal(h.q.sizes().vec(), at::kDouble);
  const AttentionForward whole = attention_forward(h.q, h.k, h.v, all);
  const AttentionBackward expected = attention_backward(grad, h.q, h.k, h.v, whole, all);
  const auto block = [](const at::Tensor& x, int64_t i) { return i == 0 ? x.narrow(1, 0, 20) : x.narrow(1, 20, 17); };
  const AttentionPart parts = merged(attention_part(h.q, block(h.k, 0), block(h.v, 0), all),
                                     attention_part(h.q, block(h.k, 1), block(h.v, 1), all));
  at::Tensor dq = at::zeros_like(h.q);
  std::vector<at::Tensor> dk, dv;
  for (int64_t i = 0; i < 2; ++i) {
    const AttentionBackward back = attention_backward(grad, h.q, block(h.k, i), block(h.v, i), whole, all);
    dq += back.dq;
    dk.push_back(back.dk);
    dv.push_back(back.dv);
  }
  EXPECT_LE(largest(as_forward(parts).out - whole.out), 1e-13);
  EXPECT_LE(largest(as_forward(parts).lse - whole.lse), 1e-13);
  EXPECT_LE(largest(dq - expected.dq), 1e-12);
  EXPECT_LE(largest(at::cat(dk, 1) - expected.dk), 1e-12);
  EXPECT_LE(largest(at::cat(dv, 1) - expected.dv), 1e-12);
}

// Written out: an additional key of value 0 in every row.
TEST(Attention, WithSinksIsThatWithOneMoreKeyAndItsGradients) {
  const Heads h(9);
  Draw draw(10);
  const std::vector<at::Tensor> inputs{h.q.clone().requires_grad_(true), h.k.clone().requires_grad_(true),
                                       h.v.clone().requires_grad_(true),
                                       draw.normal({6}, at::kDouble).requires_grad_(true)};
  for (const double cap : {0.0, 1.5}) {
    const at::Tensor got = attention(inputs[0], inputs[1], inputs[2], {.window = 9, .cap = cap, .sinks = inputs[3]});
    const auto heads = [](const at::Tensor& x) { return x.repeat_interleave(6 / x.size(2), 2).transpose(1, 2); };
    at::Tensor scores = at::matmul(heads(inputs[0]), heads(inputs[1]).transpose(2, 3)) / std::sqrt(8.0);
    if (cap > 0) scores = (scores / cap).tanh() * cap;
    const at::Tensor seen = at::ones({37, 37}, at::kBool).tril().logical_and(at::ones({37, 37}, at::kBool).triu(-8));
    const at::Tensor sinks = inputs[3].view({1, 6, 1, 1}).expand({2, 6, 37, 1});
    const at::Tensor p = at::softmax(at::cat({scores.masked_fill(~seen, -INFINITY), sinks}, -1), -1).narrow(-1, 0, 37);
    const at::Tensor expected = at::matmul(p, heads(inputs[2])).transpose(1, 2);
    EXPECT_LE(largest(got - expected), 1e-13);
    const at::Tensor grad = draw.normal(h.q.sizes().vec(), at::kDouble);
    const auto slopes = [&](const at::Tensor& out) { return torch::autograd::grad({out}, inputs, {grad}); };
    const auto ours = slopes(got), theirs = slopes(expected);
    for (size_t i = 0; i < 4; ++i) EXPECT_LE(largest(ours[i] - theirs[i]), 1e-12) << i;
  }
}

TEST(Attention, RefusesSinksThatAreNotOnePerHead) {
  const Heads h(9);
  EXPECT_THAT([&] { attention(h.q, h.k, h.v, {.sinks = at::ones({2}, at::kDouble)}); },
              ThrowsMessage<ConfigError>(HasSubstr("sinks is Double [2]; must be [heads]")));
}

TEST(Attention, RefusesBoundariesThatAreNone) {
  const Heads h(7);
  const auto with = [&](std::vector<int64_t> cuts) { return attention(h.q[0], h.k[0], h.v[0], {}, cuts); };
  EXPECT_THAT([&] { with({1, 37}); }, ThrowsMessage<ConfigError>(HasSubstr("cu_seqlens is [1, 37]; must start at 0")));
  EXPECT_THAT([&] { with({0}); }, ThrowsMessage<ConfigError>(HasSubstr("cu_seqlens is [0]")));
  EXPECT_THAT([&] { with({0, 20, 10, 37}); },
              ThrowsMessage<ConfigError>(HasSubstr("cu_seqlens[2] is 10 after 20; must not decrease")));
  EXPECT_THAT([&] { with({0, 36}); },
              ThrowsMessage<ConfigError>(HasSubstr("cu_seqlens ends at 36, but there are 37 tokens")));
}

TEST(Attention, RefusesSizesThatDoNotFitAndNamesThem) {
  const Heads h(8);
  EXPECT_THAT([&] { attention(h.q.narrow(2, 0, 5), h.k, h.v); },
              ThrowsMessage<ConfigError>(HasSubstr("operator attention: 5 query heads cannot share 2 key heads")));
  EXPECT_THAT([&] { attention(h.q, h.k.narrow(1, 0, 5), h.v.narrow(1, 0, 5)); },
              ThrowsMessage<ConfigError>(HasSubstr("at least as many keys as queries")));
  EXPECT_THAT([&] { attention(h.q, h.k, h.v.narrow(3, 0, 4)); },
              ThrowsMessage<ConfigError>(HasSubstr("v Double [2, 37, 2, 4]")));
  EXPECT_THAT([&] { attention(h.q, h.k, h.v, {.causal = false, .window = 3}); },
              ThrowsMessage<ConfigError>(HasSubstr("the window is 3")));
}

TEST(AttentionPlan, CostsAsMuchAsTheWindowNotAsTheSequence) {
  const auto cells = [](const std::vector<AttentionPiece>& plan) {
    return std::accumulate(plan.begin(), plan.end(), int64_t{0},
                           [](int64_t sum, const AttentionPiece& p) { return sum + p.queries * p.keys; });
  };
  EXPECT_EQ(cells(attention_plan(4096, 4096, {}, {true, 0})), 4096 * 4096);
  EXPECT_LE(cells(attention_plan(4096, 4096, {}, {true, 256})), 4096 * 256 * 2);
}

TEST(AttentionPlan, InBlocksHasTheSameQueriesWithTheKeysThatTheySee) {
  using Sight = AttentionPiece::Sight;
  EXPECT_THAT(
      in_blocks({{0, 5, 0, 5, Sight::causal}, {5, 3, 7, 4, Sight::all}, {8, 3, 2, 6, Sight::windowed, 3, 4}}, 2),
      ElementsAre(AttentionPiece{0, 2, 0, 2, Sight::windowed, 0, 0}, AttentionPiece{2, 2, 0, 4, Sight::windowed, 2, 0},
                  AttentionPiece{4, 1, 0, 5, Sight::windowed, 4, 0}, AttentionPiece{5, 2, 7, 4, Sight::all},
                  AttentionPiece{7, 1, 7, 4, Sight::all}, AttentionPiece{8, 2, 2, 5, Sight::windowed, 3, 4},
                  AttentionPiece{10, 1, 2, 6, Sight::windowed, 5, 4}));
}

TEST(AttentionPlan, OfShortPackedSequencesIsOneSquareEach) {
  const std::vector<int64_t> cuts = {0, 3, 3, 4, 9};
  using Sight = AttentionPiece::Sight;
  EXPECT_THAT(attention_plan(9, 9, cuts, {true, 5}),
              ElementsAre(AttentionPiece{0, 3, 0, 3, Sight::causal}, AttentionPiece{3, 1, 3, 1, Sight::all},
                          AttentionPiece{4, 5, 4, 5, Sight::causal}));
}

}  // namespace
}  // namespace concord::ops::testing::of_attention
