// The log line of training steps: losses, gradient norms, throughput and further metrics since the line before it.
#pragma once

#include <chrono>

#include "trainer/loop_part.h"
#include "trainer/metrics/log_window.h"
#include "trainer/metrics/loss_log.h"
#include "trainer/metrics/router_log.h"
#include "trainer/metrics/token_log.h"
#include "trainer/report/report.h"

namespace concord {

class Health;
struct StepOutput;

class StepLog final : public LoopPart {
 public:
  using Duration = std::chrono::steady_clock::duration;

  // |health| reports on stragglers in every line and must outlive the log.
  StepLog(RunContext& run, Health& health);

  // Call when training starts.
  void start();
  // Adds the step that was just computed, whose batch the training data still describes.
  void add(const StepOutput& step);
  // Excludes the time of an evaluation or a checkpoint from tokens per second.
  void exclude(Duration time) { window_start_ += time; }
  // Like exclude(), and adds it to save_seconds.
  void exclude_save(Duration time);
  // Returns the steps since the last line. Every rank calls it. Waits: for all ranks.
  RecentSteps recent_steps() const;
  // Returns the mean loss of all steps. Every rank calls it. Waits: for all ranks.
  double mean_loss();

  void request(bool ends_epoch) override;
  bool act() override;
  void save(TrainingState* state) override;
  void restore(const TrainingState& state) override;

 private:
  bool is_last_line() const;
  double window_seconds() const;
  StepReport make_report();
  void add_metrics(NamedValues* extra);

  Health& health_;
  StepInterval interval_;
  LossLog losses_;
  RouterLog routers_;
  ObjectiveLog objective_;
  MtpLossLog mtp_losses_;
  LogWindow window_;                                    // steps since the last line
  std::chrono::steady_clock::time_point window_start_;  // start of |window_|, plus the excluded time
};

}  // namespace concord
