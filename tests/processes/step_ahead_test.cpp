// Steps that are validated after the fact, in real processes: to the last bit those that wait for the gradient norm.
#include <ATen/core/Tensor.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <limits>

#include "core/data_parallel/finalize_grads.h"
#include "core/models/auto_model.h"
#include "core/optim/optimizer.h"
#include "core/pipeline/executor.h"
#include "core/pipeline/model_stage.h"
#include "core/schedule/step_schedule.h"
#include "platform/loader/error.h"
#include "tests/processes/group_job.h"
#include "tests/processes/parallel_samples.h"

namespace concord::tests {
namespace {

const std::string kGolden = CONCORD_GOLDEN;

enum class Kind { plain, clipped, nan };
// Every change between them; a step that follows a clipped one is waited for.
constexpr Kind kSteps[] = {Kind::plain, Kind::clipped, Kind::clipped, Kind::plain, Kind::plain,
                           Kind::nan,   Kind::clipped, Kind::nan,     Kind::plain, Kind::clipped};
constexpr double kLimit = 100;  // of the norm; the losses' weights make it a tenth of that, or more than ten times

struct Case {
  std::string kind = "zb-h1";
  bool shards = false;  // ZeRO-1
  bool overlaps = false;
  c10::ScalarType dtype = c10::kFloat;
  double offload = 0;
  std::string optimizer = "adam";
};

struct Record {
  std::vector<StepResult> results;
  std::vector<double> losses;  // on the last stage
  std::vector<at::Tensor> values;
  OptimizerState state;
  int taken_back = 0;
};

class Training {
 public:
  Training(const Case& how, bool ahead, ParallelContext& job)
      : how_(how),
        ahead_(ahead),
        job_(job),
        schedule_(step_schedule({.kind = how.kind, .pp = job.layout().pp(), .microbatches = 2 * job.layout().pp()})),
        models_(AutoModel::from_config(config(), {.dtype = how.dtype, .placement = placement_of(schedule_)}, job)),
        ddp_(chunks(), job,
             {.use_distributed_optimizer = how.shards,
              .overlap_grad_reduce = how.overlaps,
              .overlap_param_gather = how.shards && how.overlaps}),
        optimizer_(ddp_, {.optimizer = how.optimizer,
                          .max_grad_norm = kLimit,
                          .log_num_zeros_in_grad = true,
                          .optimizer_cpu_offload = how.offload > 0,
                          .optimizer_offload_fraction = how.offload}),
        executor_(schedule_, stages(), job) {}

  Record run() {
    for (size_t i = 0; i < std::size(kSteps); ++i) step(i);
    if (!optimizer_.is_settled()) settle();
    ddp_.finish_param_gather();
    for (const GradBuffer* buffer : ddp_.buffers()) record_.values.push_back(buffer->values().clone());
    record_.state = optimizer_.state();
    return std::move(record_);
  }

 private:
  ModelConfig config() const {
    ModelConfig config = read_model_config(kGolden + "/hf/qwen2-tiny");
    config.num_hidden_layers = schedule_.stages();
    config.windows.assign(static_cast<size_t>(schedule_.stages()), 0);
    return config;
  }
  std::vector<DistributedDataParallel::Chunk> chunks() {
    std::vector<DistributedDataParallel::Chunk> all(models_.size());
    for (size_t i = 0; i < models_.size(); ++i) {
      for (Parameter& parameter : models_[i].parameters()) all[i].push_back(&parameter);
    }
    return all;
  }
  std::vector<Stage*> stages() {
    std::vector<Stage*> all;
    for (size_t i = 0; i < models_.size(); ++i) all.push_back(&stages_.emplace_back(models_[i]));
    return all;
  }

  bool settle() {
    const SettledStep settled = optimizer_.settle();
    record_.results.push_back(settled.result);
    record_.taken_back += settled.taken_back;
    return settled.taken_back;
  }

  void step(size_t number) {
    const size_t count = static_cast<size_t>(schedule_.microbatches);
    std::vector<MicroBatch> batches;
    for (size_t i = 0; i < count; ++i) {
      const uint64_t seed = 1000 * number + 10 * i + static_cast<uint64_t>(job_.coordinates().dp);
      const at::Tensor ids = sample({1, 9}, seed, at::kFloat).abs().mul(1000).to(at::kLong).remainder(320);
      batches.push_back({.input_ids = ids.narrow(1, 0, 8), .labels = ids.narrow(1, 1, 8)});
    }
    const double weight = kSteps[number] == Kind::clipped ? 10 : 0.01;
    for (ModelStage& stage : stages_) stage.begin(batches, std::vector<double>(count, weight));
    const bool done = executor_.run([&] {
      const bool again = !optimizer_.is_settled() && settle();
      ddp_.begin_step(static_cast<int64_t>(count));
      return again ? Resume::again : Resume::go_on;
    });
    EXPECT_TRUE(done);
    if (stages_.back().is_last()) record_.losses.push_back(stages_.back().loss_sum());
    finalize_grads(ddp_);
    // On one stage only: the others cannot know.
    if (kSteps[number] == Kind::nan && job_.coordinates().pp == job_.layout().pp() - 1) {
      for (const GradBuffer* buffer : ddp_.buffers()) buffer->grads().fill_(std::numeric_limits<float>::quiet_NaN());
    }
    update(number);
  }

  void update(size_t number) {
    const StepSettings settings{.lr = 1e-2 / static_cast<double>(number + 1), .weight_decay = 0.1};
    if (!ahead_) {
      record_.results.push_back(optimizer_.step(settings));
      return;
    }
    optimizer_.step_ahead(settings);
    EXPECT_THROW(optimizer_.state(), Error);
    EXPECT_THROW(optimizer_.step(settings), Error);
  }

  Case how_;
  bool ahead_;
  ParallelContext& job_;
  Schedule schedule_;
  VirtualModels models_;
  DistributedDataParallel ddp_;
  Optimizer optimizer_;
  std::deque<ModelStage> stages_;
  Executor executor_;
  Record record_;
};

void expect_equal(const Record& ahead, const Record& waiting) {
  ASSERT_EQ(ahead.results.size(), waiting.results.size());
  for (size_t i = 0; i < ahead.results.size(); ++i) {
    const StepResult &a = ahead.results[i], &b = waiting.results[i];
    EXPECT_EQ(b.updated, kSteps[i] != Kind::nan) << i;
    EXPECT_EQ(b.grad_norm > kLimit, kSteps[i] == Kind::clipped) << i << ": " << b.grad_norm;
    EXPECT_EQ(a.updated, b.updated) << i;
    EXPECT_TRUE(a.grad_norm == b.grad_norm || (std::isnan(a.grad_norm) && std::isnan(b.grad_norm))) << i;
    EXPECT_EQ(a.zeros, b.zeros) << i;
  }
  EXPECT_EQ(ahead.losses, waiting.losses);
  for (size_t i = 0; i < ahead.values.size(); ++i) EXPECT_TRUE(ahead.values[i].equal(waiting.values[i])) << i;
  EXPECT_EQ(ahead.state.steps, waiting.state.steps);
  ASSERT_EQ(ahead.state.entries.size(), waiting.state.entries.size());
  for (size_t i = 0; i < ahead.state.entries.size(); ++i) {
    EXPECT_TRUE(ahead.state.entries[i].values.equal(waiting.state.entries[i].values)) << ahead.state.entries[i].key;
  }
  EXPECT_EQ(waiting.taken_back, 0);
  EXPECT_EQ(ahead.taken_back, 4) << "all that were not right, but those after a clipped one, which were waited for";
}

void expect_steps_of_waiting(const Case& how, ParallelContext& job) {
  SCOPED_TRACE(how.kind + (how.shards ? ", ZeRO-1" : "") + (how.overlaps ? ", overlapping" : ""));
  const Record waiting = Training(how, false, job).run();
  expect_equal(Training(how, true, job).run(), waiting);
}

TEST(StepAhead, IsTheStepThatWaitsOnTwoStages) {
  expect_job(2, {.pipeline_model_parallel_size = 2}, [](ParallelContext& job) {
    expect_steps_of_waiting({.kind = "zb-h1"}, job);
    expect_steps_of_waiting({.kind = "zb-h1", .dtype = c10::kBFloat16}, job);
    expect_steps_of_waiting({.kind = "zb-h1", .dtype = c10::kBFloat16, .offload = 0.4}, job);
    expect_steps_of_waiting({.kind = "zb-h1", .offload = 0.4, .optimizer = "sgd"}, job);
  });
  expect_job(2, {.pipeline_model_parallel_size = 2, .virtual_pipeline_model_parallel_size = 2},
             [](ParallelContext& job) { expect_steps_of_waiting({.kind = "zb-v"}, job); });
}

TEST(StepAhead, IsTheStepThatWaitsOnTwoStagesWithShards) {
  expect_job(4, {.pipeline_model_parallel_size = 2}, [](ParallelContext& job) {
    expect_steps_of_waiting({.kind = "zb-h1"}, job);
    expect_steps_of_waiting({.kind = "zb-h1", .shards = true}, job);
    expect_steps_of_waiting({.kind = "zb-h1", .shards = true, .overlaps = true, .dtype = c10::kBFloat16}, job);
  });
  expect_job(4, {.pipeline_model_parallel_size = 2, .virtual_pipeline_model_parallel_size = 2},
             [](ParallelContext& job) { expect_steps_of_waiting({.kind = "zb-v", .shards = true}, job); });
}

TEST(StepAhead, IsTheStepThatWaitsOnFourStages) {
  expect_job(4, {.pipeline_model_parallel_size = 4},
             [](ParallelContext& job) { expect_steps_of_waiting({.kind = "zb-h1"}, job); });
  expect_job(4, {.pipeline_model_parallel_size = 4, .virtual_pipeline_model_parallel_size = 2},
             [](ParallelContext& job) { expect_steps_of_waiting({.kind = "zb-v"}, job); });
}

TEST(StepAhead, IsTheStepThatWaitsOnFourStagesWithShards) {
  expect_job(8, {.pipeline_model_parallel_size = 4},
             [](ParallelContext& job) { expect_steps_of_waiting({.kind = "zb-h1", .shards = true}, job); });
  expect_job(
      8, {.pipeline_model_parallel_size = 4, .virtual_pipeline_model_parallel_size = 2},
      [](ParallelContext& job) { expect_steps_of_waiting({.kind = "zb-v", .shards = true, .overlaps = true}, job); });
}

TEST(StepAhead, SettlesOnlyWhatWasBegun) {
  expect_job(1, {}, [](ParallelContext& job) {
    Parameter parameter{.spec = {.name = "w", .dims = {{.size = 3}}},
                        .init = constant_init(0),
                        .value = sample({3}, 1, at::kFloat).requires_grad_(true)};
    DistributedDataParallel ddp({{&parameter}}, job);
    Optimizer optimizer(ddp, {});
    EXPECT_TRUE(optimizer.is_settled());
    EXPECT_THROW(optimizer.settle(), Error);
    ddp.begin_step(1);
    optimizer.step_ahead({.lr = 0.1});
    EXPECT_FALSE(optimizer.is_settled());
    EXPECT_THROW(optimizer.step_ahead({.lr = 0.1}), Error);
    EXPECT_THROW(optimizer.steps(), Error);
    EXPECT_TRUE(optimizer.settle().result.updated);
    EXPECT_EQ(optimizer.steps(), 1);
  });
}

}  // namespace
}  // namespace concord::tests
