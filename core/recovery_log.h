// What happened to a job and when, one JSON object per line, for `concord chaos` and for people who look for the cause
// afterwards. Goes to the file that CONCORD_RECOVERY_LOG names; without it nowhere. Never throws: a log is no reason to
// end a job. Not thread-safe.
//
//   {"event":"fault","time":81.200,"fault":3,"kind":"kill","rank":2,"step":37}      by a rank, see trainer/faults.h
//   {"event":"failed","time":81.204,"attempt":0,"rank":2,"step":36,"how":"killed by SIGKILL (Killed)"}
//   {"event":"hung","time":83.100,"attempt":1,"rank":1,"how":"rank 1 is stopped, by SIGSTOP or a debugger (...)"}
//   {"event":"repaired","time":83.100,"step":40,"how":"rank 1 differs from ..."}    by rank 0, in process
//   {"event":"training","time":82.310,"attempt":1,"step":37}        every rank has done a step
//   {"event":"ended","time":99.000,"attempt":1,"exit_code":0}
//
// Times are seconds of CLOCK_MONOTONIC.
#pragma once

#include <cstdint>
#include <string>

#include "platform/base/unique_fd.hpp"

namespace concord {

inline constexpr const char* kRecoveryLogVariable = "CONCORD_RECOVERY_LOG";

class RecoveryLog {
 public:
  RecoveryLog();

  void fault(int fault, const std::string& kind, int64_t rank, int64_t step);
  void failed(int attempt, int64_t rank, int64_t step, const std::string& how);  // |step| steps were done
  void hung(int attempt, int64_t rank, const std::string& how);
  void repaired(int64_t step, const std::string& how);  // wrong numbers, without a new attempt
  void training(int attempt, int64_t step, int64_t nanoseconds);
  void ended(int attempt, int exit_code);

 private:
  void write(const std::string& line) noexcept;

  UniqueFd file_;
};

}  // namespace concord
