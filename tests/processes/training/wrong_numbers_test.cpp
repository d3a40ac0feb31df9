// Wrong numbers in training runs of real processes: what is detected, which rank is reported, how the run continues.
#include <gmock/gmock.h>

#include <filesystem>
#include <limits>
#include <optional>

#include "core/data_parallel/checksum.h"
#include "tests/processes/trainer_job.h"

namespace concord::tests {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// Sets one element of a parameter on |rank| before |step|, once.
class DamageAWeight : public TrainerCallback {
 public:
  DamageAWeight(Trainer& trainer, int64_t rank, int64_t step, std::string name, double value)
      : trainer_(trainer), rank_(rank), step_(step), name_(std::move(name)), value_(value) {}

  void on_step_begin(const TrainerState& state, TrainerControl&) override {
    if (state.global_step + 1 != step_ || trainer_.job().rank() != rank_) return;
    int found = 0;
    for (Parameter* parameter : trainer_.model().parameters()) {
      if (parameter->spec.name != name_) continue;
      parameter->used().detach().view({-1}).narrow(0, 5, 1).fill_(value_);
      ++found;
    }
    EXPECT_EQ(found, 1) << name_;
  }

 private:
  Trainer& trainer_;
  int64_t rank_;
  int64_t step_;
  std::string name_;
  double value_;
};

// Flips a bit of a parameter on |rank| after |step|.
class FlipABit : public TrainerCallback {
 public:
  FlipABit(Trainer& trainer, int64_t rank, int64_t step) : trainer_(trainer), rank_(rank), step_(step) {}

  void on_step_end(const TrainerState& state, TrainerControl&) override {
    if (state.global_step != step_ || trainer_.job().rank() != rank_) return;
    const at::Tensor value = trainer_.model().parameters()[3]->used();
    static_cast<uint8_t*>(value.data_ptr())[value.nbytes() / 2] ^= 4;
  }

 private:
  Trainer& trainer_;
  int64_t rank_;
  int64_t step_;
};

class WrongNumbers : public ::testing::Test {
 protected:
  // Rank 1 flips a bit after |step|.
  void expect_flip(int world, int64_t step, const std::vector<std::string>& words,
                   const std::function<void(const TrainerResult&)>& check) {
    const std::vector<std::string> all = short_run(folder_.path(), words);
    const int port = free_port();
    expect_ranks(world, [&](int rank) {
      enter_job(rank, world, port);
      check(run_trainer(all, rank, world,
                        [&](Trainer& trainer) { trainer.add_callback(std::make_shared<FlipABit>(trainer, 1, step)); }));
    });
  }

  TemporaryFolder folder_;
};

TEST_F(WrongNumbers, AFlippedBitStopsTheRunAndNamesTheRank) {
  for (const std::string setting : {"true", "false"}) {
    expect_flip(3, 2, {"--bf16", setting, "--use_distributed_optimizer", setting, "--check_replicas_steps", "2"},
                [](const TrainerResult& result) {
                  EXPECT_EQ(result.steps, 2);
                  EXPECT_THAT(result.error,
                              AllOf(HasSubstr("after step 2 the replicas are not equal: rank 1 differs from ranks 0 "
                                              "and 2 in the parameter model.layers.0."),
                                    HasSubstr("rank 1 is suspect: run without it, and resume from the newest")));
                });
  }
}

TEST_F(WrongNumbers, OfTwoReplicasBothAreNamed) {
  expect_flip(2, 3, {"--check_replicas_steps", "1"}, [](const TrainerResult& result) {
    EXPECT_THAT(result.error, AllOf(HasSubstr("after step 3 the replicas are not equal: rank 0 and rank 1 differ in "),
                                    HasSubstr("cannot be told which")));
  });
}

TEST_F(WrongNumbers, ReplicasAreComparedBeforeACheckpointIsWritten) {
  expect_flip(3, 3, {"--check_replicas_steps", "1000", "--save_strategy", "steps", "--save_steps", "3"},
              [](const TrainerResult& result) {
                EXPECT_THAT(result.error, HasSubstr("after step 3 the replicas are not equal: rank 1 differs"));
              });
  EXPECT_FALSE(std::filesystem::exists(folder_.path() + "/out/checkpoint-3"));
}

TEST_F(WrongNumbers, AWarningLetsTheRunGoOnAndZeroTurnsTheComparisonOff) {
  for (const auto& words : std::vector<std::vector<std::string>>{
           {"--check_replicas_steps", "2", "--on_replica_mismatch", "warn"}, {"--check_replicas_steps", "0"}}) {
    expect_flip(2, 3, words, [](const TrainerResult& result) {
      EXPECT_EQ(result.error, "");
      EXPECT_EQ(result.steps, 6);
    });
  }
}

// A change of the losses of one step in a rank's forward.
struct Poison {
  int64_t step = 4;
  int64_t rank = -1;   // the faulty device; -1: all
  bool once = false;   // only the first time that the step is computed
  int64_t token = -1;  // only batches with this token; -1: all
  double factor = std::numeric_limits<double>::quiet_NaN();
  std::optional<double> weight = {};  // instead of the losses: a weight of |rank| becomes this before the step
  std::string parameter = "model.layers.0.input_layernorm.weight";
};

// Records the current step.
class StepCounter : public TrainerCallback {
 public:
  void on_step_begin(const TrainerState& state, TrainerControl&) override {
    step_ = state.global_step + 1;
    calls_ = 0;
  }

  bool applies(const Poison& poison, int64_t rank, const MicroBatch& batch) {
    if (poison.weight || step_ != poison.step || (poison.rank >= 0 && rank != poison.rank)) return false;
    if (poison.token >= 0 && !batch.input_ids.eq(poison.token).any().item<bool>()) return false;
    return calls_++ == 0 || !poison.once;
  }

 private:
  int64_t step_ = 0;
  int calls_ = 0;
};

void advance(Generator& generator, int64_t count) {
  Generator::State state = generator.state();
  state.offset += static_cast<uint64_t>(count);
  generator.restore(state);
}

// Depends on the position of the generator, like dropout.
at::Tensor with_random_numbers(const at::Tensor& losses) {
  Generator& generator = parallel_context().rng().current();
  const double factor = 1 + 0.01 * static_cast<double>(generator.state().offset % 7);
  advance(generator, 1);
  return losses.mul(factor);
}

class Reruns : public WrongNumbers {
 protected:
  void expect_run(int world, const std::optional<Poison>& poison, const std::vector<std::string>& words,
                  const std::function<void(const TrainerResult&, int rank)>& check) {
    const std::vector<std::string> all = short_run(folder_.path(), words);
    const int port = free_port();
    expect_ranks(world, [&](int rank) {
      enter_job(rank, world, port);
      const auto counter = std::make_shared<StepCounter>();
      const ForwardStep forward = [&](ModelChunk& chunk, const at::Tensor& hidden, const MicroBatch& batch,
                                      const PassOptions& options) {
        PassOutput output = chunk.forward(hidden, batch, options);
        if (!chunk.is_last()) return output;
        output.value = with_random_numbers(output.value);
        if (poison && counter->applies(*poison, rank, batch)) output.value = output.value.mul(poison->factor);
        return output;
      };
      const auto before = [&](Trainer& trainer) {
        trainer.add_callback(counter);
        if (poison && poison->weight) {
          trainer.add_callback(
              std::make_shared<DamageAWeight>(trainer, poison->rank, poison->step, poison->parameter, *poison->weight));
        }
        advance(trainer.job().rng().current(), trainer.job().coordinates().dp);  // replicas have different numbers
      };
      check(run_trainer(all, rank, world, before, {.datasets = {}, .model = {}, .forward_step = forward}), rank);
    });
  }

  // Returns checksums of the final weights of a run, which must not fail.
  std::string weights_after(const std::optional<Poison>& poison, const std::vector<std::string>& words, int world = 2) {
    const std::string file = folder_.path() + "/weights";
    expect_run(world, poison, words, [&](const TrainerResult& result, int rank) {
      EXPECT_EQ(result.error, "");
      if (rank != 0) return;
      std::ofstream out(file);
      for (const int64_t sum : checksums(result.weights)) out << sum << "\n";
    });
    std::ifstream in(file);
    std::string text{std::istreambuf_iterator<char>(in), {}};
    std::filesystem::remove(file);
    EXPECT_NE(text, "");
    return text;
  }

  void expect_error(int world, const Poison& poison, const std::vector<std::string>& words,
                    const ::testing::Matcher<std::string>& error) {
    expect_run(world, poison, words, [&](const TrainerResult& result, int) {
      EXPECT_EQ(result.steps, poison.step - 1);
      EXPECT_THAT(result.error, error);
      EXPECT_EQ(result.is_bad_device, result.error.find("persistent") != std::string::npos);
    });
  }
};

TEST_F(Reruns, ARunWithATransientFaultEndsWithTheSameBits) {
  for (const auto& words : std::vector<std::vector<std::string>>{
           {}, {"--overlap_grad_reduce", "true", "--use_distributed_optimizer", "true"}}) {
    EXPECT_EQ(weights_after(Poison{.rank = 1, .once = true}, words), weights_after(std::nullopt, words));
  }
}

TEST_F(Reruns, ASkippedStepHasNoUpdateAndStopNamesTheRank) {
  const Poison transient{.rank = 1, .once = true};
  EXPECT_NE(weights_after(transient, {"--rerun_action", "skip"}), weights_after(transient, {}));
  expect_error(2, transient, {"--rerun_action", "stop"},
               AllOf(HasSubstr("step 4 has numbers that are not finite"),
                     HasSubstr("a transient fault of rank 1, where the losses differ; run without it")));
}

TEST_F(Reruns, ADeviceThatComputesWrongNumbersIsNamed) {
  for (const int world : {2, 3}) {
    expect_error(
        world, {.rank = 1}, {"--overlap_grad_reduce", "true"},
        HasSubstr("another replica computes other numbers from the same batch: a persistent fault of the device "
                  "of rank 1; run without it"));
  }
}

// The device is one of the two whose stages form a replica.
TEST_F(Reruns, AReplicaOfTwoStagesIsBlamedAsAWhole) {
  expect_error(4, {.rank = 3}, {"--pipeline_model_parallel_size", "2"},
               HasSubstr("a persistent fault of the device of one of ranks 1 and 3"));
}

// Its losses are finite, but too large: detected as a spike, and identified by the bits on which the other replicas
// agree.
TEST_F(Reruns, ADeviceWhoseNumbersAreFiniteIsNamedByThreeReplicas) {
  expect_error(3, {.step = 12, .rank = 2, .factor = 1000}, {"--max_steps", "14", "--spike_factor", "10"},
               AllOf(HasSubstr("step 12 has a spike"), HasSubstr("a persistent fault of the device of rank 2")));
}

TEST_F(Reruns, WhatTheDataCausesIsReportedWithItsRankAndMicroBatch) {
  const Poison inherent{.step = 1, .token = 31};  // in the second sample
  expect_error(2, inherent, {"--shuffle", "false"},
               HasSubstr("rank 1: the loss of micro-batch 0 of step 1 is NaN; check this rank's data"));
}

TEST_F(Reruns, WithoutReplicasTheDataIsBlamed) {
  expect_error(2, {}, {"--tensor_model_parallel_size", "2"},
               HasSubstr("rank 0: the loss of micro-batch 0 of step 4 is NaN"));
}

TEST_F(Reruns, ASpikeOfTheDataIsUsedUnlessItIsSkippedOrStops) {
  const Poison spike{.step = 12, .factor = 1000};
  const std::vector<std::string> found = {"--max_steps", "12", "--spike_factor", "10"};
  const std::string with_it = weights_after(spike, {"--max_steps", "12"});
  EXPECT_EQ(weights_after(spike, found), with_it);
  std::vector<std::string> skip = found, stop = found;
  skip.insert(skip.end(), {"--rerun_action", "skip"});
  EXPECT_NE(weights_after(spike, skip), with_it);
  stop.insert(stop.end(), {"--rerun_action", "stop"});
  expect_error(2, spike, stop,
               AllOf(HasSubstr("step 12 has a spike"),
                     HasSubstr("also when it is computed again, and on another replica: a property of the data")));
}

// Recomputing the skipped step on another replica does not influence later steps.
TEST_F(Reruns, ASkippedStepLeavesTheGeneratorsWhereItWouldHave) {
  const std::vector<std::string> skip = {"--max_steps", "14", "--spike_factor", "10", "--rerun_action", "skip"};
  EXPECT_EQ(weights_after(Poison{.step = 12, .factor = 1000}, skip),
            weights_after(Poison{.step = 12, .once = true, .factor = 1000}, skip));
}

TEST_F(Reruns, ATransientSpikeLeavesNoTrace) {
  const std::vector<std::string> words = {"--max_steps", "13", "--spike_factor", "10"};
  EXPECT_EQ(weights_after(Poison{.step = 12, .rank = 0, .once = true, .factor = 1000}, words),
            weights_after(std::nullopt, words));
}

// With two replicas too: the finite one is right. No result of the step was used before the repair.
TEST_F(Reruns, WeightsThatAreNotFiniteAreCopiedFromAReplica) {
  const Poison damage{.rank = 1, .weight = std::numeric_limits<double>::quiet_NaN()};
  for (const auto& [world, words] : std::vector<std::pair<int, std::vector<std::string>>>{
           {3, {}}, {2, {"--bf16", "true", "--use_distributed_optimizer", "true"}}}) {
    EXPECT_EQ(weights_after(damage, words, world), weights_after(std::nullopt, words, world));
  }
  expect_error(3, damage, {"--rerun_action", "stop"},
               AllOf(HasSubstr("because rank 1 differs from ranks 0 and 2 in the parameter model.layers.0.input"),
                     HasSubstr("a transient fault; the weights were copied from a replica; resume from the newest")));
}

// 3e38 overflows in the first product. A finite weight may have been trained with: then no replica is intact.
TEST_F(Reruns, ADeviceIsNotBlamedForAWeightThatWasDamagedInMemory) {
  const Poison large{.rank = 1, .weight = 3e38};
  for (const char* action : {"continue", "skip"}) {
    expect_error(3, large, {"--rerun_action", action},
                 AllOf(HasSubstr("because rank 1 differs from ranks 0 and 2 in the parameter model.layers.0."),
                       HasSubstr("damaged in memory, a transient fault; resume from the newest checkpoint")));
  }
  expect_error(2,
               {.rank = 1,
                .weight = std::numeric_limits<double>::infinity(),
                .parameter = "model.layers.0.mlp.down_proj.weight"},
               {"--tensor_model_parallel_size", "2"},
               AllOf(HasSubstr(" is not finite on rank 1: damaged in memory"), HasSubstr("resume from the newest")));
}

}  // namespace
}  // namespace concord::tests
