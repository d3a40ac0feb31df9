// The executor in real processes, compared with the same network on one rank without a pipeline.
#include <gmock/gmock.h>

#include "core/base/config_error.h"
#include "core/ops/derivative.h"
#include "core/pipeline/executor.h"
#include "core/schedule/passes.h"
#include "core/schedule/schedule_csv.h"
#include "core/schedule/schedules.h"
#include "tests/processes/groups/group_job.h"
#include "tests/processes/pipeline_toy.h"

namespace concord::tests {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAreArray;
using ::testing::HasSubstr;

Schedule plan(const std::string& kind, int64_t pp, int64_t microbatches, int64_t vpp = 0) {
  return complete_schedule(make_schedule({.kind = kind, .pp = pp, .microbatches = microbatches, .vpp = vpp}));
}

// Runs twice: state of the first run must not affect the second.
void expect_gradients_of_one_process(const Schedule& schedule, ParallelContext& job,
                                     const ExecutorOptions& options = {}) {
  SCOPED_TRACE(schedule.kind + " of " + std::to_string(schedule.microbatches) + " micro-batches");
  ProcessGroup& tp = job.group(GroupKind::tp);
  ToyReference reference(schedule.microbatches, tp);
  const std::vector<int> mine = stages_of(schedule, static_cast<int>(job.coordinates().pp));
  std::deque<ToyStage> stages = toy_stages(schedule, static_cast<int>(job.coordinates().pp), tp);
  Executor executor(schedule, pointers(stages), job, options);
  for (int step = 0; step < 2; ++step) {
    for (ToyStage& stage : stages) stage.clear();
    executor.run();
    for (size_t chunk = 0; chunk < stages.size(); ++chunk) {
      const size_t each = stages[chunk].blocks().size();
      for (size_t i = 0; i < each; ++i) {
        const auto expected = reference.grads(mine[chunk] * static_cast<int>(each) + static_cast<int>(i));
        const auto found = stages[chunk].blocks()[i].grads();
        for (size_t k = 0; k < found.size(); ++k) {
          ASSERT_TRUE(found[k].defined());
          EXPECT_TRUE(found[k].equal(expected[k]))
              << "step " << step << ", stage " << mine[chunk] << ", block " << i << ", gradient " << k;
        }
      }
      EXPECT_EQ(stages[chunk].losses().size(), stages[chunk].is_last() ? schedule.microbatches : 0u);
      for (const auto& [microbatch, loss] : stages[chunk].losses()) {
        EXPECT_TRUE(loss.equal(reference.whole.losses().at(microbatch)));
      }
    }
  }
}

void expect_hooks(const Schedule& schedule, ParallelContext& job) {
  SCOPED_TRACE(schedule.kind);
  std::deque<ToyStage> stages = toy_stages(schedule, static_cast<int>(job.coordinates().pp), job.group(GroupKind::tp));
  Executor(schedule, pointers(stages), job).run();
  const bool splits = schedule.kind.starts_with("zb");
  for (const ToyStage& stage : stages) {
    const int all = 2 * kBlocks / schedule.stages() * schedule.microbatches;
    EXPECT_EQ(stage.deferred(), splits);
    EXPECT_FALSE(stage.defers()) << "the run is over";
    EXPECT_EQ(stage.reductions(), 1);
    EXPECT_EQ(stage.added_at_reduction(), all) << "a gradient came after its reduction began";
  }
}

TEST(PipelineRun, GradientsOnTwoRanksAreThoseOfOneProcess) {
  expect_job(2, {.pipeline_model_parallel_size = 2}, [](ParallelContext& job) {
    for (const char* kind : {"gpipe", "1f1b", "zb-h1", "zb-v"}) {
      for (const int microbatches : {1, 2, 3, 8}) expect_gradients_of_one_process(plan(kind, 2, microbatches), job);
    }
    for (const int microbatches : {2, 3, 8}) {
      expect_gradients_of_one_process(plan("interleaved", 2, microbatches == 3 ? 4 : microbatches, 2), job);
      expect_gradients_of_one_process(plan("interleaved", 2, microbatches == 3 ? 6 : microbatches, 4), job);
    }
  });
}

TEST(PipelineRun, GradientsOnFourRanksAreThoseOfOneProcess) {
  expect_job(4, {.pipeline_model_parallel_size = 4}, [](ParallelContext& job) {
    for (const char* kind : {"gpipe", "1f1b", "zb-h1", "zb-v"}) {
      for (const int microbatches : {1, 3, 11}) expect_gradients_of_one_process(plan(kind, 4, microbatches), job);
    }
    for (const int microbatches : {4, 8}) {
      expect_gradients_of_one_process(plan("interleaved", 4, microbatches, 2), job);
    }
  });
}

TEST(PipelineRun, GradientsUnderTensorParallelismAreThoseWithoutThePipeline) {
  expect_job(4, {.tensor_model_parallel_size = 2, .pipeline_model_parallel_size = 2}, [](ParallelContext& job) {
    for (const char* kind : {"1f1b", "zb-h1", "zb-v"}) expect_gradients_of_one_process(plan(kind, 2, 5), job);
    expect_gradients_of_one_process(plan("interleaved", 2, 4, 2), job);
  });
}

TEST(PipelineRun, OneStageRunsWithoutAnyTransfer) {
  expect_job(1, {}, [](ParallelContext& job) {
    for (const char* kind : {"1f1b", "gpipe", "zb-h1"}) {
      expect_gradients_of_one_process(plan(kind, 1, 4), job);
      expect_hooks(plan(kind, 1, 4), job);
    }
    EXPECT_TRUE(job.flight_recorder().positions().empty());
  });
}

TEST(PipelineRun, ReductionsBeginWhenAllGradientsAreThere) {
  expect_job(2, {.pipeline_model_parallel_size = 2}, [](ParallelContext& job) {
    for (const char* kind : {"gpipe", "1f1b", "interleaved", "zb-h1", "zb-v"}) expect_hooks(plan(kind, 2, 4), job);
  });
}

// A stage that does not know the shape of its input.
class UnknowingStage : public ToyStage {
 public:
  using ToyStage::ToyStage;
  ValueSpec input_spec(int) override { throw std::logic_error("asked for a shape that is exchanged"); }
};

TEST(PipelineRun, ShapesAreExchangedWhereAStageDoesNotKnowThem) {
  expect_job(4, {.pipeline_model_parallel_size = 4}, [](ParallelContext& job) {
    for (const char* kind : {"gpipe", "1f1b", "interleaved", "zb-h1", "zb-v"}) {
      const Schedule schedule = plan(kind, 4, 8);
      SCOPED_TRACE(kind);
      const int rank = static_cast<int>(job.coordinates().pp);
      ProcessGroup& tp = job.group(GroupKind::tp);
      std::deque<UnknowingStage> stages;
      std::vector<Stage*> all;
      for (const int stage : stages_of(schedule, rank)) {
        all.push_back(&stages.emplace_back(stage, schedule.stages(), tp));
      }
      Executor(schedule, all, job, {.variable_seq_lengths = true}).run();
      ToyReference reference(8, tp);
      const int first = stages_of(schedule, rank)[0] * kBlocks / schedule.stages();
      EXPECT_TRUE(stages[0].blocks()[0].grads()[0].equal(reference.grads(first)[0]));
    }
  });
}

TEST(PipelineRun, EvaluationKeepsNothingAndGivesTheSameLosses) {
  expect_job(2, {.pipeline_model_parallel_size = 2}, [](ParallelContext& job) {
    for (const Placement placement : {Placement::loop, Placement::v}) {
      const Schedule schedule = complete_schedule(
          make_schedule({.kind = "forward-only", .pp = 2, .microbatches = 5, .vpp = 2, .placement = placement}));
      ProcessGroup& tp = job.group(GroupKind::tp);
      ToyReference reference(5, tp);
      std::deque<ToyStage> stages = toy_stages(schedule, static_cast<int>(job.coordinates().pp), tp);
      Executor(schedule, pointers(stages), job).run();
      for (ToyStage& stage : stages) {
        if (!stage.is_last()) continue;
        EXPECT_EQ(stage.losses().size(), 5u);
        for (const auto& [microbatch, loss] : stage.losses()) {
          EXPECT_TRUE(loss.equal(reference.whole.losses().at(microbatch)));
        }
      }
      for (ToyStage& stage : stages) EXPECT_EQ(stage.added(), 0);
    }
  });
}

// Its weight gradients run in a different order than its input gradients; three summands, since two have only one sum.
constexpr const char* kOwnSchedule =
    "0F0,0F1,0F2,0I0,0I1,0I2,0W2,0W0,0W1,0F3,0B3\n"
    "1F0,1I0,1F1,1I1,1F2,1I2,1W2,1W0,1W1,1F3,1B3\n";
constexpr int kOwnOrder[] = {2, 0, 1, 3};

// Defers an additional wgrad that records its micro-batch when it runs.
class NotingStage : public ToyStage {
 public:
  using ToyStage::ToyStage;
  void defer_weight_grads(DeferredWgrads* later) override {
    later_ = later;
    ToyStage::defer_weight_grads(later);
  }
  at::Tensor forward(int microbatch, const at::Tensor& input) override {
    const at::Tensor y = ToyStage::forward(microbatch, input);
    return ops::differentiable(
        "note", {y}, [&] { return ops::Forward{y.clone(), {}}; },
        [this, microbatch](const ops::Backward& b) {
          later_->put([this, microbatch] { ran_.push_back(microbatch); });
          return ops::Tensors{b.grad};
        });
  }
  const std::vector<int>& ran() const { return ran_; }

 private:
  DeferredWgrads* later_ = nullptr;
  std::vector<int> ran_;
};

TEST(PipelineRun, AWeightGradientIsThatOfItsMicroBatch) {
  expect_job(2, {.pipeline_model_parallel_size = 2}, [](ParallelContext& job) {
    const Schedule schedule = complete_schedule(parse_schedule_csv(kOwnSchedule, "own.csv"));
    ProcessGroup& tp = job.group(GroupKind::tp);
    NotingStage stage(static_cast<int>(job.rank()), 2, tp);
    Executor(schedule, {&stage}, job).run();
    EXPECT_THAT(stage.ran(), ElementsAreArray(kOwnOrder));
    ToyStage whole(0, 1, tp);
    for (const int microbatch : kOwnOrder) whole.forward(microbatch, {}).backward();
    const size_t first = job.rank() == 0 ? 0 : kBlocks / 2;
    for (size_t i = 0; i < kBlocks / 2; ++i) {
      for (const size_t sink : {0, 1}) {
        EXPECT_TRUE(stage.blocks()[i].grads()[sink].equal(whole.blocks()[first + i].grads()[sink])) << i;
      }
    }
  });
}

// Records the lifetime of its outputs.
class WatchedStage : public ToyStage {
 public:
  using ToyStage::ToyStage;
  at::Tensor forward(int microbatch, const at::Tensor& input) override {
    const at::Tensor output = ToyStage::forward(microbatch, input);
    outputs_.push_back(output.storage().getWeakStorageImpl());
    return output;
  }
  void reduce_gradients() override {
    for (const auto& output : outputs_) alive_ += output.expired() ? 0 : 1;
  }
  int alive() const { return alive_; }

 private:
  std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>> outputs_;
  int alive_ = 0;
};

TEST(PipelineRun, OutputsAreFreedWhenTheyWereSent) {
  expect_job(2, {.pipeline_model_parallel_size = 2}, [](ParallelContext& job) {
    const Schedule schedule = plan("gpipe", 2, 6);
    WatchedStage stage(static_cast<int>(job.rank()), 2, job.group(GroupKind::tp));
    Executor(schedule, {&stage}, job).run();
    EXPECT_TRUE(job.rank() == 1 || stage.alive() == 0) << stage.alive();
  });
}

TEST(PipelineRun, CallsOfTheGroupAgreeUnderValidation) {
  set_variable("CONCORD_LAYERS", "validate");
  expect_job(4, {.pipeline_model_parallel_size = 4, .ddp_timeout = 60}, [](ParallelContext& job) {
    for (const char* kind : {"gpipe", "1f1b", "interleaved", "zb-h1", "zb-v"}) {
      expect_gradients_of_one_process(plan(kind, 4, 8), job);
    }
  });
  unsetenv("CONCORD_LAYERS");
}

// ------------------------------------------------------------------------------------------------- what is refused

template <class Call>
std::string refusal_of(Call call) {
  try {
    call();
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "not refused";
}

TEST(PipelineRun, RefusesWhatCannotRunBeforeAnythingRuns) {
  expect_job(2, {.pipeline_model_parallel_size = 2}, [](ParallelContext& job) {
    ProcessGroup& tp = job.group(GroupKind::tp);
    const auto run = [&](const Schedule& schedule) {
      std::deque<ToyStage> stages = toy_stages(schedule, static_cast<int>(job.rank()), tp);
      return refusal_of([&] { Executor(schedule, pointers(stages), job); });
    };
    EXPECT_THAT(refusal_of([] { parse_schedule_csv("0F0,0B0\n1B0,1F0\n", "own.csv"); }),
                AllOf(HasSubstr("own.csv"), HasSubstr("1B0")));
    Schedule broken = plan("1f1b", 2, 2);
    std::swap(broken.ranks[1][0], broken.ranks[1][1]);
    EXPECT_THAT(run(broken), AllOf(HasSubstr("rank 1, action 1 (1RECV_F1)"), HasSubstr("in the same order")));
    EXPECT_THAT(run(make_schedule({.kind = "1f1b", .pp = 2, .microbatches = 2})), HasSubstr("complete it"));
    EXPECT_THAT(run(plan("1f1b", 1, 2)), AllOf(HasSubstr("1 ranks"), HasSubstr("pipeline_model_parallel_size is 2")));
    const Schedule chunks = plan("zb-v", 2, 2);
    ToyStage one(0, 4, tp);
    EXPECT_THAT(refusal_of([&] { Executor(chunks, {&one}, job); }),
                HasSubstr("2 chunks per rank, but the model has 1"));
    EXPECT_THAT(run(plan(job.rank() == 0 ? "1f1b" : "zb-h1", 2, 2)), HasSubstr("a different schedule"));
  });
}

// -------------------------------------------------------------------------------------------------- what goes wrong

// Fails at one micro-batch.
class BrokenStage : public ToyStage {
 public:
  BrokenStage(int stage, int stages, ProcessGroup& tp, std::function<void()> breaks)
      : ToyStage(stage, stages, tp), breaks_(std::move(breaks)) {}
  at::Tensor forward(int microbatch, const at::Tensor& input) override {
    if (microbatch == 2 && breaks_) breaks_();
    return ToyStage::forward(microbatch, input);
  }

 private:
  std::function<void()> breaks_;
};

std::string error_of_run(ParallelContext& job, const std::function<void()>& breaks) {
  const Schedule schedule = plan("1f1b", 3, 4);
  BrokenStage stage(static_cast<int>(job.rank()), 3, job.group(GroupKind::tp), breaks);
  Executor executor(schedule, {&stage}, job);
  std::string words;
  try {
    executor.run();
    return "nothing";
  } catch (const Error& error) {
    words = error.what();
    EXPECT_EQ(error.status(), breaks ? CONCORD_STATUS_INTERNAL : CONCORD_STATUS_PEER_LOST);
  }
  EXPECT_THROW(executor.run(), Error) << "it cannot run again";
  return words;
}

// Failing ranks exit without finalize, rank 0 last, since it serves the store.
void leave(ParallelContext& job, const std::vector<int>& others) {
  job.store().set("left/" + std::to_string(job.rank()), "1");
  for (const int other : others) {
    if (job.rank() == 0) job.store().get("left/" + std::to_string(other), std::chrono::seconds(60));
  }
  job.stop_watching();
}

TEST(PipelineFailure, AnExceptionNamesTheActionAndWhereAllRanksStood) {
  const TemporaryFolder folder;
  const int port = free_port();
  const auto outcomes = run_ranks(3, [&](int rank) {
    enter_job(rank, 3, port);
    ParallelContext& job =
        initialize({.pipeline_model_parallel_size = 3, .ddp_timeout = 60, .flight_folder = folder.path()});
    const auto breaks = [] { throw std::runtime_error("no memory for 7 GiB"); };
    const std::string words = error_of_run(job, rank == 1 ? std::function<void()>(breaks) : nullptr);
    if (rank == 1) {
      EXPECT_THAT(words, AllOf(HasSubstr("pipeline 1f1b, rank 1, action"), HasSubstr("(1F2): no memory for 7 GiB"),
                               HasSubstr("positions of the pipeline ranks:"), HasSubstr("rank 0: at action"),
                               HasSubstr("rank 1: at action"), HasSubstr("(1F2)"), HasSubstr("rank 2: at action")));
      job.stop_watching();
      job.store().set("left/1", "1");
      std::fflush(nullptr);
      ::_exit(::testing::Test::HasFailure() ? 1 : 0);  // like a failing rank
    }
    EXPECT_THAT(words, AllOf(HasSubstr("pipeline 1f1b, rank " + std::to_string(rank)), HasSubstr("rank 1: at action"),
                             HasSubstr("(1F2)")));
    leave(job, {1, 2});
  });
  for (const Outcome& outcome : outcomes) EXPECT_TRUE(outcome.ok()) << outcome.describe();
}

TEST(PipelineFailure, ARankThatDiesEndsTheRunWithAReport) {
  const TemporaryFolder folder;
  const int port = free_port();
  const auto outcomes = run_ranks(3, [&](int rank) {
    enter_job(rank, 3, port);
    ParallelContext& job =
        initialize({.pipeline_model_parallel_size = 3, .ddp_timeout = 60, .flight_folder = folder.path()});
    const auto dies = [] { raise(SIGKILL); };
    const std::string words = error_of_run(job, rank == 1 ? std::function<void()>(dies) : nullptr);
    EXPECT_THAT(words, AllOf(HasSubstr("pipeline 1f1b, rank " + std::to_string(rank) + ", action"),
                             HasSubstr("has ended"), HasSubstr("positions of the pipeline ranks:"),
                             HasSubstr("rank 0: at action"), HasSubstr("rank 1: no answer; past action"),
                             HasSubstr("rank 2: at action"), HasSubstr("(2F2), waits for 1SEND_F2 of rank 1")));
    leave(job, {2});
  });
  EXPECT_EQ(outcomes[1].signal, SIGKILL);
  for (const int rank : {0, 2}) {
    EXPECT_TRUE(outcomes[static_cast<size_t>(rank)].ok()) << outcomes[static_cast<size_t>(rank)].describe();
  }
}

}  // namespace
}  // namespace concord::tests
