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

// Rows of different lengths, grouped heads, windows, a cache that is a part of a larger one.
Sample draw_cached(Draw& draw, c10::ScalarType type) {
  const int64_t groups = draw.between(1, 3), kv_heads = draw.between(1, 3), n = draw.size();
  const int64_t rows = draw.between(1, 4), keys = draw.coin() ? draw.size() : 90 + draw.size();
  const int64_t window = draw.coin() ? draw.size() : 0;
  const at::Tensor q = draw.normal({rows, 1, kv_heads * groups, n}, type);
  at::Tensor k = draw.normal({rows, keys + 3, kv_heads, n}, type).narrow(1, 0, keys);
  const at::Tensor v = draw.normal({rows, keys, kv_heads, n}, type);
  const double scale = draw.coin() ? 1 / std::sqrt(static_cast<double>(n)) : 0.3;
  // 16-bit kernels round the probabilities before they multiply them with v.
  const double rounded = type == at::kBFloat16 ? 65536 * 2 : type == at::kHalf ? 8192 * 2 : 64;
  const double cap = draw.coin() ? 2 : 0;
  const c10::IValue sinks = draw.coin() ? c10::IValue(draw.normal({kv_heads * groups}, type)) : c10::IValue();
  return {{q, k, v, draw.integers({rows}, 1, keys), window, scale, cap, sinks}, rounded, {largest(v)}};
}

const RegisterSamples kCached("concord::cached_attention", draw_cached);
// A batch of two rows: heads, key heads and their size, the capacity in keys, and the keys of each row. Scores have a
// deviation of 2, as in real_attention.cpp.
struct RealSize {
  int64_t heads, kv_heads, n, keys, first, second;
  int64_t window = 0;
  bool sinks = false;
  bool aligned = true;
};

SampleMaker real_size(const RealSize& size) {
  return [size](Draw& draw, c10::ScalarType type) {
    const auto placed = [&](const at::Tensor& x) { return size.aligned ? x : misaligned(x); };
    const at::Tensor q = placed(draw.normal({2, 1, size.heads, size.n}, type, 2));
    const at::Tensor k = placed(draw.normal({2, size.keys, size.kv_heads, size.n}, type));
    const at::Tensor v = placed(draw.normal({2, size.keys, size.kv_heads, size.n}, type));
    const double rounded = type == at::kBFloat16 ? 65536 * 2 : type == at::kHalf ? 8192 * 2 : 64;
    const c10::IValue sinks = size.sinks ? c10::IValue(draw.normal({size.heads}, type)) : c10::IValue();
    const double scale = 1 / std::sqrt(static_cast<double>(size.n)), cap = size.sinks ? 30 : 0;
    const at::Tensor lengths = at::tensor({size.first, size.second}, at::kLong);
    return Sample{{q, k, v, lengths, size.window, scale, cap, sinks}, rounded, {largest(v)}};
  };
}

// Groups of heads that one block of a device processes together or separately, rows that end in the middle of a block's
// range, windows that start there.
const RegisterRealSizes kRealSizes("concord::cached_attention",
                                   {real_size({14, 2, 64, 700, 700, 513}), real_size({32, 8, 128, 9000, 9000, 1}),
                                    real_size({20, 2, 192, 1000, 128, 129, 200}),
                                    real_size({16, 16, 256, 300, 300, 77}),
                                    real_size({64, 8, 64, 2000, 1999, 640, 128, true}),
                                    real_size({14, 2, 64, 300, 300, 257, 0, true, false}),
                                    real_size({4, 2, 320, 200, 200, 100})});

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
