// The interface of services to which a run reports in addition to its own files; implemented in trainer/trackers.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "trainer/report/history.h"

namespace concord {

struct RunDescription;

// The logged values of a step or an evaluation, with Hugging Face's names: loss, learning_rate, eval_loss, ...
struct TrackedValues {
  int64_t step = 0;
  double time = 0;  // seconds since 1970
  NamedValues values = {};
};

// No call waits for the service or throws because of it: values that could not be reported are counted and logged, and
// training continues. Threads: one at a time.
class Tracker {
 public:
  virtual ~Tracker() = default;  // without finish(): the run has failed

  virtual std::string name() const = 0;
  virtual void begin(const RunDescription& run) = 0;
  virtual void log(const TrackedValues& logged) = 0;
  // Returns new messages for the user since the last call: a server that does not reply.
  virtual std::vector<std::string> take_notes() { return {}; }
  // Returns a text for the summary: where the run can be seen, and what is missing there. Nothing is logged afterwards.
  // Waits: for the service, at most a minute.
  virtual std::string finish() = 0;
};

}  // namespace concord
