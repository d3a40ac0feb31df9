// Jobs of a few steps with a Trainer in each rank, for tests that access it: callbacks, custom forward steps.
#pragma once

#include <string>
#include <vector>

#include "core/mesh/bad_device.h"
#include "tests/processes/groups/group_job.h"
#include "tests/processes/token_rows.h"
#include "trainer/trainer.h"

namespace concord::tests {

// Returns the command line of a short run of a tiny model, on data that it writes to |folder|.
inline std::vector<std::string> short_run(const std::string& folder, const std::vector<std::string>& more) {
  const std::string data = testing_processes::write_jsonl(folder + "/data.jsonl", 64);
  std::vector<std::string> args = {"--model",
                                   CONCORD_GOLDEN "/hf/qwen2-tiny",
                                   "--train_data",
                                   data,
                                   "--output_dir",
                                   folder + "/out",
                                   "--max_steps",
                                   "6",
                                   "--per_device_train_batch_size",
                                   "1",
                                   "--gradient_accumulation_steps",
                                   "2",
                                   "--learning_rate",
                                   "1e-3",
                                   "--save_strategy",
                                   "no"};
  args.insert(args.end(), more.begin(), more.end());
  return args;
}

// The results of a rank.
struct TrainerResult {
  std::string error;                // message of the error that train() threw
  bool is_bad_device = false;       // whether it was BadDevice
  std::vector<at::Tensor> weights;  // copies of the final weights
  int64_t steps = 0;
};

// |args| are the command line. |before| may add callbacks.
inline TrainerResult run_trainer(const std::vector<std::string>& args, int rank, int world,
                                 const std::function<void(Trainer&)>& before = {}, const Providers& providers = {}) {
  CommandLine line = parse_command_line(args);
  check_arguments(line.arguments, world);
  line.arguments = resolve_arguments(line.arguments, world);
  TrainingPlan plan = plan_training(line.arguments, rank, world);
  ParallelContext& job = initialize(initialize_args(plan));
  TrainerResult result;
  {
    Trainer trainer(std::move(plan), job, providers);
    if (before) before(trainer);
    try {
      trainer.train();
    } catch (const std::exception& error) {
      result.error = error.what();
      result.is_bad_device = dynamic_cast<const BadDevice*>(&error) != nullptr;
    }
    for (Parameter* parameter : trainer.model().parameters())
      result.weights.push_back(parameter->used().detach().clone());
    result.steps = trainer.state().global_step;
  }
  finalize();
  return result;
}

}  // namespace concord::tests
