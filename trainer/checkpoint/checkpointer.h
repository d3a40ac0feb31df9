// Saves checkpoints, on disk and in memory, and the final model.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>

#include "core/checkpoint/write/save_job.h"
#include "trainer/checkpoint/best_model.h"
#include "trainer/checkpoint/in_memory_checkpoints.h"
#include "trainer/checkpoint/training_state.h"
#include "trainer/loop_part.h"

namespace concord {

class Health;
class StepLog;

// Objects that a checkpointer works with. They must outlive it.
struct CheckpointerParts {
  Health& health;   // compares replicas before every checkpoint
  StepLog& log;     // excludes the time of saves
  BestModel& best;  // is told which steps are saved
  // Collects the state of the run from all parts of the loop. Waits: for all ranks.
  std::function<TrainingState()> state;
};

class Checkpointer final : public LoopPart {
 public:
  // Waits: for all ranks.
  Checkpointer(RunContext& run, CheckpointerParts parts);

  // Completes the checkpoint that is being written, abandons the one in memory, and saves the last step unless
  // save_strategy is no. With load_best_model_at_end the weights become those of the best checkpoint. Waits: for all
  // ranks.
  void finish();

  // Saves the model as an HF folder, which must not exist unless the run was resumed or restarted; then it is replaced.
  // Waits: for all ranks.
  void save_model(const std::filesystem::path& folder);
  // Like save_model, but saves the EMA of the weights. Throws ConfigError if there is none.
  void save_average(const std::filesystem::path& folder);

  void request(bool ends_epoch) override;
  void agree_on(StepAgreement* agreement) override;
  bool advance() override;
  bool act() override;
  void restore(const TrainingState& state) override;

 private:
  using Clock = std::chrono::steady_clock;

  void save_checkpoint(SaveJob::Source source);
  bool is_skipped();
  bool is_in_the_way(const std::filesystem::path& folder);
  void start_save(const std::filesystem::path& folder, SaveJob::Source source);
  void save_in_memory_checkpoint();
  void complete_save();
  void finish_save();
  void warn_of_wait(Clock::duration waited);
  void save_last_step();
  void load_best_model();
  HfSaveOptions model_options() const;
  HfSaveOptions checkpoint_options();
  void add_state(HfSaveOptions* options);
  void add_callback_files(HfSaveOptions* options);

  CheckpointerParts parts_;
  StepInterval interval_;

  // The checkpoint on disk that is being written, if any.
  std::unique_ptr<SaveJob> save_;
  SaveJob::Progress progress_ = SaveJob::Progress::through;  // maximum over all ranks
  Clock::time_point save_start_;
  std::shared_ptr<const GlobalSavePlan> save_plan_;  // reused by later checkpoints
  bool has_warned_of_wait_ = false;

  // The latest checkpoint, also while it is being written.
  int64_t last_saved_ = 0;          // step
  int64_t last_saved_updates_ = 0;  // updates of the optimizer until then
  std::optional<uint32_t> digest_;  // checksum of the latest complete one of this process, on rank 0

  InMemoryCheckpoints memory_;
  SaveJob::Progress memory_progress_ = SaveJob::Progress::through;  // maximum over all ranks
};

}  // namespace concord
