// Passes on what the devices of this process do, piece by piece, for the simulated libmspti.so. Costs a read of an
// atomic variable per piece of work while nothing observes.
#pragma once

#include <cstdint>

namespace concord::ascend::sim {

// The time that a thread works for a device: a task of a stream, or a synchronous copy. concord_sim_count_work ends a
// piece of work; the next one of the same scope begins there. Threads: the constructing thread only.
class WorkScope {
 public:
  // Within another scope, which stays the thread's, it does nothing but begin a new piece.
  WorkScope(int32_t device, int32_t stream);
  ~WorkScope();
  WorkScope(const WorkScope&) = delete;
  WorkScope& operator=(const WorkScope&) = delete;

 private:
  const bool is_outer_;
};

// Tells the observer, if there is one, that a piece of work under |name| ends now in the calling thread's scope.
void observe_work(const char* name, int64_t bytes);

}  // namespace concord::ascend::sim
