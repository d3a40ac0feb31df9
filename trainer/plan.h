// The plan of a training run, made before any group or tensor exists: the model's config, the data, numbers of steps,
// the pipeline schedule. So bad input is reported before any process is started. Needs no libtorch. Threads: training
// thread only.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "core/mesh/machines.h"
#include "core/models/adapters/adapter_config.h"
#include "core/models/config.h"
#include "core/optim/loss_scaler.h"
#include "core/optim/lr_schedule.h"
#include "core/schedule/layer_layout.h"
#include "core/schedule/schedule.h"
#include "trainer/arguments/arguments.h"
#include "trainer/data/loader.h"
#include "trainer/data/text/tokenizer_files.h"
#include "trainer/generation/prompts.h"

namespace concord {

// Samples that a program provides. |eval| and |test| may be null.
struct Datasets {
  std::unique_ptr<SampleSource> train;
  std::unique_ptr<SampleSource> eval;
  std::unique_ptr<SampleSource> test = nullptr;
  DataCollator collator = {};  // used for all of them; empty: rows are padded to the longest
};
// Provides datasets in place of those that the arguments name.
using DatasetProvider = std::function<Datasets(const TrainingArguments&)>;

// Parts of a checkpoint that a resumed run takes, in addition to the weights.
struct ResumeParts {
  bool progress = true;   // steps done, the log; false: a new run
  bool optimizer = true;  // with the learning rate's counter and the loss scale
  bool schedule = true;   // learning-rate settings must be those of the checkpoint
  bool rng = true;
  bool data = true;  // position in the data
};
ResumeParts resume_parts(const TrainingArguments& arguments);

// The reference of preference losses (trainer/objective/reference.h).
enum class ReferenceKind { none, adapter_off, second_model };

// Evaluation data. If there are several sets, each has a name.
struct EvaluationSet {
  std::string name;
  std::unique_ptr<DataLoader> data;
};

struct TrainingPlan {
  TrainingArguments arguments;
  ModelConfig config;
  std::optional<AdapterConfig> adapter;      // adapter to train instead of the model's own weights
  std::vector<std::string> merged_adapters;  // adapters to merge into the weights first
  std::string adapter_folder;                // folder of the adapter to start from; empty: a new adapter
  Schedule schedule;
  std::vector<StageLayers> stages;  // layers of all pipeline stages
  DataArguments data;               // options of the training data on this rank
  std::unique_ptr<DataLoader> train_data;
  std::vector<EvaluationSet> eval_sets;
  std::unique_ptr<DataLoader> test_data;  // null if there is none
  int64_t max_steps = 0;
  std::set<int64_t> skipped_steps;  // iterations_to_skip
  LrArguments lr;
  std::optional<LrArguments> decoupled_lr;  // like |lr|, with decoupled_lr and decoupled_min_lr, if given
  bool is_restarted = false;                // an attempt after the first: its own run may be in output_dir already
  std::string job;                          // identical in every attempt of a job, see OutputRequest
  std::string resume_from;                  // the checkpoint that the run resumes; empty: it starts at the first step
  ResumeParts resume_parts;                 // parts of |resume_from| to take
  std::string tokenizer;                    // argument of make_tokenizer; empty: none
  std::vector<Prompt> sample_prompts;       // to be continued at every evaluation
  TokenizerFiles tokenizer_files;           // the data's tokenizer, for saved models; on the ranks that write them
  // Ranks of this machine, which write to its own output_dir, with save_on_each_node in a job on several machines.
  // Nullopt: all ranks share one output_dir.
  std::optional<RankRange> writers;

  // Returns the rank that does what only one of the ranks with the same output_dir may do.
  int64_t writing_rank() const { return writers ? writers->begin : 0; }
  bool continues() const { return !resume_from.empty() && resume_parts.progress; }  // a run that has done steps
};

// Plans only what needs no data: the model's config, the adapter, the schedule and its stages. Throws ConfigError.
TrainingPlan plan_model(const TrainingArguments& arguments);

// Plans the run for |rank| of |world| processes. Throws ConfigError for every error that can be detected at this point.
TrainingPlan plan_training(const TrainingArguments& arguments, int64_t rank, int64_t world,
                           const DatasetProvider& datasets = {});

// Throws ConfigError if save_on_each_node is set and one of |machines| cannot write whole checkpoints.
void check_machines(const TrainingPlan& plan, const Machines& machines);

ReferenceKind reference_of(const TrainingPlan& plan);

// Returns the arguments of initialize(). The schedule determines the number of chunks per rank.
InitializeArgs initialize_args(const TrainingPlan& plan);

std::optional<LossScaler> make_scaler(const TrainingArguments& arguments);  // nullopt except for fp16

}  // namespace concord
