// The device timeline of the trace layer: pairs of timed events around queued work, turned into slices once
// the work is done. Needs the capability event.timing; without it there are no device slices. Threads: any. Memory:
// at most kMaxPending slices wait; further ones are counted and dropped.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "platform/base/thread_safety.hpp"
#include "platform/layers/trace_file.h"
#include "platform/loader/slots.h"

namespace concord::layers {

class Timeline {
 public:
  static constexpr size_t kMaxPending = 4096;

  // The event before a piece of work; null if it is not timed.
  struct Mark {
    concord_event start = nullptr;
    int32_t device = -1;
  };

  Timeline(const loader::Tables& tables, TraceFile& file);

  // Call before and after the call that queues work on |stream|. |arguments| is a JSON object.
  Mark begin(concord_stream stream);
  void end(const Mark& mark, concord_stream stream, bool queued, const char* name, const std::string& arguments);

  void stream_created(concord_stream stream, int32_t device);
  void stream_destroyed(concord_stream stream);

  // Writes the slices of work that is done. Never waits.
  void resolve();
  size_t left_out() const;

 private:
  struct DeviceClock {
    concord_event base = nullptr;  // null: this device cannot be timed
    double base_us = 0;            // when it was recorded, by the host's clock
    std::vector<concord_event> spare;
  };
  struct Pending {
    int32_t device;
    int32_t track;
    concord_event start;
    concord_event stop;
    const char* name;
    std::string arguments;
  };

  int32_t device_of(concord_stream stream) CONCORD_REQUIRES(mutex_);
  DeviceClock& clock_of(int32_t device) CONCORD_REQUIRES(mutex_);
  concord_event base_event(int32_t device, double* out_us) CONCORD_REQUIRES(mutex_);
  concord_event take_event(int32_t device) CONCORD_REQUIRES(mutex_);
  int32_t track_of(concord_stream stream, int32_t device) CONCORD_REQUIRES(mutex_);
  bool write_if_done(const Pending& pending) CONCORD_REQUIRES(mutex_);
  void resolve_locked() CONCORD_REQUIRES(mutex_);

  const loader::Tables& tables_;
  TraceFile& file_;
  bool timing_;
  mutable std::mutex mutex_;
  std::map<concord_stream, int32_t> devices_ CONCORD_GUARDED_BY(mutex_);
  std::map<std::pair<concord_stream, int32_t>, int32_t> tracks_ CONCORD_GUARDED_BY(mutex_);
  std::map<int32_t, DeviceClock> clocks_ CONCORD_GUARDED_BY(mutex_);
  std::deque<Pending> pending_ CONCORD_GUARDED_BY(mutex_);
  size_t left_out_ CONCORD_GUARDED_BY(mutex_) = 0;
  size_t ended_ CONCORD_GUARDED_BY(mutex_) = 0;
};

}  // namespace concord::layers
