// The conditions that end a run before its last step: exit_interval, exit_duration_in_mins, and a signal to any rank.
#pragma once

#include <chrono>
#include <string>

#include "trainer/loop_part.h"

namespace concord {

class ExitConditions final : public LoopPart {
 public:
  using LoopPart::LoopPart;

  // Call when training starts: exit_duration_in_mins counts from here.
  void start() { start_ = std::chrono::steady_clock::now(); }
  // Seconds since start().
  double seconds() const;

  // Stop signal received by any rank, as of the last agreement; 0: none.
  int signal() const { return signal_; }
  // Returns why the run ended: "finished", "stopped by SIGTERM after step 12".
  std::string reason() const;

  void request(bool ends_epoch) override;
  void agree_on(StepAgreement* agreement) override;

 private:
  std::chrono::steady_clock::time_point start_;
  int signal_ = 0;
};

}  // namespace concord
