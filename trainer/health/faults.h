// Plans of faults to inject into a job: which fault, on which rank, at which step. A plan is a pure function of a seed,
// so a failure can be reproduced. `concord chaos` passes it to the ranks in CONCORD_FAULTS; FaultCallback
// (trainer/health/fault_callback.h) injects each fault once, also in later attempts of the job. Threads: plain values.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace concord {

inline constexpr const char* kFaultsVariable = "CONCORD_FAULTS";

enum class FaultKind {
  kill,        // SIGKILL, at any time in the step
  stop,        // SIGSTOP: the process exists but does nothing
  hang,        // the training thread blocks
  delay,       // a pause of 0.3 s, which is not a failure
  disconnect,  // all its connections break
  bitflip,     // one bit of one weight changes
  disk,        // writes to files fail
  nan,         // one weight becomes NaN
  slow,        // every further step of this process takes 30 ms longer
};
std::string_view to_string(FaultKind kind);
const std::vector<FaultKind>& all_fault_kinds();

struct Fault {
  FaultKind kind{};
  int64_t rank = 0;
  int64_t step = 1;          // step in which it is injected, from 1; 0: by time
  int64_t where = 0;         // a number from 0 to 999: the part of the step, or which weight and which bit
  int64_t milliseconds = 0;  // if |step| is 0: time since the start of the job; injected in the next step
  bool operator==(const Fault&) const = default;
};

// Returns |count| faults in steps 2 to |steps| of a job of |world| ranks, sorted by step, at most one per step. Throws
// ConfigError if there are too few steps.
std::vector<Fault> plan_faults(uint64_t seed, int64_t count, const std::vector<FaultKind>& kinds, int64_t world,
                               int64_t steps);

// Returns |count| faults, each at a random time within consecutive periods of |period| milliseconds since the start of
// the job.
std::vector<Fault> plan_faults_by_time(uint64_t seed, int64_t count, const std::vector<FaultKind>& kinds, int64_t world,
                                       int64_t period);

// Convert faults to text, "kill:2@37+400,stop:1@60500ms+0", and back. Parsing throws ConfigError for anything else.
std::string to_string(const std::vector<Fault>& faults);
std::vector<Fault> parse_faults(std::string_view text);
// Convert kinds of faults to text, "kill,stop", and back.
std::vector<FaultKind> parse_fault_kinds(std::string_view text);

}  // namespace concord
