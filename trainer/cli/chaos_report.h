// Outcomes of the faults of a job (trainer/health/faults.h), from its recovery log (core/base/recovery_log.h). Pure
// functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "trainer/health/faults.h"

namespace concord {

struct FaultOutcome {
  Fault fault;  // with the step that it came in
  bool happened = false;
  bool is_overtaken = false;               // a recovery from another fault replaced its process before it was noticed
  std::optional<double> detected_seconds;  // until it was detected; nullopt: it caused no failure
  std::optional<int64_t> named_rank;       // rank that was reported then; nullopt: none
  std::optional<double> training_seconds;  // until every rank had completed a step again
  int64_t lost_steps = 0;                  // number of steps that were repeated
};

struct ChaosReport {
  std::vector<FaultOutcome> outcomes;
  int64_t recoveries = 0;
  double seconds = 0;    // duration of the run under faults, from its first step to its end
  double effective = 1;  // fraction of it spent on new steps
};

// Returns the outcomes of |faults| in a run of |steps| steps. Throws ConfigError unless |log| is one JSON object per
// line.
ChaosReport read_recoveries(const std::vector<Fault>& faults, int64_t steps, const std::string& log);

}  // namespace concord
