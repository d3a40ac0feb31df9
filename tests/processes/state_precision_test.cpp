// Optimizer state in narrow types: the same bits under every layout, in checkpoints, and after a resume; and what it
// becomes if a run with other types loads it.
#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <fmt/core.h>
#include <gmock/gmock.h>

#include <vector>

#include "core/base/code_map.h"
#include "core/base/config_error.h"
#include "core/checkpoint/optimizer_files.h"
#include "core/checkpoint/write/save_job.h"
#include "core/ops/optimizer/block_codes.h"
#include "tests/processes/groups/group_job.h"
#include "tests/processes/parallel_samples.h"
#include "tests/processes/small_training.h"
#include "tests/temporary_folder.h"

namespace concord::tests::of_state_precision {
namespace {

constexpr StatePrecision kWide = {}, kNarrow = {StateType::bf16, StateType::bf16},
                         kMixed = {.exp_avg_dtype = StateType::bf16}, kCodes = {StateType::block8, StateType::block8},
                         kRemainder = {.main_params_dtype = MainParamsType::remainder},
                         kLeast = {StateType::block8, StateType::block8, MainParamsType::remainder},
                         kKahan = {.main_params_dtype = MainParamsType::kahan_sum},
                         kFp8 = {StateType::fp8, StateType::bf16}, kFp16 = {StateType::fp16, StateType::fp16},
                         kStochastic = {StateType::bf16, StateType::bf16, MainParamsType::bf16_stochastic_round};
constexpr int64_t kWidth = 64;  // w1 has 4,096 elements, the fewest that can be in codes

OptimizerOptions options_of(const StatePrecision& precision, OptimizerType optimizer = OptimizerType::adam) {
  return {.optimizer = optimizer, .adam_beta2 = 0.95, .precision = precision, .ema_decay = 0.5};
}

// The ways of a run: bit 0 shards the state. The others offload a part of it: 1 to the host, 2 with updates on the
// device.
constexpr int kWays = 6;

OptimizerOptions in_way(int way, OptimizerOptions options) {
  options.optimizer_cpu_offload = way >= 2;
  options.optimizer_offload_fraction = 0.37;
  options.optimizer_offload_update = way >= 4 ? OffloadUpdate::device : OffloadUpdate::host;
  options.offload_chunk_elements = 1024;
  return options;
}

struct Training : tests::Training {
  Training(ParallelContext& job, at::ScalarType type, const OptimizerOptions& options, bool shards)
      : tests::Training(job, type, options, shards, kWidth) {}

  void save(const std::string& folder, ParallelContext& job) {
    HfSaveOptions options{.with_config = false, .overwrite = true};
    options.more.push_back(saved_tensors(optimizer.state_tensors(), optimizer.saved_state()));
    SaveJob(folder, network.parameters(), job, options, SaveJob::Source::live).wait();
  }
};

// Returns |values| as they are after they have been kept in |precision|.
at::Tensor rounded(const StatePrecision& precision, const std::string& key, const ShardRun& run,
                   const at::Tensor& values) {
  const at::Tensor high = values.to(at::kBFloat16).to(at::kFloat);
  if (key == "main" && precision.main_params_dtype == MainParamsType::bf16_stochastic_round) return high;
  if (key == "main" && precision.main_params_dtype == MainParamsType::kahan_sum) {
    return high + (values - high).view(at::kInt).bitwise_and(~0xffff).view(at::kFloat);
  }
  if (key == "main") return values;  // exact, in either type
  const StateType type = state_type(precision, key);
  if (type == StateType::bf16) return values.to(at::kBFloat16).to(at::kFloat);
  if (type == StateType::fp32 || run.tensor != "w1") return values;
  if (type == StateType::fp8 || type == StateType::fp16) {
    const bool is_half = type == StateType::fp16;
    const at::Tensor blocks = values.view({-1, kStateBlock});
    const at::Tensor scales = blocks.abs().amax(1, true).clamp_min(1e-12).div(is_half ? 65504 : 448);
    return blocks.div(scales).to(is_half ? at::kHalf : at::kFloat8_e4m3fn).to(at::kFloat).mul(scales).view({-1});
  }
  const at::Tensor codes = at::empty({values.numel()}, at::kByte), result = at::empty_like(values);
  const at::Tensor scales = at::empty({values.numel() / kStateBlock}, at::kFloat);
  encode_blocks(values, code_map_of(key), codes, scales);
  decode_blocks(codes, scales, code_map_of(key), result);
  return result;
}

TEST(StatePrecision, ShardsAndOffloadDoNotChangeABit) {
  expect_job(2, {}, [](ParallelContext& job) {
    for (const StatePrecision& precision : {kNarrow, kCodes, kLeast, kKahan, kStochastic, kFp8, kFp16}) {
      for (const OptimizerType rule :
           {OptimizerType::adam, OptimizerType::lion, OptimizerType::sgd, OptimizerType::muon}) {
        for (const auto type : {at::kFloat, at::kBFloat16}) {
          Training wide(job, type, options_of(kWide, rule), false),
              plain(job, type, options_of(precision, rule), false);
          wide.train(job, 0, 4);
          plain.train(job, 0, 4);
          // The signs of Lion hardly depend on rounding.
          if (type == at::kFloat && rule != OptimizerType::lion && precision != kKahan) {
            EXPECT_FALSE(are_equal(plain.values(), wide.values())) << name_of(rule) << " is not narrow";
          }
          for (int how = 1; how < kWays; ++how) {
            Training other(job, type, in_way(how, options_of(precision, rule)), how & 1);
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
        for (const StatePrecision& precision :
             {kWide, kMixed, kNarrow, kCodes, kLeast, kKahan, kStochastic, kFp8, kFp16}) {
          for (const int way : {0, 2, 4}) {
            OptimizerOptions options = in_way(way, options_of(precision, rule));
            options.optimizer_offload_fraction = 1;
            const bool offload = way == 2;
            const Training training(job, type, options, false);
            // On the host, which updates them, fp32 parameters have a copy too.
            const auto bytes = [&](StatePrecision of) {
              if (type == at::kFloat) of.main_params_dtype = MainParamsType::fp32;
              options.precision = of;
              return plan_state(options, offload || type != at::kFloat).bytes();
            };
            StatePrecision of_small = precision;
            if (precision.has_blocks()) of_small = {.main_params_dtype = precision.main_params_dtype};
            if (precision == kFp8) of_small.exp_avg_sq_dtype = StateType::bf16;
            const double small = kWidth * (1 + 1 + 3), large = kWidth * kWidth;
            EXPECT_EQ(static_cast<double>(training.optimizer.state_bytes()),
                      large * bytes(precision) + small * bytes(of_small))
                << name_of(rule) << type << way;
          }
        }
      }
    }
  });
}

// With the same gradients, main weights kept with a remainder are those in fp32, and so are their norm and their EMA,
// for every rule, with shards, on the host, and with clipping.
TEST(StatePrecision, RemaindersAreTheMainWeightsInFp32) {
  expect_job(2, {}, [](ParallelContext& job) {
    for (const OptimizerType rule :
         {OptimizerType::adam, OptimizerType::lion, OptimizerType::sgd, OptimizerType::muon}) {
      for (int how = 0; how < kWays; ++how) {
        OptimizerOptions options = in_way(how, options_of(kWide, rule));
        Training wide(job, at::kBFloat16, options, how & 1);
        options.precision = kRemainder;
        Training own(job, at::kBFloat16, options, how & 1);
        for (uint64_t i = 0; i < 5; ++i) {
          for (Training* each : {&wide, &own}) {
            each->ddp.begin_step(1);
            finalize_grads(each->ddp);
            for (const GradBuffer* buffer : each->ddp.buffers()) {
              const at::Tensor& grads = buffer->grads();
              grads.copy_(sample({grads.numel()}, 10 + i, at::kFloat));
            }
            EXPECT_TRUE(each->optimizer.step({.lr = 1e-3, .weight_decay = 0.1}).updated);
            each->ddp.finish_param_gather();
          }
        }
        const std::string what = fmt::format("{} {}", name_of(rule), how);
        const OptimizerState expected = wide.optimizer.state();
        const auto expect_equal = [&] {
          const OptimizerState found = own.optimizer.state();
          ASSERT_EQ(found.entries.size(), expected.entries.size());
          for (size_t i = 0; i < found.entries.size(); ++i) {
            const std::string& key = expected.entries[i].key;
            EXPECT_TRUE(found.entries[i].values.equal(expected.entries[i].values)) << what << key;
          }
        };
        expect_equal();
        EXPECT_EQ(own.optimizer.params_norm(), wide.optimizer.params_norm()) << what;
        const std::vector<at::Tensor> values = own.values();
        EXPECT_LT(own.optimizer.state_bytes(), wide.optimizer.state_bytes());
        wide.optimizer.swap_ema_weights();
        own.optimizer.swap_ema_weights();
        EXPECT_TRUE(are_equal(own.values(), wide.values())) << what;  // no tie in this sample
        EXPECT_FALSE(are_equal(own.values(), values)) << what;
        own.optimizer.swap_ema_weights();
        EXPECT_TRUE(are_equal(own.values(), values)) << what;
        expect_equal();
        own.optimizer.reload_main_weights();
        EXPECT_TRUE(are_equal(own.values(), values)) << what;
      }
    }
  });
}

// Weights that are rounded stochastically, or have a compensation, cannot hold their average exactly.
TEST(StatePrecision, WeightsSwapWithTheRoundedAverageAndBack) {
  expect_job(2, {}, [](ParallelContext& job) {
    for (const StatePrecision& precision : {kKahan, kStochastic}) {
      for (const OptimizerType rule : {OptimizerType::adam, OptimizerType::muon}) {
        for (int how = 0; how < kWays; ++how) {
          Training training(job, at::kBFloat16, in_way(how, options_of(precision, rule)), how & 1);
          training.train(job, 0, 3);
          const std::vector<at::Tensor> values = training.values();
          const OptimizerState before = training.optimizer.state();
          training.optimizer.swap_ema_weights();
          const std::vector<at::Tensor> swapped = training.values();
          training.optimizer.swap_ema_weights();
          EXPECT_TRUE(are_equal(training.values(), values)) << name_of(rule) << how;
          const OptimizerState after = training.optimizer.state();
          for (size_t i = 0; i < before.entries.size(); ++i) {
            const auto& [key, runs, kept] = before.entries[i];
            EXPECT_TRUE(after.entries[i].values.equal(kept)) << key << how;
            if (key != "ema" || how & 1) continue;
            for (size_t p = 0; p < swapped.size(); ++p) {
              if (training.network.parameters()[p]->spec.name != runs.at(0).tensor) continue;
              const at::Tensor own = swapped[p].view({-1}).narrow(0, runs[0].offset, runs[0].count);
              // On a tie either neighbour is the nearest.
              const at::Tensor distance = own.to(at::kFloat).sub(kept).abs();
              const at::Tensor least = kept.to(at::kBFloat16).to(at::kFloat).sub(kept).abs();
              EXPECT_TRUE(distance.equal(least)) << name_of(rule) << how << runs[0].tensor;
              EXPECT_FALSE(own.equal(values[p].view({-1}).narrow(0, runs[0].offset, runs[0].count)));
            }
          }
          training.train(job, 3, 4);
        }
      }
    }
  });
}

// Saved in one precision and loaded in another. The values are those that were saved, rounded if the type is narrower;
// in the same precision, training then continues with the same bits.
TEST(StatePrecision, EveryPrecisionLoadsEveryOther) {
  constexpr StatePrecision kAll[] = {kWide,  kMixed, kNarrow,     kCodes, kRemainder,
                                     kLeast, kKahan, kStochastic, kFp8,   kFp16};
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
              // Codes are read as they are: encoding what they stand for again could change one.
              const bool is_kept =
                  saved.exp_avg_dtype == loaded.exp_avg_dtype && saved.exp_avg_sq_dtype == loaded.exp_avg_sq_dtype;
              const at::Tensor wanted = is_kept && key != "main" ? values : rounded(loaded, key, runs.at(0), values);
              EXPECT_TRUE(found.entries[i].values.equal(wanted)) << key << runs.at(0).tensor;
            }
          }
          second.train(job, 3, 5);
          EXPECT_EQ(files.conversions(second.optimizer.state_tensors()).empty(), saved == loaded);
          if (saved == loaded) {
            EXPECT_TRUE(are_equal(first.values(), second.values()));
          }
          if (saved == kWide && loaded == kRemainder) {
            EXPECT_EQ(files.conversions(second.optimizer.state_tensors()), "main from F32 to BF16 with remainders");
          } else if (saved == kRemainder && loaded == kWide) {
            EXPECT_EQ(files.conversions(second.optimizer.state_tensors()), "main from BF16 with remainders to F32");
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
