// Events, of the three kinds that CANN has:
//
//   kReusable  aclrtCreateEventExWithFlag: a record is a place in a stream. A new record takes its place; a wait keeps
//              the record that was current when it was made; without a record there is nothing to wait for.
//   kPlain     aclrtCreateEvent: the same, but waiting without a record is an error, and a query says "not ready".
//   kFlag      aclrtCreateEventWithFlag: one flag of the device. A record sets it when the stream gets there; a wait
//              waits until it is set by any record; only aclrtResetEvent clears it. A second record without a reset
//              in between is therefore not waited for: the flag is still set from the first.
//
// Threads: any.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>

#include "backends/ascend/sim/runtime/capture.h"
#include "backends/ascend/sim/runtime/queue.h"
#include "backends/cpu/mark.h"
#include "platform/base/thread_safety.hpp"

namespace concord::ascend::sim {

class Stream;

class Event {
 public:
  enum class Kind { kReusable, kPlain, kFlag };

  // |id_counter|, of the device, counts the events that hold an id of it; see takes_id().
  Event(Kind kind, uint32_t flags, int32_t device, std::atomic<int32_t>* id_counter);
  ~Event();
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;

  int32_t device() const { return device_; }

  void record(const std::shared_ptr<Stream>& stream);
  void wait(const std::shared_ptr<Stream>& stream, std::chrono::milliseconds timeout);
  void reset(const std::shared_ptr<Stream>& stream);
  bool query() const;
  // 0: complete, 1: not, as aclrtQueryEventWaitStatus counts.
  bool all_waits_done() const;
  void synchronize(int32_t timeout_ms);
  // Nanoseconds at which the newest record was reached; |which| names the event in errors.
  int64_t reached_at(const char* which) const;

 private:
  using Mark = cpu::MarkOf<Queue>;
  using Stamp = cpu::Stamp;

  // The device's flag, shared with the tasks that set, clear and wait for it.
  struct Flag {
    std::atomic<bool> set{false};
    std::atomic<int> waiting{0};
    cpu::Parking changed;
  };

  bool has(uint32_t flag) const { return (flags_ & flag) != 0; }
  void take_id() CONCORD_REQUIRES(mutex_);
  void record_in_capture(Capture& capture, const Stream& stream) CONCORD_REQUIRES(mutex_);
  void require_not_captured() const CONCORD_REQUIRES(mutex_);
  void wait_for_record(const std::shared_ptr<Stream>& stream, std::chrono::milliseconds timeout);
  void wait_for_flag(const std::shared_ptr<Stream>& stream, std::chrono::milliseconds timeout);

  const Kind kind_;
  const uint32_t flags_;
  const int32_t device_;
  std::atomic<int32_t>* const id_counter_;
  const std::shared_ptr<Flag> flag_;

  mutable std::mutex mutex_;  // guards all below
  bool has_id_ CONCORD_GUARDED_BY(mutex_) = false;
  bool recorded_ CONCORD_GUARDED_BY(mutex_) = false;
  Mark mark_ CONCORD_GUARDED_BY(mutex_);
  std::shared_ptr<Stamp> stamp_ CONCORD_GUARDED_BY(mutex_);      // 0 until it is reached
  std::shared_ptr<Capture> capture_ CONCORD_GUARDED_BY(mutex_);  // that the newest record is part of
  Capture::ClockOfStreams capture_clock_ CONCORD_GUARDED_BY(mutex_);
};

inline constexpr int32_t kMaxEvents = 65536;  // of a device

// aclrtSetOpWaitTimeout: how long a stream waits for an event; 0: without limit.
void set_event_wait_timeout(std::chrono::seconds timeout);

}  // namespace concord::ascend::sim
