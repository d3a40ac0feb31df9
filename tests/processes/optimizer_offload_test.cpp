// Optimizers that process one piece at a time: state in host memory, and Muon's whole matrices. The results are bitwise
// independent of the size of a piece.
#include <ATen/core/grad_mode.h>
#include <gmock/gmock.h>

#include <utility>
#include <vector>

#include "core/base/config_error.h"
#include "core/checkpoint/read/state_index.h"
#include "core/optim/offload_memory.h"
#include "tests/processes/groups/group_job.h"
#include "tests/processes/small_training.h"

namespace concord::tests {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

// |fraction| of the state on the host.
OptimizerOptions offloaded(double fraction, OffloadUpdate update = OffloadUpdate::host) {
  return {.optimizer_cpu_offload = fraction > 0,
          .optimizer_offload_fraction = fraction,
          .optimizer_offload_update = update,
          .offload_chunk_elements = 100};
}

// Parameters are restored first, as from a checkpoint, then the state: 5 steps are bitwise identical to 3, a pause, and
// 2. fp32 parameters are not part of the state, so the host's working copies must follow them.
TEST(OffloadedOptimizer, ContinuesFromASavedStateWithTheSameBits) {
  for (const int world : {1, 2}) {
    expect_job(world, {}, [](ParallelContext& job) {
      for (const auto type : {at::kFloat, at::kBFloat16}) {
        for (const auto& [update, fraction] : {std::pair(OffloadUpdate::host, 0.0),
                                               {OffloadUpdate::host, 0.37},
                                               {OffloadUpdate::host, 1.0},
                                               {OffloadUpdate::device, 0.37},
                                               {OffloadUpdate::device, 1.0}}) {
          Training first(job, type, offloaded(1, update), job.world() > 1);
          first.train(job, 0, 3);
          const OptimizerState state = first.optimizer.state();
          const std::vector<at::Tensor> values = first.values();
          first.train(job, 3, 5);

          Training second(job, type, offloaded(fraction, update), job.world() > 1);
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
  const auto limited = [](double bytes, double fraction = 1) {
    OptimizerOptions options = offloaded(fraction);
    options.host_memory_limit = bytes / (1 << 30);
    return options;
  };
  expect_job(2, {}, [&](ParallelContext& job) {
    constexpr double kBytes = 696 * 4 * sizeof(float);
    Training fits(job, at::kFloat, limited(kBytes), true);
    // Each rank's half fits by itself.
    EXPECT_THAT([&] { Training(job, at::kFloat, limited(kBytes - 1), true); },
                ThrowsMessage<ConfigError>(AllOf(HasSubstr("(11136 bytes)"), HasSubstr("for 2 ranks"),
                                                 HasSubstr("(11135 bytes) are available"),
                                                 HasSubstr("host_memory_limit"), HasSubstr("at most 0.99"))));
    EXPECT_THAT([&] { Training(job, at::kFloat, limited(job.rank() == 0 ? 0 : kBytes - 1), true); },
                ThrowsMessage<ConfigError>(HasSubstr("rank 1")));
    Training without(job, at::kFloat, limited(1, 0), true);
  });
}

TEST(OffloadMemory, TheRemedyLeavesRoomForLayerInputs) {
  const OffloadMemory needed{.bytes = 1000, .layer_inputs = 200, .ranks = 1, .fraction = 1};
  EXPECT_EQ(offload_shortage(needed, {1000, "x"}), "");
  EXPECT_THAT(offload_shortage(needed, {600, "x"}),
              AllOf(HasSubstr("at most 0.5,"), HasSubstr("cpu_offloading_num_layers to fewer")));
  EXPECT_THAT(offload_shortage(needed, {100, "x"}), HasSubstr("at most 0,"));
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
          for (const auto update : {OffloadUpdate::host, OffloadUpdate::device}) {
            OptimizerOptions pieces = offloaded(fraction, update);
            pieces.optimizer_cpu_offload = true;  // of nothing, with 0
            pieces.offload_piece_elements = pieces.offload_chunk_elements = elements;
            expect_same_training(job, type, offloaded(0), pieces);
          }
        }
      }
    }
  });
}

TEST(OffloadedOptimizer, MuonAndTheAverageComputeTheSameBits) {
  expect_job(2, {}, [](ParallelContext& job) {
    for (const auto type : {at::kFloat, at::kBFloat16}) {
      for (const double fraction : {0.37, 1.0}) {
        for (const auto& [optimizer, update] : {std::pair(OptimizerType::adam, OffloadUpdate::host),
                                                {OptimizerType::adam, OffloadUpdate::device},
                                                {OptimizerType::muon, OffloadUpdate::host},
                                                {OptimizerType::muon, OffloadUpdate::device}}) {
          OptimizerOptions plain{.optimizer = optimizer, .ema_decay = 0.9, .ema_start_step = 1}, host = plain;
          host.optimizer_cpu_offload = true;
          host.optimizer_offload_fraction = fraction;
          host.optimizer_offload_update = update;
          host.offload_piece_elements = host.offload_chunk_elements = 50;
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
