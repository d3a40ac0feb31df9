// Faults that are caused on purpose, to see whether a job survives them: which, on which rank, at which step. A plan is
// a pure function of a seed, so a failure can be repeated. `concord chaos` makes one and hands it to the ranks in
// CONCORD_FAULTS; they carry it out (trainer/health/fault_callback.h), each fault once, also in later attempts of the
// job. Threads: plain values.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace concord {

inline constexpr const char* kFaultsVariable = "CONCORD_FAULTS";

enum class FaultKind {
  kill,        // SIGKILL, at any time in the step
  stop,        // SIGSTOP: the process is there but does nothing
  hang,        // the thread that trains does nothing any more
  delay,       // a pause of 0.3 s, which is not a failure
  disconnect,  // all its connections break
  bitflip,     // one bit of one weight changes
  disk,        // nothing can be written to any file any more
  nan,         // one weight becomes NaN
  slow,        // every further step of this process takes 30 ms longer
};
std::string_view to_string(FaultKind kind);
const std::vector<FaultKind>& all_fault_kinds();

struct Fault {
  FaultKind kind{};
  int64_t rank = 0;
  int64_t step = 1;          // the one that it comes in, from 1; 0: by time
  int64_t where = 0;         // a number from 0 to 999: the part of the step, or which weight and which bit
  int64_t milliseconds = 0;  // without a step: after the begin of the job; it comes in the step that begins next
  bool operator==(const Fault&) const = default;
};

// |count| faults in steps 2 to |steps| of a job of |world| ranks, in the order of their steps, at most one per step.
// Throws ConfigError where there are not enough steps.
std::vector<Fault> plan_faults(uint64_t seed, int64_t count, const std::vector<FaultKind>& kinds, int64_t world,
                               int64_t steps);

// |count| faults, one in each |period| milliseconds from the begin of the job, at a random moment of it.
std::vector<Fault> plan_faults_by_time(uint64_t seed, int64_t count, const std::vector<FaultKind>& kinds, int64_t world,
                                       int64_t period);

// "kill:2@37+400,stop:1@60500ms+0" and back. Throws ConfigError for anything else.
std::string to_string(const std::vector<Fault>& faults);
std::vector<Fault> parse_faults(std::string_view text);
// "kill,stop" and back.
std::vector<FaultKind> parse_fault_kinds(std::string_view text);

}  // namespace concord
