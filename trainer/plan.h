// What a training run is, before any other rank and any tensor are there: the model's config, the data, numbers of
// steps, the pipeline's schedule. Bad input so comes out before any process is started and any group is made. Needs no
// libtorch. Threads: the one that trains.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "core/models/config.h"
#include "core/optim/loss_scaler.h"
#include "core/optim/lr_schedule.h"
#include "core/schedule/layer_layout.h"
#include "core/schedule/schedule.h"
#include "trainer/arguments/arguments.h"
#include "trainer/data/loader.h"
#include "trainer/data/tokenizer_files.h"

namespace concord {

// Samples of the user's own. |eval| may be null.
struct Datasets {
  std::unique_ptr<SampleSource> train;
  std::unique_ptr<SampleSource> eval;
};
// What a user may bring instead of what the arguments name.
using DatasetProvider = std::function<Datasets(const TrainingArguments&)>;

struct TrainingPlan {
  TrainingArguments arguments;
  ModelConfig config;
  Schedule schedule;
  std::vector<StageLayers> stages;  // of the whole pipeline
  std::unique_ptr<DataLoader> train_data;
  std::unique_ptr<DataLoader> eval_data;  // null where there is none
  int64_t max_steps = 0;
  LrArguments lr;
  bool is_restarted = false;       // an attempt after the first: checkpoints of its own run may be there already
  TokenizerFiles tokenizer_files;  // of the data, for saved models; on rank 0, which writes them
};

// |rank| of |world| processes. Throws ConfigError for everything that can be known to be wrong by now.
TrainingPlan plan_training(const TrainingArguments& arguments, int64_t rank, int64_t world,
                           const DatasetProvider& datasets = {});

// The job that the plan is for. The schedule has the last word on the number of chunks per rank.
InitializeArgs initialize_args(const TrainingPlan& plan);

std::optional<LossScaler> make_scaler(const TrainingArguments& arguments);  // none but for fp16

}  // namespace concord
