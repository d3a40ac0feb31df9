#include "core/ops/attention/capped_attention.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/softmax.h>
#include <gmock/gmock.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>

#include "core/base/config_error.h"
#include "core/ops/attention/attention.h"
#include "core/ops/attention/attention_parts.h"
#include "core/ops/testing/samples.h"

namespace concord::ops::testing::of_capped_attention {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

// Grouped heads, more keys than queries, windows, packed sequences, more queries than a block.
Sample draw_capped(Draw& draw, c10::ScalarType type) {
  const int64_t groups = draw.between(1, 3), kv_heads = draw.between(1, 2), n = draw.between(1, 9);
  const bool packed = draw.coin(), causal = draw.coin() || draw.coin();
  const int64_t keys = draw.coin() ? draw.size() : 260 + draw.size();
  const int64_t queries = packed || draw.coin() ? keys : draw.between(1, keys);
  const std::vector<int64_t> cuts = packed ? std::vector<int64_t>{0, keys / 3, keys / 3, keys} : std::vector<int64_t>{};
  const int64_t window = causal && draw.coin() ? draw.size() : 0;
  const at::Tensor q = draw.normal({1, queries, kv_heads * groups, n}, type);
  const at::Tensor k = draw.normal({1, keys, kv_heads, n}, type), v = draw.normal({1, keys, kv_heads, n}, type);
  const double scale = draw.coin() ? 1 : 0.3, cap = draw.coin() ? 1.5 : 50;
  return {{q, k, v, cuts, causal, window, scale, cap},
          256,
          {largest(v), 4 + largest(q) * largest(k) * static_cast<double>(n)}};
}

AttentionOptions options_of(const std::vector<c10::IValue>& a) {
  return {.causal = a[4].toBool(), .window = a[5].toInt(), .scale = a[6].toDouble(), .cap = a[7].toDouble()};
}

Sample draw_backward(Draw& draw, c10::ScalarType type) {
  Sample made = draw_capped(draw, type);
  const auto tensor = [&](size_t i) { return made.arguments[i].toTensor(); };
  const AttentionForward whole =
      attention_forward(tensor(0).to(at::kDouble), tensor(1).to(at::kDouble), tensor(2).to(at::kDouble),
                        options_of(made.arguments), made.arguments[3].toIntVector());
  const auto sums = type == at::kDouble ? type : at::kFloat;
  const at::Tensor grad = draw.normal(tensor(0).sizes().vec(), type);
  const double size = largest(grad) * largest(tensor(2)) * (1 + largest(tensor(0)) + largest(tensor(1))) *
                      std::sqrt(static_cast<double>(grad.size(1) * grad.size(3)));
  std::vector<c10::IValue> arguments = {grad, tensor(0), tensor(1), tensor(2), whole.out.to(type), whole.lse.to(sums)};
  arguments.insert(arguments.end(), made.arguments.begin() + 3, made.arguments.end());
  const double rounded = type == at::kBFloat16 || type == at::kHalf ? 65536 * 2 : 256;
  return {arguments, rounded, {size, size, size}};
}

const RegisterSamples kForward("concord::capped_attention", draw_capped);
const RegisterSamples kBackward("concord::capped_attention_backward", draw_backward);

// Computes all scores as one matrix, like transformers.
at::Tensor in_one_matrix(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                         const AttentionOptions& options) {
  const int64_t groups = q.size(2) / k.size(2), tokens = q.size(1);
  const auto heads = [&](const at::Tensor& x) { return x.repeat_interleave(q.size(2) / x.size(2), 2).transpose(1, 2); };
  EXPECT_GT(groups, 1);
  const at::Tensor scores = at::matmul(heads(q), heads(k).transpose(2, 3)) * *options.scale;
  at::Tensor seen = at::ones({tokens, tokens}, at::kBool).tril();
  if (options.window > 0) seen = seen.logical_and(at::ones({tokens, tokens}, at::kBool).triu(1 - options.window));
  const at::Tensor bent = ((scores / options.cap).tanh() * options.cap).masked_fill(~seen, -INFINITY);
  return at::matmul(at::softmax(bent, -1), heads(v)).transpose(1, 2);
}

// Three blocks of queries.
TEST(CappedAttention, IsThatOfOneMatrixOfScoresWithItsGradients) {
  for (const int64_t window : {0, 100}) {
    const AttentionOptions options{.window = window, .scale = 0.7, .cap = 2.0};
    Draw draw(1);
    const auto leaf = [&](int64_t heads) {
      return draw.normal({2, 600, heads, 4}, at::kDouble, 2).requires_grad_(true);
    };
    const std::vector<at::Tensor> inputs{leaf(4), leaf(2), leaf(2)};
    const at::Tensor grad = draw.normal({2, 600, 4, 4}, at::kDouble);
    const at::Tensor got = attention(inputs[0], inputs[1], inputs[2], options);
    const at::Tensor expected = in_one_matrix(inputs[0], inputs[1], inputs[2], options);
    EXPECT_LE(largest(got - expected), 1e-13);
    const auto got_grads = torch::autograd::grad({got}, inputs, {grad});
    const auto expected_grads = torch::autograd::grad({expected}, inputs, {grad});
    for (size_t i = 0; i < 3; ++i) EXPECT_LE(largest(got_grads[i] - expected_grads[i]), 1e-11) << i;
  }
}

TEST(CappedAttention, RefusesACapThatIsNone) {
  const at::Tensor x = at::ones({1, 2, 2, 4});
  EXPECT_THAT([&] { attention(x, x, x, {.cap = -1}); }, ThrowsMessage<ConfigError>(HasSubstr("the cap is -1")));
}

}  // namespace
}  // namespace concord::ops::testing::of_capped_attention
