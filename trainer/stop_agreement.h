// Many short pieces of work in which the ranks wait for each other (the batches of an evaluation), and a signal that
// comes to some of them: all leave before the same piece. They ask each other about once a second, not at every piece.
// Threads: the one that trains.
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

  // Before each piece, on every rank. Waits: for all ranks, now and then.
  bool is_reached();

 private:
  using Clock = std::chrono::steady_clock;

  ParallelContext& job_;
  const StopRequest* stop_;
  int64_t pieces_ = 1;  // until the ranks ask each other again, and how many that was
  int64_t left_ = 1;
  Clock::time_point asked_ = Clock::now();
};

// The signal that came to any rank so far; 0: none. Every rank calls it. Waits: for all ranks.
int agreed_stop_signal(ParallelContext& job, const StopRequest& stop);

}  // namespace concord
