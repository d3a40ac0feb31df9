// Layout-invariant initialisation: the assembled shards of real processes are the tensor of a single process.
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>

#include <cmath>
#include <map>

#include "core/base/config_error.h"
#include "core/parallel/initialise_weights.h"
#include "core/torch/device.h"
#include "platform/cpp/rng.hpp"
#include "platform/loader/text.h"
#include "tests/processes/groups/group_job.h"

namespace concord::tests {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kSeed = 99;

at::Tensor shard_of(const ShardSpec& spec, const ShardPlace& place, const WeightInit& init,
                    at::ScalarType type = at::kFloat) {
  const at::Tensor shard = at::full(local_shape(spec, place), 777.0, type);
  initialise_weights(shard, spec, place, init, kSeed, Device(current_platform(), 0));
  return shard;
}

const ShardPlace kAlone{};

// The model's parameters, one of each kind.
std::vector<ShardSpec> parameters() {
  ShardSpec qkv{.name = "layers.0.qkv", .dims = {{48, ShardAxis::tp}, {24, {}}}};
  qkv.pieces = {{"layers.0.q", 24}, {"layers.0.k", 12}, {"layers.0.v", 12}};
  ShardSpec experts{.name = "layers.0.experts",
                    .dims = {{4, ShardAxis::ep}, {32, ShardAxis::etp}, {24, {}}},
                    .fused_dim = 1,
                    .stacked = true};
  experts.pieces = {{"layers.0.experts.{}.gate", 16}, {"layers.0.experts.{}.up", 16}};
  return {{.name = "embedding", .dims = {{50, ShardAxis::tp, 64}, {24, {}}}},
          qkv,
          {.name = "layers.0.o", .dims = {{24, {}}, {48, ShardAxis::tp}}},
          {.name = "layers.0.norm", .dims = {{24, {}}}},
          experts,
          {.name = "layers.0.experts.{}.down",
           .dims = {{4, ShardAxis::ep}, {24, {}}, {16, ShardAxis::etp}},
           .stacked = true}};
}

// Returns the global tensors, computed by one process.
std::map<std::string, at::Tensor> reference(const ShardSpec& spec) {
  std::map<std::string, at::Tensor> result;
  const at::Tensor whole = shard_of(spec, kAlone, normal_init(0.02));
  const at::Tensor flat = whole.view({-1});
  for (const ShardRun& run : shard_runs(spec, kAlone))
    result[run.tensor] = flat.narrow(0, run.local, run.count).clone();
  return result;
}

// Copies the shards of a layout's ranks to global tensors, by address, and compares each element bitwise.
void check_layout(const ParallelSizes& sizes) {
  const RankLayout layout(sizes);
  for (const ShardSpec& spec : parameters()) {
    const auto expected = reference(spec);
    std::map<std::string, at::Tensor> assembled;
    for (const auto& [name, tensor] : expected) assembled[name] = at::full({tensor.numel()}, 777.0, at::kFloat);
    for (int64_t rank = 0; rank < layout.world(); ++rank) {
      const ShardPlace place = shard_place(layout, rank);
      const at::Tensor shard = shard_of(spec, place, normal_init(0.02)).view({-1});
      for (const ShardRun& run : shard_runs(spec, place)) {
        auto* to = assembled.at(run.tensor).data_ptr<float>();
        const auto* from = shard.data_ptr<float>() + run.local;
        for (int64_t i = 0; i < run.count; ++i)
          to[run.offset + i / run.run_length * run.run_stride + i % run.run_length] = from[i];
      }
    }
    for (const auto& [name, tensor] : expected) EXPECT_TRUE(assembled.at(name).equal(tensor)) << name;
  }
}

TEST(Weights, OfEveryLayoutAreTheSameBits) {
  check_layout({.world = 2, .tensor = 2});
  check_layout({.world = 4, .tensor = 4});
  check_layout({.world = 8, .tensor = 4, .pipeline = 2});
  check_layout({.world = 8, .tensor = 2, .expert = 4, .expert_tensor = 1});
  check_layout({.world = 8, .tensor = 1, .expert = 2, .expert_tensor = 4});
}

TEST(Weights, OfRealProcessesGatherToTheTensorOfOne) {
  const ShardSpec row{.name = "w", .dims = {{6, {}}, {8, ShardAxis::tp}}};
  const ShardSpec column{.name = "v", .dims = {{8, ShardAxis::tp}, {6, {}}}};
  const at::Tensor whole_row = shard_of(row, kAlone, normal_init(0.02));
  const at::Tensor whole_column = shard_of(column, kAlone, normal_init(0.02));
  for (const int tp : {2, 4}) {
    expect_job(tp, {.tensor_model_parallel_size = tp}, [&](ParallelContext& job) {
      const ShardPlace place = shard_place(job.layout(), job.rank());
      const at::Tensor gathered = at::zeros({8, 6}, at::kFloat);
      job.group(GroupKind::tp).all_gather(gathered, shard_of(column, place, normal_init(0.02))).wait();
      EXPECT_TRUE(gathered.equal(whole_column));
      EXPECT_TRUE(shard_of(row, place, normal_init(0.02)).equal(whole_row.narrow(1, job.rank() * 8 / tp, 8 / tp)));
    });
  }
}

TEST(Weights, In16BitsAreTheRoundedOnes) {
  const ShardSpec spec{.name = "w", .dims = {{40, {}}, {30, ShardAxis::tp}}};
  const ShardPlace second{{{{2, 1}, {}, {}}}};
  const at::Tensor exact = shard_of(spec, second, normal_init(0.02));
  EXPECT_TRUE(shard_of(spec, second, normal_init(0.02), at::kBFloat16).equal(exact.to(at::kBFloat16)));
  EXPECT_TRUE(shard_of(spec, second, normal_init(0.02), at::kHalf).equal(exact.to(at::kHalf)));
}

TEST(Weights, HaveTheWidthThatWasAskedFor) {
  const ShardSpec spec{.name = "w", .dims = {{400, {}}, {250, {}}}};
  const double sigma = 0.02;
  EXPECT_NEAR(shard_of(spec, kAlone, normal_init(sigma)).std().item<double>(), sigma, sigma * 0.01);
  EXPECT_NEAR(shard_of(spec, kAlone, normal_init(sigma)).mean().item<double>(), 0, sigma * 0.02);
  const ShardSpec other{.name = "x", .dims = spec.dims};
  EXPECT_FALSE(shard_of(other, kAlone, normal_init(sigma)).equal(shard_of(spec, kAlone, normal_init(sigma))));
}

TEST(Weights, OfThePaddingAreZeroAndConstantsAreConstant) {
  const ShardSpec embedding{.name = "e", .dims = {{10, ShardAxis::tp, 16}, {3, {}}}};
  const ShardPlace third{{{{4, 2}, {}, {}}}};
  EXPECT_TRUE(shard_of(embedding, third, normal_init(1)).narrow(0, 2, 2).eq(0).all().item<bool>());
  EXPECT_FALSE(shard_of(embedding, third, normal_init(1)).narrow(0, 0, 2).eq(0).any().item<bool>());
  EXPECT_TRUE(
      shard_of(embedding, third, constant_init(1)).equal(at::cat({at::full({2, 3}, 1.0), at::full({2, 3}, 0.0)})));
}

TEST(Weights, OfAPluginWithoutRunsAreTheSame) {
  loader::Plugin old = loader::open_plugin("cpu");
  old.version = {1, 0};
  const ShardSpec row{.name = "w", .dims = {{30, {}}, {8, ShardAxis::tp}}};
  const ShardPlace second{{{{2, 1}, {}, {}}}};
  const at::Tensor shard = at::zeros({30, 4}, at::kFloat);
  initialise_weights(shard, row, second, normal_init(0.02), kSeed, Device(Platform(old), 0));
  EXPECT_TRUE(shard.equal(shard_of(row, second, normal_init(0.02))));
}

TEST(Weights, RefuseATensorThatIsNotTheShard) {
  const ShardSpec spec{.name = "w", .dims = {{8, ShardAxis::tp}, {3, {}}}};
  const auto words = [&](const at::Tensor& shard, int64_t seed = kSeed) -> std::string {
    try {
      initialise_weights(shard, spec, ShardPlace{{{{2, 0}, {}, {}}}}, normal_init(1), seed,
                         Device(current_platform(), 0));
    } catch (const ConfigError& error) {
      return error.what();
    }
    return "accepted";
  };
  EXPECT_THAT(words(at::zeros({8, 3})),
              HasSubstr("parameter w: the shard must be a contiguous tensor of [4, 3], but it is [8, 3]"));
  EXPECT_THAT(words(at::zeros({4, 3}, at::kLong)), HasSubstr("has type Long"));
  EXPECT_THAT(words(at::zeros({3, 4}).t()), HasSubstr("contiguous"));
  EXPECT_THAT(words(at::Tensor()), HasSubstr("undefined"));
  EXPECT_THAT(words(at::zeros({4, 3}), 0), HasSubstr("seed is 0"));
}

}  // namespace
}  // namespace concord::tests
