// A log of faults and restarts of a job, one JSON object per line, for `concord chaos` and for later diagnosis. Written
// to the file that CONCORD_RECOVERY_LOG names; disabled if it is not set. Never throws: a failing log must not end a
// job. Not thread-safe.
//
//   {"event":"fault","time":81.200,"attempt":0,"fault":3,"kind":"kill","rank":2,"step":37}  see trainer/health/faults.h
//   {"event":"failed","time":81.204,"attempt":0,"rank":2,"step":36,"how":"killed by SIGKILL (Killed)"}
//   {"event":"hung","time":83.100,"attempt":1,"rank":1,"how":"rank 1 is stopped, by SIGSTOP or a debugger (...)"}
//   {"event":"wrong","time":83.100,"step":40,"rank":1,"how":"rank 1 differs from ..."}    rank -1: not known which
//   {"event":"repaired","time":83.100,"step":40,"rank":1,"how":"rank 1 differs from ..."} without a new attempt
//   {"event":"training","time":82.310,"attempt":1,"step":37}        every rank has done a step
//   {"event":"ended","time":99.000,"attempt":1,"exit_code":0}
//
// Times are seconds of CLOCK_MONOTONIC. Ranks write "fault", rank 0 "wrong" and "repaired", the launcher the others.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "platform/base/unique_fd.hpp"

namespace concord {

inline constexpr const char* kRecoveryLogVariable = "CONCORD_RECOVERY_LOG";

class RecoveryLog {
 public:
  RecoveryLog();

  void fault(int attempt, int fault, const std::string& kind, int64_t rank, int64_t step);
  void failed(int attempt, int64_t rank, int64_t step, const std::string& how);  // |step| steps were completed
  void hung(int attempt, int64_t rank, const std::string& how);
  void wrong(int64_t step, std::optional<int64_t> rank, const std::string& how);
  void repaired(int64_t step, std::optional<int64_t> rank, const std::string& how);
  void training(int attempt, int64_t step, int64_t nanoseconds);
  void ended(int attempt, int exit_code);

 private:
  void write(const std::string& line) noexcept;

  UniqueFd file_;
};

}  // namespace concord
