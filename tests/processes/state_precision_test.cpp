// Optimizer state in narrow types: the same bits under every layout, in checkpoints, and after a resume; and what it
// becomes if a run with other types loads it.
#include <ATen/core/grad_mode.h>
#include <gmock/gmock.h>

#include <map>
#include <vector>

#include "core/checkpoint/optimizer_files.h"
#include "core/checkpoint/write/save_job.h"
#include "core/data_parallel/finalize_grads.h"
#include "core/optim/optimizer.h"
#include "core/optim/state_precision.h"
#include "tests/processes/groups/group_job.h"
#include "tests/processes/small_network.h"
#include "tests/temporary_folder.h"

namespace concord::tests::of_state_precision {
namespace {

constexpr StatePrecision kWide = {}, kNarrow = {StateType::bf16, StateType::bf16},
                         kMixed = {.exp_avg_dtype = StateType::bf16};

OptimizerOptions options_of(const StatePrecision& precision, OptimizerType optimizer = OptimizerType::adam) {
  return {.optimizer = optimizer, .adam_beta2 = 0.95, .precision = precision, .ema_decay = 0.5};
}

struct Training {
  SmallNetwork network;
  DistributedDataParallel ddp;
  Optimizer optimizer;

  Training(ParallelContext& job, at::ScalarType type, const OptimizerOptions& options, bool shards)
      : network(type),
        ddp({replicated(network)}, job, {.use_distributed_optimizer = shards, .ddp_bucket_size = 100}),
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

TEST(StatePrecision, ShardsAndOffloadDoNotChangeABit) {
  expect_job(2, {}, [](ParallelContext& job) {
    for (const OptimizerType rule :
         {OptimizerType::adam, OptimizerType::lion, OptimizerType::sgd, OptimizerType::muon}) {
      for (const auto type : {at::kFloat, at::kBFloat16}) {
        Training wide(job, type, options_of(kWide, rule), false), plain(job, type, options_of(kNarrow, rule), false);
        wide.train(job, 0, 4);
        plain.train(job, 0, 4);
        if (type == at::kFloat && rule != OptimizerType::lion) {  // signs hardly depend on rounding
          EXPECT_FALSE(are_equal(plain.values(), wide.values())) << name_of(rule) << " is not narrow";
        }
        for (int how = 1; how < 4; ++how) {
          OptimizerOptions options = options_of(kNarrow, rule);
          options.optimizer_cpu_offload = how & 2;
          options.optimizer_offload_fraction = 0.37;
          Training other(job, type, options, how & 1);
          other.train(job, 0, 4);
          EXPECT_TRUE(are_equal(plain.values(), other.values())) << name_of(rule) << type << how;
        }
      }
    }
  });
}

TEST(StatePrecision, MemoryIsThatOfThePlan) {
  expect_job(1, {}, [](ParallelContext& job) {
    for (const OptimizerType rule : {OptimizerType::adam, OptimizerType::lion, OptimizerType::sgd}) {
      for (const auto type : {at::kFloat, at::kBFloat16}) {
        for (const StatePrecision& precision : {kWide, kMixed, kNarrow}) {
          for (const bool offload : {false, true}) {
            OptimizerOptions options = options_of(precision, rule);
            options.optimizer_cpu_offload = offload;
            Training training(job, type, options, false);
            int64_t elements = 0;
            for (const Parameter* parameter : training.network.parameters()) elements += parameter->value.numel();
            // On the host fp32 parameters have a copy too.
            const StatePlan plan = plan_state(options, offload || type != at::kFloat);
            EXPECT_EQ(training.optimizer.state_bytes(), elements * plan.bytes()) << to_text(plan) << offload;
          }
        }
      }
    }
  });
}

// Saved in one precision and loaded in another. The values are those that were saved, rounded if the type is narrower;
// in the same precision, training then continues with the same bits, and a second save writes the same tensors.
TEST(StatePrecision, EveryPrecisionLoadsEveryOther) {
  for (const StatePrecision& saved : {kWide, kMixed, kNarrow}) {
    for (const StatePrecision& loaded : {kWide, kMixed, kNarrow}) {
      for (const bool share_reads : {false, true}) {
        const TemporaryFolder folder;
        expect_job(2, {}, [&](ParallelContext& job) {
          Training first(job, at::kBFloat16, options_of(saved), true);
          first.train(job, 0, 3);
          first.save(folder.path() + "/c", job);
          const OptimizerState expected = first.optimizer.state();
          first.train(job, 3, 5);

          Training second(job, at::kBFloat16, options_of(loaded), true);
          const OptimizerFiles files(folder.path() + "/c", 3);
          second.optimizer.load_state(files, share_reads);
          const OptimizerState found = second.optimizer.state();
          ASSERT_EQ(found.entries.size(), expected.entries.size());
          for (size_t i = 0; i < found.entries.size(); ++i) {
            const auto& [key, runs, values] = expected.entries[i];
            const auto narrow = state_type(loaded, key) == StateType::bf16 ? at::kBFloat16 : at::kFloat;
            EXPECT_TRUE(found.entries[i].values.equal(values.to(narrow).to(at::kFloat))) << key;
          }
          second.train(job, 3, 5);
          EXPECT_EQ(files.conversions(second.optimizer.state_tensors()).empty(), saved == loaded);
          if (saved == loaded) {
            EXPECT_TRUE(are_equal(first.values(), second.values()));
          }
          if (saved == kWide && loaded == kMixed) {
            EXPECT_EQ(files.conversions(second.optimizer.state_tensors()), "exp_avg from F32 to BF16");
          }
        });
      }
    }
  }
}

}  // namespace
}  // namespace concord::tests::of_state_precision
