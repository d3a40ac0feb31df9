// The state of a run in a checkpoint besides tensors, and its form on disk: metadata.json. Together with the weights
// and the optimizer's state (core/checkpoint) a run continues from it as if it had never stopped. Needs no libtorch.
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

// The layout that wrote a checkpoint. Any other layout can read it; only the random numbers of dropout depend on it.
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
  int64_t tokens = 0;  // tokens trained on so far, over all ranks
  int64_t epoch = 0;   // index of the current epoch
  int64_t steps_in_epoch = 0;
  DataPosition data;
  DataIdentity data_identity;  // here and below, empty or 0: unknown, since the file lacks it
  int64_t global_batch_size = 0;
  std::string job;  // see OutputRequest; a restarted attempt recognizes its own checkpoints by it

  std::string optimizer;  // name in the arguments
  int64_t optimizer_steps = 0;
  int64_t lr_counter = 0;
  int64_t lr_increment = 0;                                   // increment of the counter per update
  std::vector<std::pair<std::string, std::string>> schedule;  // schedule_texts of trainer/checkpoint/resume_check.h
  std::optional<LossScalerState> loss_scaler;                 // fp16 only

  double loss_sum = 0;  // sum over the steps whose losses were logged
  int64_t loss_steps = 0;
  std::vector<double> unlogged_losses;
  LogWindow window;
  std::optional<BestEvaluation> best;
  int64_t early_stopping_waited = 0;  // consecutive evaluations without improvement

  SavedLayout layout;
  std::vector<double> replica_speeds;      // by which micro-batches are divided (heterogeneous_split); empty: equally
  std::vector<std::vector<RngState>> rng;  // by rank
  std::vector<std::pair<std::string, std::string>> arguments;  // as printed by --print_config
};

std::string to_json(const TrainingState& state);
// Parses the output of to_json. Throws ConfigError, which names |file|, for anything else.
TrainingState parse_training_state(const std::string& json, const std::string& file);
// Reads the state in the folder of a checkpoint. Throws ConfigError if there is none: weights only, or not a
// checkpoint.
TrainingState read_training_state(const std::string& folder);

// Returns whether a run can be resumed from |folder|. A checkpoint gets its name when all of it is on disk
// (core/checkpoint/save_folder.h), so a folder with metadata.json is complete.
bool can_resume_from(const std::string& folder);

}  // namespace concord
