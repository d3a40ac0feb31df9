// Wrong numbers in training runs of real processes: what is found, who is named, how the run goes on.
#include <gmock/gmock.h>

#include <filesystem>

#include "tests/processes/trainer_job.h"

namespace concord::tests {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// Flips a bit of a parameter on |rank| when |step| is done.
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
    expect_flip(3, 4, {"--bf16", setting, "--use_distributed_optimizer", setting, "--check_replicas_steps", "2"},
                [](const TrainerResult& result) {
                  EXPECT_EQ(result.steps, 4);
                  EXPECT_THAT(result.error,
                              AllOf(HasSubstr("after step 4 the replicas are not equal: rank 1 differs from ranks 0 "
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

}  // namespace
}  // namespace concord::tests
