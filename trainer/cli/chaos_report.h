// What became of the faults of a job (trainer/health/faults.h), from its recovery log (core/base/recovery_log.h). Pure
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
  std::optional<double> detected_seconds;  // until it was noticed; nothing: it did not have to be
  std::optional<int64_t> named_rank;       // who was named then; nothing: nobody was
  std::optional<double> training_seconds;  // until every rank had done a step again
  int64_t lost_steps = 0;                  // that were done again
};

struct ChaosReport {
  std::vector<FaultOutcome> outcomes;
  int64_t recoveries = 0;
  double seconds = 0;    // of the run under faults, from its first step to its end
  double effective = 1;  // the part of it in which new steps were made
};

// Of a run of |steps| steps. |log|: one JSON object per line. Throws ConfigError where it is not that.
ChaosReport read_recoveries(const std::vector<Fault>& faults, int64_t steps, const std::string& log);

}  // namespace concord
