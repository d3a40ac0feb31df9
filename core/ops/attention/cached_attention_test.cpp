#include "core/ops/attention/cached_attention.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>
#include <gmock/gmock.h>

#include <cmath>
#include <limits>

#include "core/base/config_error.h"
#include "core/ops/testing/samples.h"

namespace concord::ops::testing::of_cached_attention {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

// Compared with the last query of attention over a row's own keys, which is how a model computes the same token without
// a cache.
TEST(CachedAttention, IsTheLastRowOfAttentionOverTheKeysOfEachRow) {
  Draw draw(3);
  const at::Tensor k = draw.normal({3, 20, 2, 8}, at::kDouble), v = draw.normal({3, 20, 2, 8}, at::kDouble);
  const at::Tensor q = draw.normal({3, 20, 6, 8}, at::kDouble);
  const std::vector<int64_t> lengths = {20, 1, 9};
  for (const int64_t window : {0, 4, 5}) {
    AttentionOptions options{.causal = true, .window = window, .scale = 0.4};
    if (window == 5) options.cap = 0.5;
    if (window > 0) options.sinks = draw.normal({6}, at::kDouble);
    for (int64_t b = 0; b < 3; ++b) {
      const int64_t length = lengths[static_cast<size_t>(b)];
      const auto part = [&](const at::Tensor& x) { return x.narrow(0, b, 1).narrow(1, 0, length); };
      const at::Tensor expected = attention(part(q), part(k), part(v), options).narrow(1, length - 1, 1);
      const at::Tensor now = q.narrow(1, length - 1, 1);
      const at::Tensor all = cached_attention(now, k, v, at::tensor(lengths, at::kLong), options);
      EXPECT_LE(largest(all.narrow(0, b, 1) - expected), 1e-14) << "row " << b << ", window " << window;
    }
  }
}

TEST(CachedAttention, WhatIsBehindTheLengthMayBeAnything) {
  Draw draw(4);
  const at::Tensor q = draw.normal({1, 1, 2, 4}, at::kFloat);
  at::Tensor k = draw.normal({1, 6, 2, 4}, at::kFloat), v = draw.normal({1, 6, 2, 4}, at::kFloat);
  const at::Tensor length = at::tensor({4}, at::kLong);
  const at::Tensor before = cached_attention(q, k, v, length);
  k.narrow(1, 4, 2).fill_(std::numeric_limits<double>::quiet_NaN());
  v.narrow(1, 4, 2).fill_(std::numeric_limits<double>::quiet_NaN());
  EXPECT_EQ(largest(cached_attention(q, k, v, length) - before), 0);
}

TEST(CachedAttention, RefusesWhatDoesNotFit) {
  const at::Tensor q = at::full({2, 1, 4, 8}, 1.0), k = at::full({2, 5, 2, 8}, 1.0);
  const at::Tensor lengths = at::tensor({5, 5}, at::kLong);
  const auto refused = [](const char* text) { return ThrowsMessage<ConfigError>(HasSubstr(text)); };
  EXPECT_THAT([&] { cached_attention(q, k, k.narrow(1, 0, 4), lengths); }, refused("k and v must be"));
  EXPECT_THAT([&] { cached_attention(at::full({2, 2, 4, 8}, 1.0), k, k, lengths); }, refused("[batch, 1, heads, n]"));
  EXPECT_THAT([&] { cached_attention(at::full({2, 1, 3, 8}, 1.0), k, k, lengths); }, refused("multiple of kv_heads"));
  EXPECT_THAT([&] { cached_attention(q, k, k, lengths.narrow(0, 0, 1)); }, refused("lengths must be Long [batch]"));
  EXPECT_THAT([&] { cached_attention(q, k, k, lengths, {.window = -1}); }, refused("the window is -1"));
  EXPECT_THAT([&] { cached_attention(q, k, k, lengths, {.sinks = at::full({3}, 1.0)}); }, refused("must be [heads]"));
}

}  // namespace
}  // namespace concord::ops::testing::of_cached_attention
