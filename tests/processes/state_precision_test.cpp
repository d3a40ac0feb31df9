// Optimizer state in narrow types: the same bits under every layout, in checkpoints, and after a resume; and what it
// becomes if a run with other types loads it.
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <gmock/gmock.h>

#include <vector>

#include "core/base/code_map.h"
#include "core/base/config_error.h"
#include "core/checkpoint/optimizer_files.h"
#include "core/checkpoint/write/save_job.h"
#include "core/data_parallel/finalize_grads.h"
#include "core/ops/optimizer/block_codes.h"
#include "core/optim/optimizer.h"
#include "core/optim/state_precision.h"
#include "tests/processes/groups/group_job.h"
#include "tests/processes/small_network.h"
#include "tests/temporary_folder.h"

namespace concord::tests::of_state_precision {
namespace {

constexpr StatePrecision kWide = {}, kNarrow = {StateType::bf16, StateType::bf16},
                         kMixed = {.exp_avg_dtype = StateType::bf16}, kCodes = {StateType::block8, StateType::block8};
constexpr int64_t kWidth = 64;  // w1 has 4,096 elements, the fewest that can be in codes

OptimizerOptions options_of(const StatePrecision& precision, OptimizerType optimizer = OptimizerType::adam) {
  return {.optimizer = optimizer, .adam_beta2 = 0.95, .precision = precision, .ema_decay = 0.5};
}

struct Training {
  SmallNetwork network;
  DistributedDataParallel ddp;
  Optimizer optimizer;

  Training(ParallelContext& job, at::ScalarType type, const OptimizerOptions& options, bool shards)
      : network(type, kWidth),
        ddp({replicated(network)}, job,
            {.use_distributed_optimizer = shards,
             .ddp_bucket_size = 100,
             .parameter_alignment = state_alignment(options.precision)}),
        optimizer(ddp, options) {}

  static std::vector<Parameter*> replicated(SmallNetwork& network) {
    for (Parameter* parameter : network.parameters()) parameter->spec.replicated_over = {GroupKind::dp_cp};
    return network.parameters();
  }

  void train(const ParallelContext& job, uint64_t first, uint64_t last) {
    for (uint64_t i = first; i < last; ++i) {
      ddp.begin_step(1);
      network.loss(10 + static_cast<uint64_t>(job.rank()) + 100 * i).backward();
      finalize_grads(ddp);
      EXPECT_TRUE(optimizer.step({.lr = 1e-2, .weight_decay = 0.1}).updated);
    }
    ddp.finish_param_gather();
  }

  std::vector<at::Tensor> values() {
    std::vector<at::Tensor> all;
    for (const Parameter* parameter : network.parameters()) all.push_back(parameter->value.detach().clone());
    return all;
  }

  void save(const std::string& folder, ParallelContext& job) {
    HfSaveOptions options{.with_config = false, .overwrite = true};
    options.more.push_back(saved_tensors(optimizer.state_tensors(), optimizer.saved_state()));
    SaveJob(folder, network.parameters(), job, options, SaveJob::Source::live).wait();
  }
};

bool are_equal(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  for (size_t i = 0; i < a.size(); ++i) {
    if (!a[i].equal(b[i])) return false;
  }
  return a.size() == b.size();
}

// Returns |values| as they are after they have been kept in |precision|.
at::Tensor rounded(const StatePrecision& precision, const std::string& key, const ShardRun& run,
                   const at::Tensor& values) {
  const StateType type = state_type(precision, key);
  if (type == StateType::bf16) return values.to(at::kBFloat16).to(at::kFloat);
  if (type == StateType::fp32 || run.tensor != "w1") return values;
  const at::Tensor codes = at::empty({values.numel()}, at::kByte), result = at::empty_like(values);
  const at::Tensor scales = at::empty({values.numel() / kStateBlock}, at::kFloat);
  encode_blocks(values, code_map_of(key), codes, scales);
  decode_blocks(codes, scales, code_map_of(key), result);
  return result;
}

TEST(StatePrecision, ShardsAndOffloadDoNotChangeABit) {
  expect_job(2, {}, [](ParallelContext& job) {
    for (const StatePrecision& precision : {kNarrow, kCodes}) {
      for (const OptimizerType rule :
           {OptimizerType::adam, OptimizerType::lion, OptimizerType::sgd, OptimizerType::muon}) {
        for (const auto type : {at::kFloat, at::kBFloat16}) {
          Training wide(job, type, options_of(kWide, rule), false),
              plain(job, type, options_of(precision, rule), false);
          wide.train(job, 0, 4);
          plain.train(job, 0, 4);
          if (type == at::kFloat && rule != OptimizerType::lion) {  // signs hardly depend on rounding
            EXPECT_FALSE(are_equal(plain.values(), wide.values())) << name_of(rule) << " is not narrow";
          }
          for (int how = 1; how < 4; ++how) {
            OptimizerOptions options = options_of(precision, rule);
            options.optimizer_cpu_offload = how & 2;
            options.optimizer_offload_fraction = 0.37;
            Training other(job, type, options, how & 1);
            other.train(job, 0, 4);
            EXPECT_TRUE(are_equal(plain.values(), other.values())) << name_of(rule) << type << how;
          }
        }
      }
    }
  });
}

// The small parameters of codes have fp32 moments.
TEST(StatePrecision, MemoryIsThatOfThePlan) {
  expect_job(1, {}, [](ParallelContext& job) {
    for (const OptimizerType rule : {OptimizerType::adam, OptimizerType::lion, OptimizerType::sgd}) {
      for (const auto type : {at::kFloat, at::kBFloat16}) {
        for (const StatePrecision& precision : {kWide, kMixed, kNarrow, kCodes}) {
          for (const bool offload : {false, true}) {
            OptimizerOptions options = options_of(precision, rule);
            options.optimizer_cpu_offload = offload;
            const Training training(job, type, options, false);
            // On the host fp32 parameters have a copy too.
            const auto bytes = [&](const StatePrecision& of) {
              options.precision = of;
              return plan_state(options, offload || type != at::kFloat).bytes();
            };
            const double small = kWidth * (1 + 1 + 3), large = kWidth * kWidth;
            EXPECT_EQ(static_cast<double>(training.optimizer.state_bytes()),
                      large * bytes(precision) + small * bytes(precision == kCodes ? kWide : precision))
                << name_of(rule) << type << offload;
          }
        }
      }
    }
  });
}

// Saved in one precision and loaded in another. The values are those that were saved, rounded if the type is narrower;
// in the same precision, training then continues with the same bits.
TEST(StatePrecision, EveryPrecisionLoadsEveryOther) {
  constexpr StatePrecision kAll[] = {kWide, kMixed, kNarrow, kCodes};
  for (const StatePrecision& saved : kAll) {
    const TemporaryFolder folder;
    expect_job(2, {}, [&](ParallelContext& job) {
      Training first(job, at::kBFloat16, options_of(saved), true);
      first.train(job, 0, 3);
      first.save(folder.path() + "/c", job);
      const OptimizerState expected = first.optimizer.state();
      first.train(job, 3, 5);
      const OptimizerFiles files(folder.path() + "/c", 3);
      for (const StatePrecision& loaded : kAll) {
        for (const bool share_reads : {false, true}) {
          Training second(job, at::kBFloat16, options_of(loaded), !share_reads);
          second.optimizer.load_state(files, share_reads);
          const OptimizerState found = second.optimizer.state();
          if (second.ddp.plan(0) == first.ddp.plan(0)) {
            ASSERT_EQ(found.entries.size(), expected.entries.size());
            for (size_t i = 0; i < found.entries.size(); ++i) {
              const auto& [key, runs, values] = expected.entries[i];
              const at::Tensor wanted = saved == loaded ? values : rounded(loaded, key, runs.at(0), values);
              EXPECT_TRUE(found.entries[i].values.equal(wanted)) << key << runs.at(0).tensor;
            }
          }
          second.train(job, 3, 5);
          EXPECT_EQ(files.conversions(second.optimizer.state_tensors()).empty(), saved == loaded);
          if (saved == loaded) {
            EXPECT_TRUE(are_equal(first.values(), second.values()));
          }
          if (saved == kCodes && loaded == kMixed) {  // small tensors are not in codes
            EXPECT_EQ(files.conversions(second.optimizer.state_tensors()),
                      "exp_avg from F32 to BF16, exp_avg from U8 to BF16, exp_avg_sq from U8 to F32");
          }
        }
      }
    });
  }
}

// Half a row of 320 columns has 160 elements.
TEST(StatePrecision, ALayoutThatSplitsABlockIsRefused) {
  const std::vector<ShardRun> rows = {{.tensor = "w", .count = 160 * 64, .run_length = 160, .run_stride = 320}};
  EXPECT_THAT([&] { scale_runs(rows); },
              ::testing::ThrowsMessage<ConfigError>(::testing::HasSubstr("splits w into parts")));
  const std::vector<ShardRun> whole = {
      {.tensor = "w", .local = 512, .count = 1024, .offset = 256, .run_length = 512, .run_stride = 768}};
  const std::vector<ShardRun> scales = {
      {.tensor = "w", .local = 2, .count = 4, .offset = 1, .run_length = 2, .run_stride = 3}};
  EXPECT_EQ(scale_runs(whole), scales);
}

}  // namespace
}  // namespace concord::tests::of_state_precision
