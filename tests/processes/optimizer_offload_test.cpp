// Optimizers that process one piece at a time: state in host memory, and Muon's whole matrices. The results are bitwise
// independent of the size of a piece.
#include <ATen/core/grad_mode.h>
#include <fmt/core.h>
#include <gmock/gmock.h>

#include <cstdlib>
#include <vector>

#include "core/base/config_error.h"
#include "core/checkpoint/read/state_index.h"
#include "tests/processes/groups/group_job.h"
#include "tests/processes/small_training.h"

namespace concord::tests {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

// |fraction| of the state on the host.
OptimizerOptions offloaded(double fraction) {
  return {.optimizer_cpu_offload = fraction > 0, .optimizer_offload_fraction = fraction};
}

// Parameters are restored first, as from a checkpoint, then the state: 5 steps are bitwise identical to 3, a pause, and
// 2. fp32 parameters are not part of the state, so the host's working copies must follow them.
TEST(OffloadedOptimizer, ContinuesFromASavedStateWithTheSameBits) {
  for (const int world : {1, 2}) {
    expect_job(world, {}, [](ParallelContext& job) {
      for (const auto type : {at::kFloat, at::kBFloat16}) {
        for (const double fraction : {0.0, 0.37, 1.0}) {
          Training first(job, type, offloaded(1), job.world() > 1);
          first.train(job, 0, 3);
          const OptimizerState state = first.optimizer.state();
          const std::vector<at::Tensor> values = first.values();
          first.train(job, 3, 5);

          Training second(job, type, offloaded(fraction), job.world() > 1);
          {
            const at::NoGradGuard no_grad;
            for (size_t i = 0; i < values.size(); ++i) second.network.parameters()[i]->value.copy_(values[i]);
          }
          const std::vector<OptimizerState> states = {state};
          second.optimizer.load_state(StateIndex(states));
          EXPECT_EQ(second.optimizer.steps(), 3);
          second.train(job, 3, 5);
          for (size_t i = 0; i < values.size(); ++i) {
            EXPECT_TRUE(second.values()[i].equal(first.values()[i])) << type << " " << fraction << " parameter " << i;
            EXPECT_FALSE(second.values()[i].equal(values[i])) << "the last steps changed nothing";
          }
        }
      }
    });
  }
}

// The state of the 696 fp32 elements of the network, sharded over two ranks: gradients, main weights and two moments.
TEST(OffloadedOptimizer, IsRefusedOnAllRanksIfTheMachineHasTooLittleMemoryForAllOfThem) {
  const auto set_limit = [](double bytes) {
    ::setenv("CONCORD_HOST_MEMORY", fmt::format("{:.17g}", bytes / (1 << 30)).c_str(), 1);
  };
  expect_job(2, {}, [&](ParallelContext& job) {
    constexpr double kBytes = 696 * 4 * sizeof(float);
    set_limit(kBytes);
    Training fits(job, at::kFloat, offloaded(1), true);
    set_limit(kBytes - 1);  // each rank's half fits by itself
    EXPECT_THAT([&] { Training(job, at::kFloat, offloaded(1), true); },
                ThrowsMessage<ConfigError>(AllOf(HasSubstr("(11136 bytes)"), HasSubstr("for 2 ranks"),
                                                 HasSubstr("(11135 bytes) are available"),
                                                 HasSubstr("CONCORD_HOST_MEMORY"), HasSubstr("at most 0.99"))));
    if (job.rank() == 0) set_limit(1e9);
    EXPECT_THAT([&] { Training(job, at::kFloat, offloaded(1), true); },
                ThrowsMessage<ConfigError>(HasSubstr("rank 1")));
    Training without(job, at::kFloat, offloaded(0), true);
    set_limit(-1);
    EXPECT_THAT([&] { Training(job, at::kFloat, offloaded(1), true); },
                ThrowsMessage<ConfigError>(HasSubstr("a number of GiB > 0")));
  });
}

void expect_same_training(ParallelContext& job, at::ScalarType type, const OptimizerOptions& a,
                          const OptimizerOptions& b) {
  const bool shards = job.world() > 1;
  Training first(job, type, a, shards), second(job, type, b, shards);
  const std::vector<at::Tensor> before = first.values();
  first.train(job, 0, 3);
  second.train(job, 0, 3);
  for (size_t i = 0; i < before.size(); ++i) {
    EXPECT_TRUE(first.values()[i].equal(second.values()[i])) << type << " parameter " << i;
    EXPECT_FALSE(first.values()[i].equal(before[i])) << type << " parameter " << i << " did not change";
  }
}

TEST(OffloadedOptimizer, ComputesTheSameBitsInPiecesOfAnySize) {
  expect_job(2, {}, [](ParallelContext& job) {
    for (const auto type : {at::kFloat, at::kBFloat16}) {
      for (const double fraction : {0.0, 0.37, 1.0}) {
        for (const int64_t elements : {7, 50}) {
          OptimizerOptions pieces = offloaded(fraction);
          pieces.optimizer_cpu_offload = true;  // of nothing, with 0
          pieces.offload_piece_elements = elements;
          expect_same_training(job, type, offloaded(0), pieces);
        }
      }
    }
  });
}

TEST(OffloadedOptimizer, MuonAndTheAverageComputeTheSameBits) {
  expect_job(2, {}, [](ParallelContext& job) {
    for (const auto type : {at::kFloat, at::kBFloat16}) {
      for (const double fraction : {0.37, 1.0}) {
        for (const OptimizerType optimizer : {OptimizerType::adam, OptimizerType::muon}) {
          OptimizerOptions plain{.optimizer = optimizer, .ema_decay = 0.9, .ema_start_step = 1}, host = plain;
          host.optimizer_cpu_offload = true;
          host.optimizer_offload_fraction = fraction;
          host.offload_piece_elements = 50;
          expect_same_training(job, type, plain, host);
          Training first(job, type, plain, true), second(job, type, host, true);
          first.train(job, 0, 3);
          second.train(job, 0, 3);
          const std::vector<at::Tensor> weights = second.values();
          first.optimizer.swap_ema_weights();
          second.optimizer.swap_ema_weights();
          for (size_t i = 0; i < weights.size(); ++i) {
            EXPECT_TRUE(first.values()[i].equal(second.values()[i])) << type << " average of parameter " << i;
            EXPECT_FALSE(weights[i].equal(second.values()[i])) << type << " the average is the weight " << i;
          }
          second.optimizer.swap_ema_weights();
          for (size_t i = 0; i < weights.size(); ++i) EXPECT_TRUE(weights[i].equal(second.values()[i])) << type << i;
        }
      }
    }
  });
}

TEST(Muon, ComputesTheSameBitsOneMatrixAtATime) {
  expect_job(1, {}, [](ParallelContext& job) {
    expect_same_training(job, at::kFloat, {.optimizer = OptimizerType::muon},
                         {.optimizer = OptimizerType::muon, .muon_batch_elements = 1});
  });
}

}  // namespace
}  // namespace concord::tests
