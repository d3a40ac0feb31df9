// Events, of the three kinds that CANN has:
//
//   kReusable  aclrtCreateEventExWithFlag: a record is a position in a stream. A new record replaces it; a wait refers
//              to the record at the time of its call; without a record it does not wait.
//   kPlain     aclrtCreateEvent: like kReusable, but waiting without a record is an error, and a query returns "not
//              ready".
//   kFlag      aclrtCreateEventWithFlag: a flag of the device. A record sets it when the stream reaches it; a wait
//              waits until any record has set it; only aclrtResetEvent clears it. So after a second record without a
//              reset a wait does not wait: the flag is still set by the first.
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

  // |id_counter|, of the device, counts the events that use one of its ids; see takes_id().
  Event(Kind kind, uint32_t flags, int32_t device, std::atomic<int32_t>* id_counter);
  ~Event();
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;

  int32_t device() const { return device_; }

  void record(const std::shared_ptr<Stream>& stream);
  void wait(const std::shared_ptr<Stream>& stream, std::chrono::milliseconds timeout);
  void reset(const std::shared_ptr<Stream>& stream);
  bool query() const;
  // Returns 0 for complete and 1 for not complete, like aclrtQueryEventWaitStatus.
  bool all_waits_done() const;
  void synchronize(int32_t timeout_ms);
  // Returns the time, in nanoseconds, at which the latest record was reached; |which| names the event in errors.
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
  std::shared_ptr<Stamp> stamp_ CONCORD_GUARDED_BY(mutex_);      // 0 until the record is reached
  std::shared_ptr<Capture> capture_ CONCORD_GUARDED_BY(mutex_);  // the capture that the latest record is part of
  Capture::ClockOfStreams capture_clock_ CONCORD_GUARDED_BY(mutex_);
};

inline constexpr int32_t kMaxEvents = 65536;  // per device

// aclrtSetOpWaitTimeout: how long a stream waits for an event; 0: without limit.
void set_event_wait_timeout(std::chrono::seconds timeout);

}  // namespace concord::ascend::sim
