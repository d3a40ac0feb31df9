// Steps of a real pipeline compared with the simulator: 4 processes whose stages sleep a fixed time for a forward and
// for each half of a backward, so that the number of cores does not matter. Everything else is real: autograd, deferred
// halves, transfers. Also several steps in a row that are validated after the fact, compared with steps that wait for a
// number of all ranks after each.
//
//   pipeline_bench [part of a row's name] [--json]
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/ones.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "core/mesh/initialize.h"
#include "core/ops/derivative.h"
#include "core/ops/grad_sink.h"
#include "core/pipeline/executor.h"
#include "core/schedule/passes.h"
#include "core/schedule/schedules.h"
#include "core/schedule/simulate.h"
#include "tests/performance/bench_program.h"

namespace concord {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kRanks = 4;
constexpr int kMicrobatches = 16;
constexpr int kRounds = 3;
constexpr double kShare = 0.05;      // seconds of a rank's layers for a forward, and for each half of a backward
constexpr double kTolerance = 1.1;   // relative to the simulator's makespan
constexpr int64_t kElements = 4096;  // per transfer

void sleep_for(double seconds) { std::this_thread::sleep_for(std::chrono::duration<double>(seconds)); }

class SleepingStage : public Stage {
 public:
  SleepingStage(double seconds, bool last) : seconds_(seconds), last_(last) { weight_.requires_grad_(true); }

  ValueSpec input_spec(int) override { return {{kElements}, at::kFloat}; }

  at::Tensor forward(int, const at::Tensor& input) override {
    const at::Tensor x = input.defined() ? input : at::ones({kElements});
    const at::Tensor y = ops::differentiable(
        "sleep", {x, weight_},
        [&] {
          sleep_for(seconds_);
          return ops::Forward{x.clone(), {}};
        },
        [seconds = seconds_, later = later_](const ops::Backward& b) {
          sleep_for(seconds);
          const auto half = [seconds] { sleep_for(seconds); };
          if (later != nullptr) later->put(half);
          if (later == nullptr) half();
          return ops::Tensors{b.grad, at::Tensor()};
        });
    return last_ ? y.sum() : y;
  }

  void defer_weight_grads(DeferredWgrads* later) override { later_ = later; }

 private:
  double seconds_;
  bool last_;
  at::Tensor weight_ = at::ones({1});
  DeferredWgrads* later_ = nullptr;
};

// --------------------------------------------------------------------------------------------------------- processes

// A step of one rank, on the clock that all processes of a machine share.
struct Step {
  int round;
  double begin;
  double end;
};

double now() { return std::chrono::duration<double>(Clock::now().time_since_epoch()).count(); }

// One round of the measurement on a rank.
using Round = std::function<void(Executor&, ParallelContext&)>;

void run_rank(int rank, int world, int port, const Schedule& schedule, int report, const Round& body) {
  const auto set = [](const char* name, int value) { setenv(name, std::to_string(value).c_str(), 1); };
  set("RANK", rank);
  set("WORLD_SIZE", world);
  set("LOCAL_RANK", rank);
  set("LOCAL_WORLD_SIZE", world);
  set("MASTER_PORT", port);
  setenv("MASTER_ADDR", "127.0.0.1", 1);
  setenv("CONCORD_LOG", "warn", 1);
  at::set_num_threads(1);
  ParallelContext& job = initialize({.pipeline_model_parallel_size = world});
  std::deque<SleepingStage> stages;
  std::vector<Stage*> all;
  for (const int stage : stages_of(schedule, rank)) {
    all.push_back(&stages.emplace_back(kShare / schedule.vpp, stage == schedule.stages() - 1));
  }
  Executor executor(schedule, all, job);
  for (int round = -1; round < kRounds; ++round) {  // the first is a warm-up
    job.world_group().barrier().wait();
    Step step{round, now(), 0};
    body(executor, job);
    step.end = now();
    if (round >= 0 && write(report, &step, sizeof step) != sizeof step) std::abort();
  }
  finalize();
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// Returns the seconds of a round, from the start of the first rank to the end of the last one.
double measured(const Schedule& schedule, const Round& body) {
  const int port = bench::free_port();
  int ends[2];
  if (pipe(ends) != 0) std::abort();
  for (int rank = 0; rank < schedule.pp; ++rank) {
    if (fork() != 0) continue;
    run_rank(rank, schedule.pp, port, schedule, ends[1], body);
    _exit(0);
  }
  close(ends[1]);
  std::vector<Step> rounds(kRounds, {0, 1e300, 0});
  int reported = 0;
  for (Step one{}; read(ends[0], &one, sizeof one) == sizeof one; ++reported) {
    Step& all = rounds[static_cast<size_t>(one.round)];
    all = {0, std::min(all.begin, one.begin), std::max(all.end, one.end)};
  }
  close(ends[0]);
  while (waitpid(-1, nullptr, 0) > 0) {
  }
  if (reported != schedule.pp * kRounds) std::abort();
  std::vector<double> took;
  for (const Step& round : rounds) took.push_back(round.end - round.begin);
  return median(took);
}

// -------------------------------------------------------------------------------------------------------------- rows

struct Row {
  std::string name;
  double ours;
  double peer;  // the simulator, or the steps that wait
  double goal;  // maximum
};

std::string name_of(const std::string& kind) {
  const char* passes = kind == "forward-only" ? "" : "3 x ";
  return "pipeline: " + kind + ", 4 processes, 16 micro-batches of " + passes + "50 ms";
}

Row measure(const std::string& kind) {
  const Schedule schedule =
      complete_schedule(make_schedule({.kind = kind, .pp = kRanks, .microbatches = kMicrobatches}));
  const double each = kShare / schedule.vpp;
  const ScheduleCosts costs{.forward = each, .backward = each, .weight = each};
  const double ours = measured(schedule, [](Executor& executor, ParallelContext&) { executor.run(); });
  return {name_of(kind), ours, simulate(schedule, costs).makespan, kTolerance * simulate(schedule, costs).makespan};
}

nlohmann::json json_of(const Row& row) {
  return {{"name", row.name},
          {"ours", row.ours},
          {"peer", row.peer},
          {"unit", "s"},
          {"ratio", row.peer / row.ours},
          {"goal", row.goal},
          {"met", row.ours <= row.goal}};
}

int run(const std::string& part, bool as_json) {
  std::vector<std::pair<std::string, std::function<Row()>>> rows;
  for (const char* kind : {"gpipe", "1f1b", "interleaved", "zb-h1", "zb-v", "forward-only"}) {
    rows.emplace_back(name_of(kind), [kind] { return measure(kind); });
  }
  nlohmann::json all = nlohmann::json::array();
  for (const auto& [name, make] : rows) {
    if (name.find(part) == std::string::npos) continue;
    const Row row = make();
    all.push_back(json_of(row));
    if (as_json) continue;
    std::printf("%-58s %8.3f s   peer %8.3f s   %+6.2f %%   goal <= %.3f s %s\n", row.name.c_str(), row.ours, row.peer,
                100 * (row.ours / row.peer - 1), row.goal, row.ours <= row.goal ? "met" : "NOT MET");
  }
  if (as_json) std::printf("%s\n", all.dump(1).c_str());
  return 0;
}

}  // namespace
}  // namespace concord

int main(int argc, char** argv) {
  const auto [as_json, part] = concord::bench::read_options(argc, argv);
  setenv("CONCORD_PLUGIN_PATH", PLUGINS, 0);
  return concord::run(part, as_json);
}
