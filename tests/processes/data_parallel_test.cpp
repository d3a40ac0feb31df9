// Data parallelism and the optimizer in real processes: which gradients are reduced, when, and where.
#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros_like.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>
#include <vector>

#include "core/base/config_error.h"
#include "core/checkpoint/optimizer_files.h"
#include "core/checkpoint/read/state_index.h"
#include "core/checkpoint/write/save_job.h"
#include "core/data_parallel/finalize_grads.h"
#include "core/mesh/agreement.h"
#include "core/ops/derivative.h"
#include "core/optim/optimizer.h"
#include "tests/processes/groups/group_job.h"
#include "tests/processes/small_network.h"

namespace concord::tests {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// Rank r uses the samples of seed 10 + r.
uint64_t seed_of(const ParallelContext& job) { return 10 + static_cast<uint64_t>(job.rank()); }

at::Tensor grad_of(const DistributedDataParallel& ddp, const std::string& name) {
  for (const GradBuffer* buffer : ddp.buffers()) {
    for (const BucketPlan::Bucket& bucket : buffer->plan().buckets) {
      for (const BucketPlan::Slot& slot : bucket.slots) {
        if (buffer->parameters()[slot.parameter]->spec.name == name) return buffer->grad_of(slot);
      }
    }
  }
  ADD_FAILURE() << "no parameter " << name;
  return {};
}

// Returns the mean over all ranks of the gradients of |micro_batches| losses each, from autograd alone, in fp32.
at::Tensor wanted_grad(size_t parameter, int64_t world, int micro_batches) {
  SmallNetwork network;
  for (int64_t rank = 0; rank < world; ++rank) {
    for (int i = 0; i < micro_batches; ++i) network.loss(10 + static_cast<uint64_t>(rank + 100 * i)).backward();
  }
  return network.parameters()[parameter]->value.grad().div(world);
}

void expect_close(const at::Tensor& got, const at::Tensor& wanted, double tolerance, const std::string& what) {
  const double size = wanted.abs().max().item<double>();
  EXPECT_LE(got.to(at::kFloat).sub(wanted).abs().max().item<double>(), tolerance * size) << what;
}

// Sums of at most a few hundred products: their error is far below 1e-4 of the largest, unlike a missing or duplicate
// term.
TEST(DataParallel, GradientsAreTheMeanOverRanksHoweverTheyArrive) {
  expect_job(2, {}, [](ParallelContext& job) {
    const std::vector<std::string> names{"w1", "b1", "norm", "w2"};
    for (int how = 0; how < 32; ++how) {
      const bool later = how & 16;
      SmallNetwork network;
      DistributedDataParallel ddp({network.parameters()}, job,
                                  {.use_distributed_optimizer = (how & 1) != 0,
                                   .overlap_grad_reduce = (how & 2) != 0,
                                   .ddp_average_in_collective = (how & 4) != 0,
                                   .ddp_bucket_size = how & 8 ? 100 : 0});
      DeferredWgrads deferred;
      if (later) network.later(&deferred);
      for (int repeat = 0; repeat < 2; ++repeat) {
        ddp.begin_step(2);
        for (uint64_t i = 0; i < 2; ++i) network.loss(seed_of(job) + 100 * i).backward();
        deferred.run_all();
        ddp.finish_grad_sync();
      }
      for (size_t p = 0; p < names.size(); ++p) {
        const at::Tensor wanted = wanted_grad(p, 2, 2).flatten();
        const at::Tensor got = grad_of(ddp, names[p]).flatten();
        for (const GradBuffer* buffer : ddp.buffers()) {
          for (const BufferRange& owned : buffer->owned()) {
            const int64_t begin = got.storage_offset();
            const BufferRange part = intersection(owned, {begin, begin + got.numel()});
            if (part.size() == 0) continue;
            expect_close(got.narrow(0, part.begin - begin, part.size()),
                         wanted.narrow(0, part.begin - begin, part.size()), 1e-4 * 10,
                         names[p] + " " + std::to_string(how));
          }
        }
        EXPECT_FALSE(network.parameters()[p]->value.grad().defined()) << "freed";
      }
    }
  });
}

// Returns the number of calls of the dp_cp group.
int64_t calls_made(ParallelContext& job) {
  int64_t made = 0;
  for (const GroupPosition& position : job.flight_recorder().positions()) made += position.made;
  return made;
}

int64_t calls_after_backward(ParallelContext& job, const DataParallelOptions& options, bool hold = false) {
  SmallNetwork network;
  DistributedDataParallel ddp({network.parameters()}, job, options);
  ddp.begin_step(2, hold);
  const int64_t before = calls_made(job);
  network.loss(1).backward();
  EXPECT_EQ(calls_made(job), before) << "after the first of two micro-batches";
  network.loss(2).backward();
  const int64_t after = calls_made(job);
  ddp.finish_grad_sync();
  EXPECT_GT(calls_made(job), before);
  return after - before;
}

TEST(DataParallel, BucketsAreReducedWithinBackwardWhereTheyOverlap) {
  expect_job(2, {}, [](ParallelContext& job) {
    EXPECT_EQ(calls_after_backward(job, {.overlap_grad_reduce = false}), 0);
    EXPECT_EQ(calls_after_backward(job, {.overlap_grad_reduce = true}), 1);
    EXPECT_EQ(calls_after_backward(job, {.overlap_grad_reduce = true, .ddp_bucket_size = 64}), 3);
  });
}

TEST(DataParallel, HeldReductionsLeaveGradientsAsTheRankHasComputedThem) {
  expect_job(2, {}, [](ParallelContext& job) {
    const DataParallelOptions options{.overlap_grad_reduce = true};
    EXPECT_EQ(calls_after_backward(job, options, /*hold=*/true), 0);
    SmallNetwork network;
    DistributedDataParallel ddp({network.parameters()}, job, options);
    std::vector<at::Tensor> reduced;
    for (const bool hold : {false, true}) {
      ddp.begin_step(1, hold);
      network.loss(seed_of(job)).backward();
      if (hold) {
        ddp.require_finite_grads();
        const at::Tensor element = grad_of(ddp, "norm")[3];
        const at::Tensor before = element.clone();
        element.fill_(std::numeric_limits<float>::infinity());
        std::string words = "no error";
        try {
          ddp.require_finite_grads();
        } catch (const Error& error) {
          words = error.what();
        }
        EXPECT_THAT(words, HasSubstr("the gradient of norm contains Inf before reduction"));
        element.copy_(before);
      }
      ddp.finish_grad_sync();
      reduced.push_back(ddp.buffers()[0]->grads().clone());
    }
    EXPECT_TRUE(reduced[0].equal(reduced[1])) << "the same bits";
  });
}

TEST(DataParallel, DelayedReductionOverlapsOnTheFirstStageOnly) {
  expect_job(4, {.pipeline_model_parallel_size = 2}, [](ParallelContext& job) {
    const DataParallelOptions options{.delay_grad_reduce = true};
    EXPECT_EQ(calls_after_backward(job, options), job.coordinates().pp == 0 ? 1 : 0);
  });
}

TEST(DataParallel, ChunksAfterTheFirstHaveOneBucket) {
  expect_job(2, {}, [](ParallelContext& job) {
    SmallNetwork a, b;
    const DistributedDataParallel ddp({a.parameters(), b.parameters()}, job, {.ddp_bucket_size = 64});
    EXPECT_EQ(ddp.plan(0).order.size(), 3u);
    EXPECT_EQ(ddp.plan(1).order.size(), 1u);
  });
}

TEST(DataParallel, AGradientAfterItsReductionIsRefused) {
  expect_job(2, {}, [](ParallelContext& job) {
    SmallNetwork network;
    DistributedDataParallel ddp({network.parameters()}, job);
    ddp.begin_step(1);
    network.loss(1).backward();
    std::string words = "no error";
    try {
      network.loss(2).backward();
    } catch (const std::exception& error) {
      words = error.what();
    }
    EXPECT_THAT(words, HasSubstr("arrived after its bucket was reduced"));
    ddp.finish_grad_sync();
  });
}

// The experts of two ranks: their gradients are summed over edp and divided by dp, whatever the collective does.
TEST(DataParallel, ExpertParametersAreReducedOverTheirOwnGroup) {
  expect_job(4, {.expert_model_parallel_size = 2}, [](ParallelContext& job) {
    for (const bool average : {false, true}) {
      SmallNetwork network;
      network.parameters()[3]->expert = true;
      DistributedDataParallel ddp({network.parameters()}, job, {.ddp_average_in_collective = average});
      ASSERT_EQ(ddp.buffers().size(), 2u);
      ddp.begin_step(1);
      ddp.finish_grad_sync();  // nothing yet; now with known numbers
      ddp.begin_step(1);
      ddp.flush_grads();
      for (const GradBuffer* buffer : ddp.buffers()) buffer->grads().fill_(static_cast<double>(1 << job.rank()));
      ddp.finish_grad_sync();
      EXPECT_EQ(grad_of(ddp, "w1").flatten()[0].item<float>(), (1 + 2 + 4 + 8) / 4.0f);
      const float summed = job.rank() % 2 == 0 ? 1 + 4 : 2 + 8;
      EXPECT_EQ(grad_of(ddp, "w2").flatten()[0].item<float>(), summed / 4) << average;
    }
  });
}

// Gradients in the parameter's type. fp16 gradients come from autograd, bf16 ones through sinks.
TEST(DataParallel, GradientsMayBeInSixteenBits) {
  expect_job(2, {}, [](ParallelContext& job) {
    for (const auto type : {at::kHalf, at::kBFloat16}) {
      SmallNetwork network(type);
      DistributedDataParallel ddp({network.parameters()}, job, {.accumulate_allreduce_grads_in_fp32 = false});
      ddp.begin_step(1);
      network.loss(seed_of(job)).backward();
      ddp.finish_grad_sync();
      EXPECT_EQ(ddp.buffers()[0]->grads().scalar_type(), type);
      EXPECT_EQ(network.parameters()[0]->grad_sink() != nullptr, type == at::kBFloat16);
      for (size_t p = 0; p < 4; ++p) {
        const std::string name = network.parameters()[p]->spec.name;
        expect_close(grad_of(ddp, name), wanted_grad(p, 2, 1), 0.05, name);
      }
    }
  });
}

// Main gradients in bf16 compared with those in fp32. Let u = 2^-9, the largest relative error of rounding to bf16, g_k
// the gradient of micro-batch k, which sinks get in fp32 and autograd rounds to bf16, and s_k = g_1 + ... + g_k. A rank
// rounds every s_k, so that it is off by at most u (|s_1| + ... + |s_n| + |g_1| + ... + |g_n|), and the reduction of d
// ranks rounds at most d - 1 more sums. w1 is used twice: the sum after its first addition is rounded too. The factor
// 1.02 is for products of these errors.
TEST(DataParallel, Bf16MainGradsAreThoseInFp32WithinTheRoundingOfTheirSums) {
  constexpr double kUnit = 0x1p-9;
  constexpr int64_t kMicroBatches = 16;
  expect_job(2, {}, [](ParallelContext& job) {
    for (const bool shards : {false, true}) {
      SmallNetwork network(at::kBFloat16), narrow_network(at::kBFloat16);
      const DataParallelOptions options{.use_distributed_optimizer = shards, .calculate_per_token_loss = true};
      DataParallelOptions narrow_options = options;
      narrow_options.accumulate_allreduce_grads_in_fp32 = false;
      DistributedDataParallel wide({network.parameters()}, job, options),
          narrow({narrow_network.parameters()}, job, narrow_options);
      const at::Tensor &grads = wide.buffers()[0]->grads(), &own = narrow.buffers()[0]->grads();
      ASSERT_EQ(own.scalar_type(), at::kBFloat16);
      at::Tensor sum = at::zeros_like(grads), bound = at::zeros_like(grads), magnitude = at::zeros_like(grads);
      const at::Tensor w1 = grad_of(wide, "w1");
      const auto of_w1 = [&](const at::Tensor& flat) { return flat.narrow(0, w1.storage_offset(), w1.numel()); };
      std::vector<at::Tensor> after;  // additions to w1
      GradSink& sink = network.parameters()[0]->sink;
      sink.added = [&, inner = sink.added] {
        inner();
        after.push_back(w1.flatten().clone());
      };
      narrow.begin_step(kMicroBatches);
      for (int64_t k = 0; k < kMicroBatches; ++k) {
        const uint64_t seed = seed_of(job) + 100 * static_cast<uint64_t>(k);
        wide.begin_step(1, /*defer_reduction=*/true);
        network.loss(seed).backward();
        wide.flush_grads();
        ASSERT_EQ(after.size(), 2u);
        of_w1(bound) += kUnit * (of_w1(sum) + after[0]).abs();
        after.clear();
        sum += grads;
        magnitude += grads.abs();
        bound += kUnit * (sum.abs() + grads.abs());
        narrow_network.loss(seed).backward();
      }
      narrow.finish_grad_sync();
      bound += kUnit * magnitude;
      for (const at::Tensor& each : {sum, bound}) job.world_group().all_reduce(each).wait();
      double used = 0;
      for (const BufferRange& part : narrow.buffers()[0]->owned()) {
        const at::Tensor off = (GradBuffer::part(own, part) - GradBuffer::part(sum, part)).abs();
        used = std::max(used, (off / (GradBuffer::part(bound, part) * 1.02 + 1e-30)).max().item<double>());
      }
      EXPECT_LE(used, 1) << shards;
      EXPECT_GE(used, 0.02) << "the gradients are not in bf16";
    }
  });
}

// An operator may sum the gradient of a 16-bit parameter in fp32; 1 + 2^-12 is not a 16-bit number.
TEST(DataParallel, Fp32GradientsOfSixteenBitParametersAreNotRounded) {
  expect_job(1, {}, [](ParallelContext& job) {
    SmallNetwork network(at::kBFloat16);
    DistributedDataParallel ddp({network.parameters()}, job, {});
    const at::Tensor norm = network.parameters()[2]->value;
    const at::Tensor wide = at::full(norm.sizes(), 1 + 1.0 / 4096, at::kFloat);
    ddp.begin_step(2);
    for (int i = 0; i < 2; ++i) {
      const auto run = [&] { return ops::Forward{norm.sum(), {}}; };
      ops::differentiable("sum", {norm}, run, [wide](const ops::Backward&) { return ops::Tensors{wide}; }).backward();
    }
    ddp.flush_grads();
    EXPECT_TRUE(at::equal(grad_of(ddp, "norm"), wide + wide));
  });
}

// Each micro-batch adds two halves, and autograd's hook runs for both.
TEST(DataParallel, SixteenBitGradientsMayComeInParts) {
  expect_job(2, {}, [](ParallelContext& job) {
    SmallNetwork network(at::kHalf);
    for (Parameter* parameter : network.parameters()) parameter->comes_in_parts = true;
    DistributedDataParallel ddp({network.parameters()}, job,
                                {.accumulate_allreduce_grads_in_fp32 = false, .ddp_bucket_size = 64});
    ddp.begin_step(1);
    for (int part = 0; part < 2; ++part) network.loss(seed_of(job)).mul(0.5).backward();
    ddp.finish_grad_sync();
    for (size_t p = 0; p < 4; ++p) {
      const std::string name = network.parameters()[p]->spec.name;
      expect_close(grad_of(ddp, name), wanted_grad(p, 2, 1), 0.05, name);
    }
  });
}

TEST(DataParallel, ABadGradientIsNamedWithItsParameterAndRank) {
  const int port = free_port();
  const TemporaryFolder folder;
  const auto outcomes = run_ranks(2, [&](int rank) {
    enter_job(rank, 2, port);
    ParallelContext& job = initialize({.ddp_timeout = 60, .flight_folder = folder.path()});
    SmallNetwork network;
    DistributedDataParallel ddp({network.parameters()}, job,
                                {.overlap_grad_reduce = false, .check_for_nan_in_grad = true});
    for (int step = 0; step < 2; ++step) {
      ddp.begin_step(1);
      network.loss(1).backward();
      ddp.flush_grads();
      if (rank == 1 && step == 1) grad_of(ddp, "norm")[3] = std::numeric_limits<float>::quiet_NaN();
      ddp.finish_grad_sync();
    }
  });
  EXPECT_THAT(outcomes[1].output, HasSubstr("rank 1: the gradient of norm contains NaN before reduction"));
  EXPECT_NE(outcomes[0].code, 0);
  EXPECT_NE(outcomes[1].code, 0);
}

// ------------------------------------------------------------------------------------------------------ optimizer

// Trains |steps| and returns this rank's parameters.
at::Tensor trained(ParallelContext& job, const DataParallelOptions& ddp_options, const OptimizerOptions& options,
                   at::ScalarType type = at::kFloat, int steps = 5) {
  SmallNetwork network(type);
  DistributedDataParallel ddp({network.parameters()}, job, ddp_options);
  Optimizer optimizer(ddp, options);
  for (int i = 0; i < steps; ++i) {
    ddp.begin_step(1);
    network.loss(seed_of(job) + 7 * static_cast<uint64_t>(i)).backward();
    finalize_grads(ddp);
    EXPECT_TRUE(optimizer.step({.lr = 1e-2, .weight_decay = 0.1}).updated);
  }
  ddp.finish_param_gather();
  std::vector<at::Tensor> all;
  for (const Parameter* parameter : network.parameters()) all.push_back(parameter->value.detach().flatten().clone());
  return at::cat(all);
}

TEST(Optimizers, ShardsOverlapAndOffloadDoNotChangeABit) {
  expect_job(2, {}, [](ParallelContext& job) {
    for (const OptimizerType rule : {OptimizerType::adam, OptimizerType::sgd}) {
      for (const auto type : {at::kFloat, at::kBFloat16, at::kHalf}) {
        const at::Tensor plain = trained(job, {.overlap_grad_reduce = false}, {.optimizer = rule}, type);
        for (int how = 0; how < 8; ++how) {
          const bool shards = how & 1, overlap = how & 2, offload = how & 4;
          const at::Tensor other =
              trained(job,
                      {.use_distributed_optimizer = shards,
                       .overlap_grad_reduce = overlap,
                       .overlap_param_gather = shards && overlap,
                       .ddp_bucket_size = 100},
                      {.optimizer = rule, .optimizer_cpu_offload = offload, .optimizer_offload_fraction = 0.37}, type);
          EXPECT_TRUE(plain.equal(other)) << name_of(rule) << type << how;
        }
      }
    }
  });
}

// 3 elements split over tp (6 in total), a norm of 2 that both tp ranks hold, an embedding of 5 on both stages, one of
// 4 split over tp on each stage; all gradients are 2, so the norm is 2 sqrt(count).
TEST(Optimizers, TheNormCountsEveryElementOnce) {
  for (const int dp : {1, 2}) {
    expect_job(4 * dp, {.tensor_model_parallel_size = 2, .pipeline_model_parallel_size = 2}, [&](ParallelContext& job) {
      for (const bool shards : {false, true}) {
        std::vector<Parameter> parameters;
        parameters.push_back(parameter_of("cut", at::zeros({3})));
        parameters.push_back(parameter_of("norm", at::zeros({2})));
        parameters.back().spec.replicated_over = {GroupKind::tp};
        parameters.push_back(parameter_of("embedding", at::zeros({5})));
        parameters.back().shared_embedding = true;
        std::vector<Parameter*> list;
        for (Parameter& parameter : parameters) list.push_back(&parameter);
        DistributedDataParallel ddp({list}, job, {.use_distributed_optimizer = shards});
        Optimizer optimizer(ddp, {.log_num_zeros_in_grad = true});
        ddp.begin_step(1);
        ddp.flush_grads();
        for (const GradBuffer* buffer : ddp.buffers()) buffer->grads().fill_(2);
        const StepResult result = optimizer.step({.lr = 0});
        const double counted = 2 * 2 * 3 + 2 * 2 + 2 * 5;  // tp x pp x split, pp x norm, tp x embedding
        EXPECT_NEAR(result.grad_norm, 2 * std::sqrt(counted), 1e-5) << shards;
        EXPECT_EQ(result.zeros, 0);
        ddp.begin_step(1);
        ddp.flush_grads();
        EXPECT_EQ(optimizer.step({.lr = 0}).zeros, static_cast<int64_t>(counted)) << shards;
      }
    });
  }
}

TEST(Optimizers, AnOverflowOnOneRankSkipsTheStepOnAll) {
  expect_job(2, {}, [](ParallelContext& job) {
    for (const bool shards : {false, true}) {
      SmallNetwork network;
      DistributedDataParallel ddp({network.parameters()}, job, {.use_distributed_optimizer = shards});
      Optimizer optimizer(ddp, {});
      const at::Tensor before = ddp.buffers()[0]->values().clone();
      ddp.begin_step(1);
      network.loss(1).backward();
      ddp.finish_grad_sync();
      // After the reduction, at the buffer's end: rank 0 does not own it or, without shards, does not check it.
      if (job.rank() == 1) grad_of(ddp, "w1").flatten()[-1].fill_(INFINITY);
      const StepResult result = optimizer.step({.lr = 1});
      EXPECT_FALSE(result.updated) << shards;
      EXPECT_FALSE(std::isfinite(result.grad_norm));
      EXPECT_EQ(optimizer.steps(), 0);
      EXPECT_TRUE(ddp.buffers()[0]->values().equal(before));
      ddp.begin_step(1);
      network.loss(1).backward();
      finalize_grads(ddp);
      EXPECT_TRUE(optimizer.step({.lr = 1}).updated);
      EXPECT_EQ(optimizer.steps(), 1);
    }
  });
}

TEST(Optimizers, TheLossScaleIsDividedOut) {
  expect_job(1, {}, [](ParallelContext& job) {
    const auto run = [&](double scale) {
      SmallNetwork network;
      DistributedDataParallel ddp({network.parameters()}, job);
      Optimizer optimizer(ddp, {});
      ddp.begin_step(1);
      network.loss(1).mul(scale).backward();
      finalize_grads(ddp);
      const StepResult result = optimizer.step({.lr = 0.1, .grad_divisor = scale});
      return std::pair(result.grad_norm, ddp.buffers()[0]->values().clone());
    };
    const auto [norm, values] = run(1);
    const auto [scaled_norm, scaled_values] = run(65536);  // a power of two: bitwise identical
    EXPECT_FLOAT_EQ(static_cast<float>(norm), static_cast<float>(scaled_norm));
    EXPECT_LE(values.sub(scaled_values).abs().max().item<double>(), 1e-6);
  });
}

// Compares the formula that `concord plan --buckets` prints with the actual tensors.
TEST(Optimizers, MemoryIsWithinFivePercentOfTheFormula) {
  expect_job(4, {}, [](ParallelContext& job) {
    for (const auto type : {at::kFloat, at::kBFloat16}) {
      for (const bool shards : {false, true}) {
        std::vector<Parameter> parameters;
        for (int i = 0; i < 6; ++i) parameters.push_back(parameter_of("w", at::zeros({300, 101 + i}, type)));
        std::vector<Parameter*> list;
        for (Parameter& parameter : parameters) list.push_back(&parameter);
        DistributedDataParallel ddp({list}, job, {.use_distributed_optimizer = shards, .ddp_bucket_size = 50000});
        const Optimizer optimizer(ddp, {});
        int64_t bytes = optimizer.state_bytes();
        for (const GradBuffer* buffer : ddp.buffers()) bytes += buffer->values().nbytes() + buffer->grads().nbytes();
        const auto formula = static_cast<double>(memory_of(ddp.plan(0)).total());
        EXPECT_NEAR(static_cast<double>(bytes), formula, 0.05 * formula) << type << shards;
      }
    }
  });
}

// ----------------------------------------------------------------------------------------------------------- state

using Addressed = std::map<std::pair<std::string, std::pair<std::string, int64_t>>, float>;

void add(Addressed& all, const OptimizerState& state) {
  for (const OptimizerState::Entry& entry : state.entries) {
    const float* values = entry.values.const_data_ptr<float>();
    for (const ShardRun& run : entry.runs) {
      for (int64_t i = 0; i < run.count; ++i) {
        const int64_t index = run.offset + i / run.run_length * run.run_stride + i % run.run_length;
        all[{entry.key, {run.tensor, index}}] = values[run.local + i];
      }
    }
  }
}

void write(const std::string& path, const OptimizerState& state) {
  std::ofstream file(path, std::ios::binary);
  file.precision(9);
  file << state.steps << " " << state.entries.size() << "\n";
  for (const OptimizerState::Entry& entry : state.entries) {
    file << entry.key << " " << entry.runs.size() << " " << entry.values.numel() << "\n";
    for (const ShardRun& r : entry.runs) {
      file << r.tensor << " " << r.local << " " << r.count << " " << r.offset << " " << r.run_length << " "
           << r.run_stride << "\n";
    }
    for (int64_t i = 0; i < entry.values.numel(); ++i) file << entry.values.const_data_ptr<float>()[i] << " ";
  }
}

OptimizerState read(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  OptimizerState state;
  size_t entries = 0, runs = 0;
  int64_t values = 0;
  file >> state.steps >> entries;
  for (size_t e = 0; e < entries; ++e) {
    OptimizerState::Entry& entry = state.entries.emplace_back();
    file >> entry.key >> runs >> values;
    entry.runs.resize(runs);
    for (ShardRun& r : entry.runs) file >> r.tensor >> r.local >> r.count >> r.offset >> r.run_length >> r.run_stride;
    entry.values = at::zeros({values});
    for (int64_t i = 0; i < values; ++i) file >> entry.values.data_ptr<float>()[i];
  }
  return state;
}

std::vector<OptimizerState> states_in(const std::string& folder, int world) {
  std::vector<OptimizerState> states;
  for (int rank = 0; rank < world; ++rank) states.push_back(read(folder + "/" + std::to_string(rank)));
  return states;
}

// Saved by two ranks with shards, loaded by three with different shards and by one without, then saved again.
TEST(Optimizers, StateMovesToAnyLayoutUnderItsGlobalNames) {
  for (const auto type : {at::kFloat, at::kBFloat16}) {
    const TemporaryFolder folder;
    expect_job(2, {}, [&](ParallelContext& job) {
      SmallNetwork network(type);
      DistributedDataParallel ddp({network.parameters()}, job,
                                  {.use_distributed_optimizer = true, .ddp_bucket_size = 100});
      Optimizer optimizer(ddp, {.optimizer_cpu_offload = true, .optimizer_offload_fraction = 0.5});
      for (uint64_t i = 0; i < 3; ++i) {
        ddp.begin_step(1);
        network.loss(seed_of(job) + i).backward();
        finalize_grads(ddp);
        optimizer.step({.lr = 1e-2});
      }
      write(folder.path() + "/" + std::to_string(job.rank()), optimizer.state());
    });
    const std::vector<OptimizerState> states = states_in(folder.path(), 2);
    Addressed saved;
    for (const OptimizerState& state : states) add(saved, state);
    const size_t parameters = 24 * 24 + 24 + 24 + 3 * 24;
    ASSERT_EQ(saved.size(), parameters * (type == at::kFloat ? 2 : 3));
    for (const int world : {1, 3}) {
      const TemporaryFolder again;
      expect_job(world, {}, [&](ParallelContext& job) {
        SmallNetwork network(type);
        DistributedDataParallel ddp({network.parameters()}, job, {.use_distributed_optimizer = world > 1});
        Optimizer optimizer(ddp, {});
        optimizer.load_state(StateIndex(states));
        EXPECT_EQ(optimizer.steps(), 3);
        write(again.path() + "/" + std::to_string(job.rank()), optimizer.state());
        if (type == at::kFloat) return;
        const at::Tensor w2 = network.parameters()[3]->value.detach().flatten();  // follows the main weights
        for (int64_t i = 0; i < w2.numel(); ++i) {
          const at::Tensor main = at::full({1}, saved.at({"main", {"w2", i}}), at::kFloat).to(type);
          EXPECT_TRUE(w2.narrow(0, i, 1).equal(main));
        }
      });
      Addressed loaded;
      for (const OptimizerState& state : states_in(again.path(), world)) add(loaded, state);
      EXPECT_TRUE(loaded == saved) << world;
    }
  }
}

// The ranks of a machine write the whole state alone, whatever those of another machine do.
TEST(Optimizers, StateIsWrittenWholeOnEachMachine) {
  for (const auto type : {at::kFloat, at::kBFloat16}) {
    const TemporaryFolder folder;
    expect_job(3, {}, [&](ParallelContext& job) {
      SmallNetwork network(type), other(type);
      for (Parameter* parameter : network.parameters()) parameter->spec.replicated_over = {GroupKind::dp_cp};
      DistributedDataParallel ddp({network.parameters()}, job, {}), second({other.parameters()}, job, {});
      Optimizer optimizer(ddp, {}), loaded(second, {});
      ddp.begin_step(1);
      network.loss(seed_of(job)).backward();
      finalize_grads(ddp);
      optimizer.step({.lr = 1e-2});
      const RankRange machine = job.rank() < 2 ? RankRange{0, 2} : RankRange{2, 3};
      const std::string target = folder.path() + "/" + std::to_string(machine.begin);
      HfSaveOptions save{.with_config = false, .writers = machine};
      save.more.push_back(saved_tensors(optimizer.state_tensors(), optimizer.saved_state(machine)));
      SaveJob(target, network.parameters(), job, save, SaveJob::Source::live).wait();
      loaded.load_state(OptimizerFiles(target, 1));
      Addressed expected, found;
      add(expected, optimizer.state());
      add(found, loaded.state());
      EXPECT_TRUE(found == expected);
    });
  }
}

// Each rank holds all of the state, or its shard: in both cases the ranks together read the files once.
TEST(Optimizers, StateIsReadOncePerDataParallelGroup) {
  for (const auto type : {at::kFloat, at::kBFloat16}) {
    for (const bool is_sharded : {false, true}) {
      const TemporaryFolder folder;
      expect_job(3, {}, [&](ParallelContext& job) {
        SmallNetwork network(type), other(type);
        for (Parameter* parameter : network.parameters()) parameter->spec.replicated_over = {GroupKind::dp_cp};
        const DataParallelOptions options{.use_distributed_optimizer = is_sharded, .ddp_bucket_size = 100};
        DistributedDataParallel ddp({network.parameters()}, job, options), second({other.parameters()}, job, options);
        Optimizer optimizer(ddp, {}), loaded(second, {});
        ddp.begin_step(1);
        network.loss(seed_of(job)).backward();
        finalize_grads(ddp);
        optimizer.step({.lr = 1e-2});
        HfSaveOptions save{.with_config = false, .chunk_bytes = 100};  // not a multiple of a row
        save.more.push_back(saved_tensors(optimizer.state_tensors(), optimizer.saved_state()));
        SaveJob(folder.path() + "/c", network.parameters(), job, save, SaveJob::Source::live).wait();

        const OptimizerFiles files(folder.path() + "/c", 1);
        loaded.load_state(files, /*share_reads=*/true);
        Addressed expected, found;
        add(expected, optimizer.state());
        add(found, loaded.state());
        EXPECT_TRUE(found == expected);
        for (size_t i = 0; type == at::kBFloat16 && i < 4; ++i) {  // they follow the main weights
          EXPECT_TRUE(network.parameters()[i]->value.equal(other.parameters()[i]->value)) << i;
        }
        const int64_t values = (24 * 24 + 24 + 24 + 3 * 24) * (type == at::kFloat ? 2 : 3);
        const auto own = static_cast<int64_t>(files.bytes_read());
        EXPECT_EQ(all_reduce_scalar(job, own, ReduceOp::kSum), values * static_cast<int64_t>(sizeof(float)));
        if (!is_sharded) {
          EXPECT_LE(own, values * 2) << "about a third";
        }
      });
    }
  }
}

// ---------------------------------------------------------------------------------------------------------- faults

// Returns the error of rank 0 if rank 1 exits in |where|.
std::string words_about_a_dead_rank(const std::string& where) {
  const int port = free_port();
  const TemporaryFolder folder;
  const auto outcomes = run_ranks(2, [&](int rank) {
    enter_job(rank, 2, port);
    ParallelContext& job = initialize({.ddp_timeout = 60, .flight_folder = folder.path()});
    SmallNetwork network;
    DistributedDataParallel ddp({network.parameters()}, job, {.use_distributed_optimizer = true});
    Optimizer optimizer(ddp, {});
    for (int i = 0; i < 2; ++i) {
      ddp.begin_step(1);
      network.loss(1).backward();
      if (i == 1 && rank == 1 && where == "reduction") raise(SIGKILL);
      finalize_grads(ddp);
      if (i == 1 && where == "gather") {
        if (rank == 1) raise(SIGKILL);
        ddp.gather_parameters();
      }
      optimizer.step({.lr = 1e-3});
    }
  });
  EXPECT_EQ(outcomes[1].signal, SIGKILL);
  EXPECT_FALSE(outcomes[0].ok());
  EXPECT_FALSE(outcomes[0].deadline);
  return outcomes[0].output;
}

TEST(Faults, ARankThatDiesInTheReductionIsNamed) {
  EXPECT_THAT(words_about_a_dead_rank("reduction"), HasSubstr("rank 1 is behind"));
}

TEST(Faults, ARankThatDiesInTheGatherOfParametersIsNamed) {
  EXPECT_THAT(words_about_a_dead_rank("gather"), AllOf(HasSubstr("all_gather"), HasSubstr("rank 1 is behind")));
}

}  // namespace
}  // namespace concord::tests
