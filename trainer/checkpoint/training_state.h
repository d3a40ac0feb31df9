// What a checkpoint says besides its tensors, and its form on disk: metadata.json. With the weights and the optimizer's
// state (core/checkpoint) it is all that a run needs to continue as if it had never stopped. Needs no libtorch.
// Threads: plain values.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/mesh/rng_tracker.h"
#include "core/optim/loss_scaler.h"
#include "trainer/data/loader.h"
#include "trainer/metrics/log_window.h"

namespace concord {

inline constexpr const char* kMetadataFile = "metadata.json";

// The layout that wrote a checkpoint. Any other can read it; only random numbers of dropout depend on it.
struct SavedLayout {
  int64_t world = 1, tp = 1, pp = 1, vpp = 1, cp = 1, dp = 1, ep = 1, etp = 1;
  std::string order;
  std::string platform;

  bool has_same_ranks(const SavedLayout& other) const {
    return world == other.world && tp == other.tp && pp == other.pp && vpp == other.vpp && cp == other.cp &&
           ep == other.ep && etp == other.etp && order == other.order;
  }
};

// The best evaluation so far, with load_best_model_at_end or metric_for_best_model.
struct BestEvaluation {
  double metric = 0;
  int64_t step = 0;
  std::string checkpoint;  // the best one that was saved, next to this one or with its full path; empty: none yet
};

struct TrainingState {
  int64_t step = 0;
  int64_t tokens = 0;  // of all ranks so far
  int64_t epoch = 0;   // the number of the one that runs
  int64_t steps_in_epoch = 0;
  DataPosition data;
  DataIdentity data_identity;  // here and below empty or 0: not known, from a file without it
  int64_t global_batch_size = 0;
  std::string job;  // as OutputRequest has it; a restarted attempt knows its own checkpoints by it

  std::string optimizer;  // its name in the arguments
  int64_t optimizer_steps = 0;
  int64_t lr_counter = 0;
  int64_t lr_increment = 0;                                   // of the counter, by an update
  std::vector<std::pair<std::string, std::string>> schedule;  // schedule_texts of trainer/checkpoint/resume_check.h
  std::optional<LossScalerState> loss_scaler;                 // of fp16

  double loss_sum = 0;  // over the steps whose losses were logged
  int64_t loss_steps = 0;
  std::vector<double> unlogged_losses;
  LogWindow window;
  std::optional<BestEvaluation> best;
  int64_t early_stopping_waited = 0;  // evaluations that were not better than the best before them, in a row

  SavedLayout layout;
  std::vector<std::vector<RngState>> rng;                      // by rank
  std::vector<std::pair<std::string, std::string>> arguments;  // as they are printed
};

std::string to_json(const TrainingState& state);
// |file| is for messages. Throws ConfigError for anything that to_json does not write.
TrainingState parse_training_state(const std::string& json, const std::string& file);
// The state in the folder of a checkpoint. Throws ConfigError where there is none: weights only, or no checkpoint.
TrainingState read_training_state(const std::string& folder);

// Whether a run can be resumed from |folder|. A checkpoint gets its name when all of it is on the disk
// (core/checkpoint/save_folder.h), so what has the file is complete.
bool can_resume_from(const std::string& folder);

}  // namespace concord
