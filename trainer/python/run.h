// `concord train` in the process of its caller: the same arguments, checks and messages.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "trainer/pretrain.h"

namespace concord {

struct EmbeddedRun {
  TrainOutput output;
  std::string output_dir;
};

// Functions and callbacks that the caller provides to a run; empty ones are replaced by what the arguments specify.
struct EmbeddedOptions {
  std::vector<std::shared_ptr<TrainerCallback>> callbacks = {};
  std::function<void(Trainer& trainer)> loop = {};  // RunOptions::loop
  ComputeMetrics compute_metrics = {};
  std::function<ForwardStep(const TrainingArguments& arguments)> forward_step = {};  // called before the run
  Multipliers multipliers = {};
  // A model of the caller: |use_model| is called before the run and sets what follows from it.
  std::function<void(TrainingArguments* arguments)> use_model = {};
  ModelProvider model = {};
};

// Trains as one rank of the job given by the environment, or as the only one. |args| are those of `concord train`;
// without a model and data the first run (trainer/first_run.h) is trained. SIGTERM, SIGINT and SIGHUP stop it after the
// current step. Throws as run_training does; a process that is the only rank can then train again. Waits: for the other
// ranks.
EmbeddedRun train_embedded(const std::vector<std::string>& args, const EmbeddedOptions& embedded);

}  // namespace concord
