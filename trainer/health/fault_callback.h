// Injects the faults of trainer/health/faults.h on this rank. Threads: training thread only; SIGKILL is sent by another
// thread.
#pragma once

#include <chrono>
#include <optional>
#include <vector>

#include "core/base/job_board.h"
#include "core/base/recovery_log.h"
#include "trainer/callbacks.h"
#include "trainer/health/faults.h"
#include "trainer/trainer.h"

namespace concord {

class FaultCallback : public TrainerCallback {
 public:
  // Injects those of |faults| that name the rank of |trainer|, which must outlive the callback.
  FaultCallback(std::vector<Fault> faults, Trainer* trainer);

  void on_step_begin(const TrainerState& state, TrainerControl& control) override;

 private:
  using Clock = std::chrono::steady_clock;
  void carry_out(int number, const Fault& fault);
  bool is_due(int number, const Fault& fault) const;
  bool begin(int number, const Fault& fault, int64_t step);
  void change_weight(const Fault& fault);

  std::vector<Fault> faults_;  // all, by number
  Trainer* trainer_;
  int64_t rank_;
  std::optional<JobBoard> board_;
  RecoveryLog log_;
  Clock::time_point last_step_ = Clock::now();
  Clock::duration step_time_{};
  int64_t step_ = 0;  // step that begins
  bool is_slow_ = false;
};

}  // namespace concord
