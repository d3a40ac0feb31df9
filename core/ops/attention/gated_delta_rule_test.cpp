#include "core/ops/attention/gated_delta_rule.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/softplus.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>

#include "core/base/config_error.h"
#include "core/ops/testing/samples.h"
#include "core/ops/visit_type.h"

namespace concord::ops::testing::of_gated_delta_rule {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

// Returns the smallest length along the last dimension: gradients of unit vectors are divided by it.
double shortest(const at::Tensor& x) { return std::sqrt(x.to(at::kDouble).square().sum(-1).min().item<double>()); }

// Draws vectors of at least length 1/2: finite differences of a unit vector have an error of the fifth power of step /
// length.
at::Tensor draw_long(Draw& draw, std::vector<int64_t> sizes, c10::ScalarType type) {
  const at::Tensor x = draw.normal(std::move(sizes), at::kDouble), length = x.square().sum(-1, true).sqrt();
  return (x * (1 + 0.5 / length)).to(type);
}

struct Drawn {
  at::Tensor q, k, v, g, beta;
};

Drawn draw_heads(Draw& draw, c10::ScalarType type, int64_t rows, int64_t tokens) {
  const int64_t key_heads = draw.between(1, 2), groups = draw.between(1, 2), n = draw.between(2, 9);
  const int64_t heads = key_heads * groups, m = draw.between(1, 9);
  const auto sums = sum_type(type);
  return {draw_long(draw, {rows, tokens, key_heads, n}, type), draw_long(draw, {rows, tokens, key_heads, n}, type),
          draw.normal({rows, tokens, heads, m}, type),
          -at::softplus(draw.normal({rows, tokens, heads}, sums, 3)),  // some forget nearly everything in one token
          draw.normal({rows, tokens, heads}, sums).sigmoid()};
}

// More tokens than a chunk, packed sequences, one of them empty.
Sample draw_rule(Draw& draw, c10::ScalarType type) {
  const bool packed = draw.coin();
  const int64_t tokens = draw.coin() ? draw.size() : 64 + draw.size();
  const std::vector<int64_t> cuts =
      packed ? std::vector<int64_t>{0, tokens / 3, tokens / 3, tokens} : std::vector<int64_t>{};
  const Drawn x = draw_heads(draw, type, packed ? 1 : 2, tokens);
  // A token adds at most |v| to the state; queries have unit length.
  const double size = largest(x.v) * std::sqrt(static_cast<double>(tokens));
  return {{x.q, x.k, x.v, x.g, x.beta, c10::IValue(), cuts}, 64, {size, size}};
}

Sample draw_backward(Draw& draw, c10::ScalarType type) {
  const Sample made = draw_rule(draw, type);
  const auto tensor = [&](size_t i) { return made.arguments[i].toTensor(); };
  const at::Tensor grad = draw.normal(tensor(2).sizes().vec(), type);
  const double tokens = static_cast<double>(grad.size(1));
  const double size = largest(grad) * std::sqrt(tokens), product = size * (1 + largest(tensor(2))) * std::sqrt(tokens);
  const std::vector<double> sizes{product / shortest(tensor(0)), product / shortest(tensor(1)), size, product, product};
  return {{grad, tensor(0), tensor(1), tensor(2), tensor(3), tensor(4), made.arguments[6]}, 64, sizes};
}

const RegisterSamples kForward("concord::gated_delta_rule", draw_rule);
const RegisterSamples kBackward("concord::gated_delta_rule_backward", draw_backward);

at::Tensor unit(const at::Tensor& x) { return x * ((x * x).sum(-1, true) + 1e-6).rsqrt(); }

// Token by token, by the definition in the header.
DeltaRule one_by_one(const Drawn& x, at::Tensor state) {
  const int64_t groups = x.v.size(2) / x.k.size(2);
  const at::Tensor q = unit(x.q).repeat_interleave(groups, 2) / std::sqrt(static_cast<double>(x.q.size(3)));
  const at::Tensor k = unit(x.k).repeat_interleave(groups, 2);
  std::vector<at::Tensor> out;
  for (int64_t t = 0; t < x.v.size(1); ++t) {
    const at::Tensor key = k.select(1, t).unsqueeze(-1);
    state = state * x.g.select(1, t).exp().unsqueeze(-1).unsqueeze(-1);
    const at::Tensor error = x.v.select(1, t) - (state * key).sum(-2);
    state = state + key * (error * x.beta.select(1, t).unsqueeze(-1)).unsqueeze(-2);
    out.push_back((state * q.select(1, t).unsqueeze(-1)).sum(-2));
  }
  return {at::stack(out, 1), state};
}

at::Tensor zero_state(const Drawn& x) {
  return at::zeros({x.v.size(0), x.v.size(2), x.k.size(3), x.v.size(3)}, at::kDouble);
}

TEST(GatedDeltaRule, IsThatOfOneTokenAfterAnotherWithItsGradients) {
  for (const int64_t tokens : {1, 3, 64, 150}) {
    Draw draw(static_cast<uint64_t>(tokens));
    const Drawn x = draw_heads(draw, at::kDouble, 2, tokens);
    const std::vector<at::Tensor> inputs{x.q, x.k, x.v, x.g, x.beta};
    for (const at::Tensor& each : inputs) each.requires_grad_(true);
    const at::Tensor grad = draw.normal(x.v.sizes().vec(), at::kDouble);
    const DeltaRule got = gated_delta_rule(x.q, x.k, x.v, x.g, x.beta), expected = one_by_one(x, zero_state(x));
    EXPECT_LE(largest(got.out - expected.out), 1e-12) << tokens;
    EXPECT_LE(largest(got.state - expected.state), 1e-12) << tokens;
    const auto got_grads = torch::autograd::grad({got.out}, inputs, {grad});
    const auto expected_grads = torch::autograd::grad({expected.out}, inputs, {grad});
    for (size_t i = 0; i < inputs.size(); ++i) {
      EXPECT_LE(largest(got_grads[i] - expected_grads[i]), 1e-10 * (1 + largest(expected_grads[i])))
          << tokens << ", " << i;
    }
  }
}

// The same key for all tokens and no decay: the worst case for inverting the triangular system, whose powers grow with
// binomial coefficients. In fp32.
TEST(GatedDeltaRule, IsExactWhereAllKeysAreTheSame) {
  Draw draw(5);
  const at::Tensor k = draw.normal({1, 1, 1, 8}, at::kFloat).expand({1, 64, 1, 8}),
                   v = draw.normal({1, 64, 1, 4}, at::kFloat);
  const at::Tensor g = at::zeros({1, 64, 1}), beta = at::ones({1, 64, 1});
  const DeltaRule got = gated_delta_rule(k, k, v, g, beta);
  const Drawn exact{k.to(at::kDouble), k.to(at::kDouble), v.to(at::kDouble), g.to(at::kDouble), beta.to(at::kDouble)};
  EXPECT_LE(largest(got.out - one_by_one(exact, zero_state(exact)).out), 1e-5);
}

TEST(GatedDeltaRule, GoesOnFromAStateAndTokensThatChangeNothing) {
  Draw draw(3);
  const Drawn x = draw_heads(draw, at::kDouble, 2, 80);
  const auto part = [&](int64_t begin, int64_t count) {
    const auto cut = [&](const at::Tensor& each) { return each.narrow(1, begin, count); };
    return Drawn{cut(x.q), cut(x.k), cut(x.v), cut(x.g), cut(x.beta)};
  };
  const auto run = [](const Drawn& some, const at::Tensor& state) {
    return gated_delta_rule(some.q, some.k, some.v, some.g, some.beta, state);
  };
  Drawn padded = part(0, 70);
  padded.g = padded.g.clone();
  padded.beta = padded.beta.clone();
  padded.g.narrow(1, 65, 5).zero_();
  padded.beta.narrow(1, 65, 5).zero_();
  const DeltaRule first = run(padded, {}), second = run(part(65, 1), first.state),
                  rest = run(part(66, 14), second.state);
  const DeltaRule whole = run(x, {});
  EXPECT_LE(largest(rest.state - whole.state), 1e-12);
  EXPECT_LE(largest(second.out - whole.out.narrow(1, 65, 1)), 1e-12);
  EXPECT_LE(largest(rest.out - whole.out.narrow(1, 66, 14)), 1e-12);
}

TEST(GatedDeltaRule, RefusesSizesThatDoNotFit) {
  const at::Tensor q = at::ones({1, 4, 2, 3}), v = at::ones({1, 4, 3, 5}), gate = at::ones({1, 4, 3});
  EXPECT_THAT([&] { gated_delta_rule(q, q, v, gate, gate); },
              ThrowsMessage<ConfigError>(HasSubstr("key heads dividing heads")));
  const at::Tensor four = at::ones({1, 4, 4, 5}), gates = at::ones({1, 4, 4});
  EXPECT_THAT([&] { gated_delta_rule(q, q, four, gates.to(at::kDouble), gates); },
              ThrowsMessage<ConfigError>(HasSubstr("must be [B, S, heads] in Float")));
  EXPECT_THAT([&] { gated_delta_rule(q, q, four, gates, gates, at::ones({1, 4, 3, 4})); },
              ThrowsMessage<ConfigError>(HasSubstr("state is Float [1, 4, 3, 4]")));
  EXPECT_THAT([&] { gated_delta_rule(q.clone().requires_grad_(true), q, four, gates, gates, at::ones({1, 4, 3, 5})); },
              ThrowsMessage<ConfigError>(HasSubstr("has no derivative")));
}

}  // namespace
}  // namespace concord::ops::testing::of_gated_delta_rule
