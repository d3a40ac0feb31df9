#include "trainer/torch_module/train_rank.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "core/mesh/job_environment.h"
#include "trainer/pretrain.h"
#include "trainer/program_path.h"
#include "trainer/torch_module/terminal.h"

namespace concord {
namespace {

void print_json(const TrainOutput& output, const TrainingArguments& arguments) {
  nlohmann::ordered_json json = {{"global_step", output.global_step},
                                 {"training_loss", output.training_loss},
                                 {"reason", output.reason},
                                 {"output_dir", arguments.output.dir}};
  for (const auto& [name, value] : output.metrics) json["metrics"][name] = value;
  fmt::print("{}\n", json.dump(2));
}

std::vector<std::string> suggestions(const CommandLine& line) {
  const TrainingArguments& a = line.arguments;
  if (a.report.loss_floor <= 0) return {};
  const bool is_cut = a.job.tensor_model_parallel_size > 1;
  const std::string program = program_as_typed();
  const auto suggestion = [&](const char* args, const char* what) {
    return fmt::format("{} {:<38}  {}", program, args, what);
  };
  return {is_cut ? suggestion("train --context_parallel_size 2", "split every sequence over the two processes")
                 : suggestion("train --tensor_model_parallel_size 2",
                              "split every layer over the two processes, with the same losses"),
          suggestion("train --max_steps 1000", "get closer to the floor"),
          suggestion("train --print_config", "print all settings as a file for --config"),
          suggestion("doctor", "check what else this machine can run")};
}

}  // namespace

void warm_up_rank() { load_device_libraries(); }

int train_rank(const CommandLine& line) {
  RunOptions options;
  options.terminal = open_terminal(line.json);
  options.notes = line.notes;
  options.next = suggestions(line);
  if (!line.config.empty()) options.inputs = {line.config};
  const TrainOutput output = run_training(line.arguments, {}, options);
  if (line.json && read_job_environment().rank == 0) print_json(output, line.arguments);
  return output.stop_signal == 0 ? 0 : 128 + output.stop_signal;
}

}  // namespace concord
