// `concord chaos`: a training job under faults, beside the same job without them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "trainer/faults.h"

namespace CLI {
class App;
}

namespace concord {

// Adds the subcommand to |program|.
void add_chaos_command(CLI::App* program, int* exit_code);

// What became of one fault, from the recovery log (core/recovery_log.h).
struct FaultOutcome {
  Fault fault;
  bool happened = false;
  std::optional<double> detected_seconds;  // until the launcher knew; nothing: it did not have to
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
