#include "core/ops/optimizer/adamw.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>
#include <fmt/core.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <optional>

#include "core/ops/optimizer/block_codes.h"
#include "core/ops/testing/samples.h"
#include "core/optim/grad_norm.h"
#include "core/optim/rules/adamw.h"
#include "core/torch/device.h"
#include "core/torch/remainder.h"

namespace concord::ops::testing::of_adamw {
namespace {

// Returns nullopt, a finite factor, or one with which nothing is updated.
c10::IValue draw_factor(Draw& draw) {
  constexpr double kFactors[] = {0.25, std::numeric_limits<double>::quiet_NaN(),
                                 std::numeric_limits<double>::infinity()};
  const int64_t which = draw.between(-2, 2);
  return which < 0 ? c10::IValue() : c10::IValue(at::tensor({kFactors[which]}, at::kFloat));
}

// Tensors of the weights' type, some of them unaligned parts of a flat buffer, with or without 16-bit values.
Sample draw_adamw(Draw& draw, c10::ScalarType type) {
  const auto sums = type == at::kDouble ? type : at::kFloat;
  const bool narrow = type == at::kBFloat16 || type == at::kHalf;
  c10::List<at::Tensor> weights, m, v, values, grads;
  const int64_t tensors = draw.between(1, 3);
  for (int64_t i = 0; i < tensors; ++i) {
    const int64_t count = draw.size() * draw.size(), shift = draw.between(0, 5);
    const auto part = [&](c10::ScalarType of) { return draw.normal({count + shift}, of).narrow(0, shift, count); };
    weights.push_back(part(sums));
    m.push_back(part(sums));
    v.push_back(part(sums).abs());
    if (narrow) values.push_back(part(type));
    grads.push_back(part(type));
  }
  const double t = static_cast<double>(draw.between(1, 9));
  // What a step adds is at most step_size * |m| / root, and root is not below eps: here some ten.
  return {{weights, m, v, values, grads, draw_factor(draw), draw.coin() ? 1.0 : 0.125, 1 - 1e-3, 0.1, 0.999, 1 - 0.999,
           1e-2 / (1 - std::pow(0.9, t)), std::sqrt(1 - std::pow(0.999, t)), 0.05},
          64,
          {}};
}

const RegisterSamples kSamples("concord::adamw_", draw_adamw);

const RegisterSamples kNarrow("concord::adamw_narrow_", [](Draw& draw, c10::ScalarType type) {
  return narrow_adamw_sample(draw, type, {draw.between(1, 3), draw.size() * draw.size()});
});

// ------------------------------------------------------------------------------------------ narrow moments, bit by bit

// Moments of a segment in all its forms.
struct Moment {
  at::Tensor kept, scales, table;

  Moment(const at::Tensor& wide, c10::ScalarType type, CodeMap map)
      : kept(at::empty(wide.sizes(), wide.options().dtype(type))), table(code_table(map, wide.device())) {
    if (type == at::kByte) scales = at::empty({wide.numel() / kStateBlock}, wide.options());
    store(wide);
  }
  at::Tensor wide() const {
    const at::Tensor values = kept.to(at::kFloat, /*non_blocking=*/false, /*copy=*/true);
    if (scales.defined()) decode_blocks(kept, scales, table, values);
    return values;
  }
  void store(const at::Tensor& wide) const {
    scales.defined() ? encode_blocks(wide, table, kept, scales) : void(kept.copy_(wide));
  }
  bool equals(const Moment& other) const {
    return kept.equal(other.kept) && (!scales.defined() || scales.equal(other.scales));
  }
};

struct MomentTypes {
  c10::ScalarType m, v, grads, values;
  bool has_remainder = false;
};

// Tensors of one step, twice: for the update in one pass, and for that of widened moments.
class NarrowAdamW {
 public:
  NarrowAdamW(c10::Device device, const MomentTypes& types, const std::vector<int64_t>& counts) : types_(types) {
    Draw draw(11);
    const auto drawn = [&](int64_t count, c10::ScalarType type) { return draw.normal({count}, type).to(device); };
    for (const int64_t count : counts) {
      const at::Tensor m = drawn(count, at::kFloat), v = drawn(count, at::kFloat).square();
      if (count >= 3 * kStateBlock) {  // a block of zeros, one of tiny numbers and one with a few large ones
        m.narrow(0, 0, kStateBlock).zero_();
        v.narrow(0, 0, 2 * kStateBlock).mul_(1e-30);
        v.narrow(0, 2 * kStateBlock, 3).mul_(1e6);
      }
      const at::Tensor weights = types.has_remainder
                                     ? draw.integers({count}, -(1 << 15), (1 << 15) - 1).to(device, at::kShort)
                                     : drawn(count, at::kFloat);
      one_.push_back({weights, Moment(m, types.m, CodeMap::dynamic_signed),
                      Moment(v, types.v, CodeMap::dynamic_unsigned), drawn(count, types.values),
                      drawn(count, types.grads)});
      other_.push_back(one_.back().copy());
    }
  }

  void expect_equal_after(const AdamWStep& step, const std::optional<at::Tensor>& factor) {
    AdamWLists lists;
    for (const Tensors& t : one_) {
      lists.weights.push_back(t.weights);
      lists.m.push_back(t.m.kept);
      lists.v.push_back(t.v.kept);
      if (types_.m == at::kByte) lists.m_scales.push_back(t.m.scales);
      if (types_.v == at::kByte) lists.v_scales.push_back(t.v.scales);
      lists.values.push_back(t.values);
      lists.grads.push_back(t.grads);
    }
    adamw_(lists, step, factor);
    for (size_t i = 0; i < one_.size(); ++i) {
      const Tensors& t = other_[i];
      const at::Tensor m = t.m.wide(), v = t.v.wide();
      if (types_.has_remainder) {
        const at::Tensor wide = at::empty_like(m);
        join_remainder(t.values, t.weights, wide);
        adamw_({{wide}, {m}, {v}, {}, {t.grads}}, step, factor);
        split_remainder(wide, t.values, t.weights);
      } else {
        adamw_({{t.weights}, {m}, {v}, {t.values}, {t.grads}}, step, factor);
      }
      t.m.store(m);
      t.v.store(v);
      EXPECT_TRUE(one_[i].weights.equal(t.weights)) << i;
      EXPECT_TRUE(one_[i].values.equal(t.values)) << i;
      EXPECT_TRUE(one_[i].m.equals(t.m)) << i;
      EXPECT_TRUE(one_[i].v.equals(t.v)) << i;
    }
  }

  void expect_kept_if_the_factor_is_not_finite(const AdamWStep& step) {
    AdamWLists lists;
    const Tensors &t = one_.front(), before = t.copy();
    lists = {{t.weights}, {t.m.kept}, {t.v.kept}, {t.values}, {t.grads}, {t.m.scales}, {t.v.scales}};
    if (types_.m != at::kByte) lists.m_scales.clear();
    if (types_.v != at::kByte) lists.v_scales.clear();
    adamw_(lists, step, at::full({1}, std::numeric_limits<float>::infinity(), t.weights.options().dtype(at::kFloat)));
    EXPECT_TRUE(t.weights.equal(before.weights));
    EXPECT_TRUE(t.values.equal(before.values));
    EXPECT_TRUE(t.m.equals(before.m));
    EXPECT_TRUE(t.v.equals(before.v));
  }

 private:
  struct Tensors {
    at::Tensor weights;
    Moment m, v;
    at::Tensor values, grads;

    Tensors copy() const {
      Tensors other = *this;
      for (at::Tensor* each : {&other.weights, &other.m.kept, &other.v.kept, &other.m.scales, &other.v.scales,
                               &other.values, &other.grads}) {
        if (each->defined()) *each = each->clone();
      }
      return other;
    }
  };

  MomentTypes types_;
  std::vector<Tensors> one_, other_;
};

// On the platform's device: a kernel for narrow moments has the bits of the composed update, over several steps.
TEST(NarrowAdamWOperator, HasTheBitsOfAnUpdateOfWidenedMoments) {
  const c10::Device device = torch_device(current_platform(), 0);
  const at::NoGradGuard no_grad;
  const auto codes = at::kByte, bf16 = at::kBFloat16, fp16 = at::kHalf, fp32 = at::kFloat;
  std::vector<int64_t> odd = {1, 3, 255, 256, 257, 1000, 70001}, blocks = {256, 4096, 512, 99 * 256};
  if (!device.is_cpu()) {  // more tensors than a launch takes, and more elements than all its blocks take at a time
    odd.insert(odd.end(), 60, 1023);
    blocks.insert(blocks.end(), 60, 1024);
    odd.push_back(3000001);
    blocks.push_back(3000064);
  }
  for (const MomentTypes& types :
       {MomentTypes{codes, codes, fp32, bf16}, MomentTypes{codes, codes, bf16, bf16},
        MomentTypes{codes, codes, fp16, fp16}, MomentTypes{bf16, bf16, fp32, bf16}, MomentTypes{bf16, bf16, bf16, bf16},
        MomentTypes{bf16, codes, fp32, bf16}, MomentTypes{codes, bf16, fp32, fp16},
        MomentTypes{fp32, codes, fp32, bf16}, MomentTypes{codes, fp32, bf16, bf16}, MomentTypes{bf16, fp32, fp32, bf16},
        MomentTypes{fp32, bf16, fp32, bf16}, MomentTypes{codes, codes, bf16, bf16, true},
        MomentTypes{bf16, bf16, fp32, bf16, true}, MomentTypes{fp32, fp32, fp32, bf16, true}}) {
    SCOPED_TRACE(fmt::format("{} {} {} {} {}", c10::toString(types.m), c10::toString(types.v),
                             c10::toString(types.grads), c10::toString(types.values), types.has_remainder));
    NarrowAdamW both(device, types, types.m == codes || types.v == codes ? blocks : odd);
    for (int t = 1; t <= 3; ++t) {
      const auto factor = t == 2 ? std::optional(at::full({1}, 0.3, at::TensorOptions(fp32).device(device)))
                                 : std::optional<at::Tensor>();
      both.expect_equal_after(adamw_step({0.9, 0.95, 1e-8}, 1e-3, 0.1, 0.5, t), factor);
    }
    both.expect_kept_if_the_factor_is_not_finite(adamw_step({0.9, 0.95, 1e-8}, 1e-3, 0.1, 0.5, 4));
  }
}

// Neighbours in memory are one array for a kernel; the last of them may end with half a tile.
TEST(NarrowAdamWOperator, UpdatesNeighboursInMemory) {
  const c10::Device device = torch_device(current_platform(), 0);
  const at::NoGradGuard no_grad;
  Draw draw(13);
  constexpr int64_t kCount = 5 * 1024 + 100;
  const auto flat = [&](c10::ScalarType type) { return draw.normal({kCount}, type).to(device); };
  const AdamWLists whole = {
      {flat(at::kFloat)}, {flat(at::kBFloat16)}, {flat(at::kBFloat16).abs()}, {flat(at::kHalf)}, {flat(at::kFloat)}};
  AdamWLists parts;
  std::vector<at::Tensor> AdamWLists::* const members[] = {&AdamWLists::weights, &AdamWLists::m, &AdamWLists::v,
                                                           &AdamWLists::values, &AdamWLists::grads};
  for (const auto member : members) {
    const at::Tensor copy = (whole.*member)[0].clone();
    parts.*member = copy.split_with_sizes({1024, 7, 1, 2048, kCount - 3080});
  }
  const AdamWStep step = adamw_step({0.9, 0.95, 1e-8}, 1e-3, 0.1, 0.5, 2);
  adamw_(whole, step);
  adamw_(parts, step);
  for (const auto member : members) EXPECT_TRUE((whole.*member)[0].equal(at::cat(parts.*member)));
}

TEST(AdamWOperator, DoesWhatTheLoopOfTheHostDoes) {
  Draw draw(7);
  constexpr int64_t kCount = 1000;
  AdamWLists lists;
  lists.weights = {draw.normal({kCount}, at::kFloat)};
  lists.m = {draw.normal({kCount}, at::kFloat)};
  lists.v = {draw.normal({kCount}, at::kFloat).abs()};
  lists.values = {draw.normal({kCount}, at::kBFloat16)};
  lists.grads = {draw.normal({kCount}, at::kBFloat16)};
  const auto copy = [](const std::vector<at::Tensor>& list) { return list[0].clone(); };
  const at::Tensor weights = copy(lists.weights), m = copy(lists.m), v = copy(lists.v), values = copy(lists.values);
  const AdamWStep step = adamw_step({0.9, 0.95, 1e-8}, 1e-3, 0.1, 0.5, 3);
  adamw(step,
        {{lists.grads[0].const_data_ptr(), FlatType::bf16},
         weights.data_ptr<float>(),
         m.data_ptr<float>(),
         v.data_ptr<float>(),
         {values.data_ptr(), FlatType::bf16}},
        0, kCount);
  adamw_(lists, step);
  // A few roundings of numbers around 1, and one of bf16 if a rounded value is on the boundary.
  EXPECT_LE(largest(lists.weights[0] - weights), 1e-6);
  EXPECT_LE(largest(lists.m[0] - m), 1e-6);
  EXPECT_LE(largest(lists.v[0] - v), 1e-6);
  EXPECT_TRUE(at::equal(lists.values[0], lists.weights[0].to(at::kBFloat16)));
  EXPECT_LE(largest(lists.values[0].to(at::kFloat) - values.to(at::kFloat)), 4.0 / 256);
}

// The value of the loss does not matter, only whether it is finite.
const RegisterSamples kFactor("concord::update_factor", [](Draw& draw, c10::ScalarType type) {
  const auto sums = type == at::kDouble ? type : at::kFloat;
  const at::Tensor squares = draw.normal({1}, sums, 3).square();
  const c10::IValue loss = draw.coin() ? c10::IValue(draw.normal({1}, sums)) : c10::IValue();
  return Sample{{squares, loss, draw.coin() ? 0.0 : 1.0, draw.coin() ? 1.0 : 4096.0}, 16};
});
TEST(UpdateFactor, HasTheBitsOfTheHostsClipFactor) {
  Draw draw(3);
  for (const double limit : {0.0, 1.0, 0.3}) {
    for (int i = 0; i < 20; ++i) {
      const at::Tensor squares = draw.normal({1}, at::kDouble, 4).square();
      const double divisor = 1 + 1000 * draw.normal({1}, at::kDouble).abs().item<double>();
      const double right = clip_factor(std::sqrt(squares.item<double>()), limit) / divisor;
      EXPECT_EQ(update_factor(squares, {}, limit, divisor).item<float>(), static_cast<float>(right));
      EXPECT_EQ(update_factor(squares, at::tensor({2.5f}), limit, divisor).item<float>(), static_cast<float>(right));
    }
  }
}

TEST(UpdateFactor, IsNotANumberIfTheNormOrTheLossIsNotFinite) {
  const double infinite = std::numeric_limits<double>::infinity(), none = std::numeric_limits<double>::quiet_NaN();
  const auto of = [](double squares, double loss, double limit) {
    return update_factor(at::tensor({squares}, at::kDouble), at::tensor({loss}, at::kFloat), limit, 2).item<float>();
  };
  for (const double limit : {0.0, 1.0}) {
    EXPECT_EQ(of(0.25, 7, limit), 0.5f);
    for (const double bad : {infinite, -infinite, none}) {
      EXPECT_TRUE(std::isnan(of(0.25, bad, limit))) << bad;
      EXPECT_TRUE(std::isnan(of(std::abs(bad), 7, limit))) << bad;
    }
  }
}

}  // namespace
}  // namespace concord::ops::testing::of_adamw
