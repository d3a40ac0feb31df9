// The cost of the loop and the loader: a run whose model does nothing, compared with a step of the first run in the
// same process. The files, log lines and callbacks are those of `concord train`; one rank.
//
//   loop_bench [part of a name] [--json]
#include <ATen/core/Tensor.h>
#include <fcntl.h>
#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/performance/bench_program.h"
#include "tests/temporary_folder.h"
#include "trainer/first_run.h"
#include "trainer/metrics/report_callback.h"
#include "trainer/trainer.h"

namespace concord {
namespace {

constexpr double kShare = 0.01;  // maximum fraction of a step
constexpr int kRepeats = 5;
constexpr const char* kName = "training loop and loader, a step of 32 x 64 tokens";

// The loss of every token is 0 and has a gradient for one small parameter: backward and the update do a minimum of
// work.
PassOutput forward_nothing(ModelChunk& chunk, const at::Tensor&, const MicroBatch& batch, const PassOptions&) {
  return {chunk.parameters().back().used().sum().mul(0).expand(batch.input_ids.sizes())};
}

// Writes the first run's model with one layer of width 8.
std::string write_small_model(const std::string& folder, const std::string& of_first_run) {
  nlohmann::json config = nlohmann::json::parse(std::ifstream(of_first_run));
  config["num_hidden_layers"] = 1;
  config["hidden_size"] = 8;
  config["intermediate_size"] = 8;
  config["num_attention_heads"] = config["num_key_value_heads"] = 1;
  const std::string path = folder + "/small.json";
  std::ofstream(path) << config.dump();
  return path;
}

// Returns the seconds of a step: the median of some runs.
double step_seconds(TrainingArguments arguments, int64_t steps, const Providers& providers) {
  const int nowhere = open("/dev/null", O_WRONLY | O_CLOEXEC);
  arguments.steps.max_steps = steps;
  arguments.saving.strategy = IntervalStrategy::no;
  std::vector<double> runs;
  for (int i = 0; i < kRepeats; ++i) {
    TrainingPlan plan = plan_training(arguments, 0, 1, providers.datasets);
    ParallelContext& job = initialize(initialize_args(plan));
    Trainer trainer(std::move(plan), job, providers);
    trainer.add_callback(std::make_shared<ReportCallback>(trainer.plan(), job, 0, nowhere, std::vector<std::string>{},
                                                          std::vector<std::unique_ptr<Tracker>>{}));
    const auto begin = std::chrono::steady_clock::now();
    trainer.train();
    const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - begin;
    runs.push_back(taken.count() / static_cast<double>(steps));
  }
  close(nowhere);
  std::sort(runs.begin(), runs.end());
  return runs[kRepeats / 2];
}

int run(const bench::Options& options) {
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  if (std::string(kName).find(options.part) != std::string::npos) {
    const tests::TemporaryFolder folder;
    CommandLine line;
    line.arguments.launch.nproc = 1;
    line.arguments.output.dir = folder.path() + "/run";
    line.given = {"output_dir"};
    complete_first_run(&line);
    write_first_run(&line.arguments, 1);
    TrainingArguments nothing = line.arguments;
    nothing.model.config = write_small_model(folder.path(), nothing.model.config);
    const double step = step_seconds(line.arguments, 20, {});
    const double loop = step_seconds(nothing, 400, {.datasets = {}, .model = {}, .forward_step = forward_nothing});
    rows.push_back({{"name", kName},
                    {"ours", loop * 1e6},
                    {"peer", step * 1e6},
                    {"unit", "us"},
                    {"ratio", step / loop},
                    {"goal", kShare * step * 1e6},
                    {"met", loop <= kShare * step}});
  }
  if (options.json) {
    fmt::print("{}\n", rows.dump(1));
    return 0;
  }
  for (const auto& row : rows) {
    const double ours = row["ours"].get<double>(), peer = row["peer"].get<double>();
    fmt::print("{}: {:.0f} us, {:.2f} % of the first run's step of {:.1f} ms (at most {:.0f} %): {}\n", kName, ours,
               100 * ours / peer, peer / 1000, 100 * kShare, row["met"].get<bool>() ? "met" : "NOT MET");
  }
  return 0;
}

}  // namespace
}  // namespace concord

int main(int argc, char** argv) { return concord::run(concord::bench::read_options(argc, argv)); }
