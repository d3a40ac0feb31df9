// Main weights without an fp32 copy: rounding compared with its definition in integers, its mean, its independence of
// the layout, and sums of updates that rounding to nearest would lose.
#include "core/optim/main_weights.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <fmt/core.h>
#include <gmock/gmock.h>

#include <cmath>
#include <map>

#include "core/base/config_error.h"
#include "core/base/stable_hash.h"
#include "core/optim/rules/update_rule.h"
#include "platform/sdk/philox.hpp"
#include "tests/processes/parallel_samples.h"

namespace concord::of_main_weights {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;
using tests::sample;

constexpr int64_t kHigh = 1 << 16;
constexpr MainParamsType kInexact[] = {MainParamsType::kahan_sum, MainParamsType::bf16_stochastic_round};

std::vector<ShardRun> whole(int64_t size) {
  return {{.tensor = "w", .count = size, .run_length = size, .run_stride = size}};
}

at::Tensor rounded(const at::Tensor& wide, const std::vector<ShardRun>& runs, int64_t update) {
  const at::Tensor values = at::empty({wide.numel()}, at::kBFloat16);
  stochastic_round(wide.clone(), runs, update, values);
  return values;
}

// Segments with main weights of |type| that are |wide|.
Segment segment_of(MainParamsType type, const at::Tensor& wide) {
  Segment segment{
      .range = {0, wide.numel()}, .values = at::empty({wide.numel()}, at::kBFloat16), .runs = whole(wide.numel())};
  const auto kept = main_weights_type({.main_params_dtype = type}, at::kBFloat16);
  if (kept != at::ScalarType::Undefined) segment.remainder = at::empty({wide.numel()}, kept);
  store_weights(segment, wide.clone(), 1);
  return segment;
}

// The numbers have all low halves in steps of 7, below several high halves. The word of an element is that of its
// global index, here of the rows of a wider tensor.
TEST(MainWeights, StochasticRoundingIsThatOfItsDefinition) {
  constexpr int64_t kRow = 37, kStride = 101, kOffset = 5, kUpdate = 3;
  std::vector<at::Tensor> numbers;
  for (const int64_t high : {0, 1, 0x3f80, 0x42ff, 0x7f7f}) {
    for (const int64_t sign : {int64_t{0}, -(int64_t{1} << 31)}) {
      numbers.push_back(at::arange(0, kHigh, 7) + (high * kHigh + sign));
    }
  }
  const at::Tensor bits = at::cat(numbers), wide = bits.to(at::kInt).view(at::kFloat);
  const int64_t size = wide.numel() - wide.numel() % kRow;
  const std::vector<ShardRun> runs = {
      {.tensor = "w", .count = size, .offset = kOffset, .run_length = kRow, .run_stride = kStride}};
  const at::Tensor found = rounded(wide.narrow(0, 0, size), runs, kUpdate).view(at::kShort);
  int64_t ups = 0;
  for (int64_t i = 0; i < size; ++i) {
    const int64_t number = bits[i].item<int64_t>(), position = kOffset + i / kRow * kStride + i % kRow;
    const auto word = static_cast<uint32_t>(sdk::value_at(sdk::BitsI32(), stable_hash("stochastic_round") + kUpdate,
                                                          stable_hash("w"), static_cast<uint64_t>(position)));
    const int64_t low = number & (kHigh - 1);
    const bool is_up = low + (word & 0xffff) >= kHigh;
    ASSERT_EQ(found[i].item<int16_t>(), static_cast<int16_t>((number >> 16) + (is_up ? 1 : 0))) << i;
    ups += is_up;
  }
  EXPECT_NEAR(static_cast<double>(ups) / static_cast<double>(size), 0.5, 5 * 0.5 / std::sqrt(size));
}

// With p = low / 2^16 the deviation of a mean of N numbers is step sqrt(p (1 - p) / N) <= step / (2 sqrt(N)).
TEST(MainWeights, TheMeanOfStochasticRoundingIsTheNumber) {
  constexpr int kUpdates = 2000;
  const at::Tensor wide =
      at::cat({at::arange(64, at::kFloat) / 64 * 0x1p-7 + 1, -(at::arange(64, at::kFloat) / 64 * 0x1p-7 + 1)});
  at::Tensor sum = at::zeros({wide.numel()}, at::kDouble);
  for (int t = 1; t <= kUpdates; ++t) {
    const at::Tensor values = rounded(wide, whole(wide.numel()), t).to(at::kDouble);
    EXPECT_TRUE((values - wide).abs().lt(0x1p-7).all().item<bool>()) << "not a neighbour";
    sum += values;
  }
  EXPECT_LE((sum / kUpdates - wide).abs().max().item<double>(), 5 * 0x1p-7 / 2 / std::sqrt(kUpdates));
  EXPECT_FALSE(rounded(wide, whole(wide.numel()), 1).equal(rounded(wide, whole(wide.numel()), 2)));
}

TEST(MainWeights, StochasticRoundingKeepsExactNumbersNaNsAndInfinities) {
  const at::Tensor exact = sample({999}, 1, at::kBFloat16);
  EXPECT_TRUE(rounded(exact.to(at::kFloat), whole(999), 1).equal(exact));
  const at::Tensor special =
      at::cat({at::full({8}, 0x7fffffff, at::kInt), at::full({8}, -1, at::kInt), at::full({8}, 0x7f800000, at::kInt)});
  const at::Tensor values = rounded(special.view(at::kFloat), whole(24), 1);
  EXPECT_TRUE(values.narrow(0, 0, 16).isnan().all().item<bool>());
  EXPECT_TRUE(values.narrow(0, 16, 8).isinf().all().item<bool>());
}

// A tensor of two pieces, cut by columns and by rows over tp ranks, and in parts as the optimizer's shards are.
TEST(MainWeights, StochasticRoundingDoesNotDependOnTheLayout) {
  constexpr int64_t kRows = 12, kColumns = 20, kSize = kRows * kColumns;
  const auto spec = [](std::optional<ShardAxis> rows, std::optional<ShardAxis> columns) {
    return ShardSpec{.name = "qk",
                     .dims = {{.size = kRows, .cut = rows}, {.size = kColumns, .cut = columns}},
                     .pieces = {{"q", 8}, {"k", 4}}};
  };
  const at::Tensor wide = sample({kSize}, 1, at::kFloat);
  const auto round_shards = [&](const ShardSpec& cut, int64_t ranks, int64_t part) {
    std::map<std::string, at::Tensor> result;
    for (const char* name : {"q", "k"}) result[name] = at::zeros({kSize}, at::kBFloat16);
    for (int64_t rank = 0; rank < ranks; ++rank) {
      ShardPlace place;
      place.axes[static_cast<size_t>(ShardAxis::tp)] = {ranks, rank};
      const std::vector<ShardRun> runs = shard_runs(cut, place);
      for (int64_t begin = 0; begin < kSize / ranks; begin += part) {
        for (const ShardRun& run : cut_runs(runs, begin, std::min(begin + part, kSize / ranks))) {
          const at::Tensor i = at::arange(run.count);
          const at::Tensor index =
              i.floor_divide(run.run_length) * run.run_stride + i.remainder(run.run_length) + run.offset;
          ShardRun alone = run;
          alone.local = 0;
          result[run.tensor].index_put_({index}, rounded(wide.index({index}).contiguous(), {alone}, 1));
        }
      }
    }
    return result;
  };
  const auto expected = round_shards(spec({}, {}), 1, kSize);
  EXPECT_FALSE(expected.at("q").narrow(0, 0, 80).equal(expected.at("k").narrow(0, 0, 80)));
  for (const auto& [cut, ranks] : {std::pair(spec({}, {}), 1), std::pair(spec(ShardAxis::tp, {}), 2),
                                   std::pair(spec({}, ShardAxis::tp), 2), std::pair(spec({}, ShardAxis::tp), 4)}) {
    for (const int64_t part : {7, 64}) {
      const auto found = round_shards(cut, ranks, part);
      for (const auto& [name, values] : expected) EXPECT_TRUE(found.at(name).equal(values)) << name << ranks << part;
    }
  }
}

TEST(MainWeights, ACompensationKeepsSixteenBitsAndWhatItHolds) {
  const at::Tensor wide = sample({4096}, 1, at::kFloat);
  Segment segment = segment_of(MainParamsType::kahan_sum, wide);
  EXPECT_TRUE(segment.values.equal(wide.to(at::kBFloat16)));
  const at::Tensor kept = wide_weights(segment).clone();
  const at::Tensor error = (kept.to(at::kDouble) - wide).abs();
  EXPECT_TRUE(error.le(wide.abs() * 0x1p-15).all().item<bool>());
  EXPECT_GT(error.max().item<double>(), 0);
  const at::Tensor values = segment.values.clone(), remainder = segment.remainder.clone();
  store_weights(segment, kept.clone(), 2);
  EXPECT_TRUE(segment.values.equal(values));
  EXPECT_TRUE(segment.remainder.equal(remainder));
}

// 512 updates by 2^-12 of weights that are 1, whose steps in bf16 are 2^-8 and more: rounding to nearest would lose
// each. A compensation is off by at most 2^-15 an update. Stochastic rounding is off by a random number an update, of
// deviation at most 2^-9; the mean over n weights by that times sqrt(512 / n), for which 5 deviations are allowed.
TEST(MainWeights, SmallUpdatesAddUp) {
  constexpr int64_t kSize = 4096;
  constexpr int kUpdates = 512;
  constexpr double kUpdate = 0x1p-12;
  for (const MainParamsType type : kInexact) {
    const auto rule =
        make_rule({.optimizer = OptimizerType::sgd, .sgd_momentum = 0, .precision = {.main_params_dtype = type}});
    for (const bool on_host : {true, false}) {
      Segment segment = segment_of(type, at::full({kSize}, 1, at::kFloat));
      segment.grads = at::full({kSize}, kUpdate, at::kFloat);
      segment.moments = {at::zeros({kSize}, at::kFloat)};
      segment.scales = {at::Tensor()};
      Segment* const list[] = {&segment};
      for (int t = 1; t <= kUpdates; ++t) {
        const RuleStep step{.lr = 1, .t = t};
        on_host ? rule->step_on_host(list, step) : rule->step_on_device(list, step);
      }
      const at::Tensor error = segment.values.to(at::kDouble) - (1 - kUpdates * kUpdate);
      if (type == MainParamsType::kahan_sum) {
        EXPECT_LE(error.abs().max().item<double>(), kUpdates * 0x1p-15 + 0x1p-9) << on_host;
      } else {
        EXPECT_LE(std::abs(error.mean().item<double>()), 5 * 0x1p-9 * std::sqrt(double{kUpdates} / kSize)) << on_host;
        EXPECT_GT(error.abs().max().item<double>(), 0) << "nothing is random";
      }
    }
  }
}

// The upper half of the bits of an fp32 number is a bf16 number, not an fp16 one.
TEST(MainWeights, AreRefusedForFp16) {
  for (const MainParamsType type :
       {MainParamsType::remainder, MainParamsType::kahan_sum, MainParamsType::bf16_stochastic_round}) {
    const StatePrecision precision{.main_params_dtype = type};
    EXPECT_EQ(main_weights_type(precision, at::kFloat), at::kFloat);
    EXPECT_NE(main_weights_type(precision, at::kBFloat16), at::kFloat);
    EXPECT_THAT([&] { main_weights_type(precision, at::kHalf); },
                ThrowsMessage<ConfigError>(
                    HasSubstr(fmt::format("main_params_dtype is {} and parameters are Half; must be", name_of(type)))));
  }
  EXPECT_EQ(main_weights_type({}, at::kHalf), at::kFloat);
}

}  // namespace
}  // namespace concord::of_main_weights
