// A service that a run reports to besides its own files; the services are in trainer/trackers.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "trainer/report/history.h"

namespace concord {

struct RunDescription;

// What is logged of a step or of an evaluation, with Hugging Face's names: loss, learning_rate, eval_loss, ...
struct TrackedValues {
  int64_t step = 0;
  double time = 0;  // seconds since 1970
  NamedValues values = {};
};

// No call waits for the service, and none throws because of it: what could not be reported is counted and said, and
// training goes on. Threads: one at a time.
class Tracker {
 public:
  virtual ~Tracker() = default;  // without finish(): the run has failed

  virtual std::string name() const = 0;
  virtual void begin(const RunDescription& run) = 0;
  virtual void log(const TrackedValues& logged) = 0;
  // What a user should know, since the last call: a server that does not answer.
  virtual std::vector<std::string> take_notes() { return {}; }
  // For the summary: where the run can be seen, and what is missing there. Nothing is logged after it.
  // Waits: for the service, a minute at most.
  virtual std::string finish() = 0;
};

}  // namespace concord
