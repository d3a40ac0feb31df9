// Lets all ranks leave a loop of short pieces of work (the batches of an evaluation) before the same piece after a
// signal to some of them. The ranks communicate about once per second, not at every piece. Threads: training thread
// only.
#pragma once

#include <chrono>
#include <cstdint>

#include "core/mesh/parallel_context.h"

namespace concord {

class StopRequest;

class StopAgreement {
 public:
  // |stop| null: no stop request. Null on all ranks or on none.
  StopAgreement(ParallelContext& job, const StopRequest* stop) : job_(job), stop_(stop) {}

  // Returns whether to leave the loop. Every rank calls it before each piece. Waits: for all ranks, about once per
  // second.
  bool is_reached();

 private:
  using Clock = std::chrono::steady_clock;

  ParallelContext& job_;
  const StopRequest* stop_;
  int64_t pieces_ = 1;  // pieces between two agreements
  int64_t left_ = 1;
  Clock::time_point asked_ = Clock::now();
};

// Returns the signal that any rank has received so far; 0: none. Every rank calls it. Waits: for all ranks.
int agreed_stop_signal(ParallelContext& job, const StopRequest& stop);

}  // namespace concord
