// What a training run is, before there is any other rank or tensor: the model's config, the data, numbers of
// steps, the pipeline's schedule. So bad input is reported before any process is started and any group is created.
// Needs no libtorch. Threads: the one that trains.
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

// Samples of the user's own. |eval| and |test| may be null.
struct Datasets {
  std::unique_ptr<SampleSource> train;
  std::unique_ptr<SampleSource> eval;
  std::unique_ptr<SampleSource> test = nullptr;
  DataCollator collator = {};  // of all of them; empty: rows are padded to the longest
};
// What a user may provide instead of what the arguments name.
using DatasetProvider = std::function<Datasets(const TrainingArguments&)>;

// What a run takes from the checkpoint that it resumes, besides the weights.
struct ResumeParts {
  bool progress = true;   // steps done, the log; false: a new run
  bool optimizer = true;  // with the learning rate's counter and the loss scale
  bool schedule = true;   // settings of the learning rate have to be the checkpoint's
  bool rng = true;
  bool data = true;  // the position in it
};
ResumeParts resume_parts(const TrainingArguments& arguments);

// What preferences are learnt against (trainer/objective/reference.h).
enum class ReferenceKind { none, adapter_off, second_model };

// What is evaluated on. Of several sets each has a name.
struct EvaluationSet {
  std::string name;
  std::unique_ptr<DataLoader> data;
};

struct TrainingPlan {
  TrainingArguments arguments;
  ModelConfig config;
  std::optional<AdapterConfig> adapter;      // that is trained instead of the model's own weights
  std::vector<std::string> merged_adapters;  // that are added to the weights first
  std::string adapter_folder;                // that it starts from; empty: it is new
  Schedule schedule;
  std::vector<StageLayers> stages;  // of the whole pipeline
  DataArguments data;               // of the training data, on this rank
  std::unique_ptr<DataLoader> train_data;
  std::vector<EvaluationSet> eval_sets;
  std::unique_ptr<DataLoader> test_data;  // null if there is none
  int64_t max_steps = 0;
  std::set<int64_t> skipped_steps;  // iterations_to_skip
  LrArguments lr;
  std::optional<LrArguments> decoupled_lr;  // the same with decoupled_lr and decoupled_min_lr, where these are given
  bool is_restarted = false;                // an attempt after the first: its own run may be in output_dir already
  std::string job;                          // the same in every attempt of a job, see OutputRequest
  std::string resume_from;                  // the checkpoint that the run resumes; empty: it starts at the first step
  ResumeParts resume_parts;                 // of it
  std::string tokenizer;                    // as make_tokenizer takes it; empty: there is none
  std::vector<Prompt> sample_prompts;       // to be continued at every evaluation
  TokenizerFiles tokenizer_files;           // of the data, for saved models; on the ranks that write them
  // With save_on_each_node in a job on several machines: the ranks of this one, which write to its output_dir. None:
  // all ranks have one output_dir.
  std::optional<RankRange> writers;

  // Of those that write to the same output_dir, the one that does what one alone has to.
  int64_t writing_rank() const { return writers ? writers->begin : 0; }
  bool continues() const { return !resume_from.empty() && resume_parts.progress; }  // a run that has done steps
};

// |rank| of |world| processes. Throws ConfigError for every error that can be detected at this point.
TrainingPlan plan_training(const TrainingArguments& arguments, int64_t rank, int64_t world,
                           const DatasetProvider& datasets = {});

// With save_on_each_node: throws ConfigError unless each of |machines| can write whole checkpoints.
void check_machines(const TrainingPlan& plan, const Machines& machines);

ReferenceKind reference_of(const TrainingPlan& plan);

// The job that the plan is for. The schedule has the last word on the number of chunks per rank.
InitializeArgs initialize_args(const TrainingPlan& plan);

std::optional<LossScaler> make_scaler(const TrainingArguments& arguments);  // none but for fp16

}  // namespace concord
