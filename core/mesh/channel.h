// A communicator with its stream, the calls in flight on it, and their outcomes.
//
// Creation. The communicator is created at the first call, on a separate thread; calls made meanwhile are queued and
// issued in order once it exists. The host waits for a communicator only if it waits for the result of a call. A rank
// therefore takes part in all creations that it has begun at the same time. Lazily created groups can deadlock only if
// the calls themselves would, however the groups overlap and in whatever order ranks first use them. Unused groups are
// never created.
//
// Order. A call runs on the channel's own stream, which first waits for what the caller's current stream has queued
// (|current|); order_after makes a stream wait for the call. The host waits for neither. Where libtorch computes on the
// calling thread (capability stream.host_is_current) there is no such stream: |current| is null, and wait() is used.
//
// Failure. A failure after a call (a lost peer, a timeout) is detected by the caller that waits for the call or by the
// watchdog, reported once through FlightService, and thrown by every later call. If the plugin has no timeouts of its
// own (capability comm.timeout), the watchdog measures them and aborts the communicator. If several calls end within
// one tick of the watchdog (kTick) before a failure, the first call that no caller waited for may be reported as the
// failed one.
//
// Threads: any thread; calls are numbered and issued in the order in which they enter submit.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "core/mesh/communication_time.h"
#include "core/mesh/rank_layout.h"
#include "core/mesh/store/store.h"
#include "core/mesh/watch/call_checker.h"
#include "core/mesh/watch/flight_service.h"
#include "core/mesh/watch/watchdog.h"
#include "platform/base/thread_safety.hpp"
#include "platform/cpp/comm.hpp"
#include "platform/cpp/event.hpp"

namespace concord {

// Services that all channels of a rank share. Must outlive their close().
struct ChannelServices {
  Device device;
  std::shared_ptr<Store> store;
  FlightService& flight;
  Watchdog& watchdog;
  std::chrono::milliseconds timeout;             // for joining, and for every call
  bool check_calls = false;                      // compare the calls of all ranks first, see CallChecker
  bool host_is_current = false;                  // capability stream.host_is_current
  std::shared_ptr<CommunicationTime> time = {};  // adds up waits and calls; null: not measured
};

// A call to be made.
struct ChannelCall {
  CallSignature signature;
  std::function<void(const Communicator&, const Stream&)> issue;  // enqueues the work
  std::shared_ptr<const void> keep;                               // kept until the work is done: the tensors
  std::function<void(CallChecker&, int64_t sequence, const CallSignature&)> check;  // null: compare the signature
};

class PendingCall;  // a call in flight; a handle for the functions below

class Channel {
 public:
  static constexpr std::chrono::milliseconds kTick{100};

  // |ranks| has more than one member, including |rank|. |name| is identical on all of them and unique among the groups
  // with the same first rank.
  Channel(std::string name, RankGroup ranks, int64_t rank, const ChannelServices& services);
  ~Channel();
  Channel(const Channel&) = delete;
  Channel& operator=(const Channel&) = delete;

  // Shuts down: waits for calls in flight, or aborts them if the channel has failed. The services are not used
  // afterwards, so holders of the channel or of one of its calls may outlive them; calls that were in flight are done,
  // and new ones throw. Threads: no other thread uses the channel meanwhile.
  void close();

  const std::string& name() const { return name_; }
  const RankGroup& ranks() const { return ranks_; }
  int64_t index() const { return index_; }  // index of this rank in ranks()
  const Device& device() const { return services_.device; }
  bool host_is_current() const { return services_.host_is_current; }

  // Starts the creation; create() also waits for it. Every member must take part within the timeout.
  void begin_create();
  void create();
  bool created() const;
  bool failed() const;
  // Takes over a communicator that split() has created, unless this channel has or creates one already.
  void adopt(Communicator communicator);
  // Returns a communicator of |members|, which are indices in ranks(). Every rank of this channel calls it; a rank that
  // is not a member passes an empty list. Waits: for all of them.
  std::optional<Communicator> split(std::span<const int32_t> members, const std::string& name);

  std::shared_ptr<PendingCall> submit(ChannelCall call, const Stream* current);
  // Makes later work of |current| start after |call|. Throws if the call is known to have failed. Waits: at most for
  // the creation. Releases the tensors that the call keeps if |current| is the stream it was submitted from: memory
  // that is freed then is reused after this point, as libtorch does for any work of a stream.
  void order_after(PendingCall& call, const Stream& current);
  // Waits: until the call is done. Throws Error with the call, the group and the lagging ranks if it failed.
  void wait(PendingCall& call);
  bool done(PendingCall& call);  // never waits; throws like wait()

 private:
  using Clock = std::chrono::steady_clock;
  enum class State { absent, creating, ready, failing, failed };
  using Lock = std::unique_lock<std::mutex>;

  std::string store_prefix() const;
  Communicator join();
  void run_creation();
  void open(Lock& lock, Communicator communicator) CONCORD_REQUIRES(mutex_);
  std::shared_ptr<PendingCall> note(const ChannelCall& call) CONCORD_REQUIRES(mutex_);
  void compare(Lock& lock, const ChannelCall& call, PendingCall& pending) CONCORD_REQUIRES(submitting_, mutex_);
  void issue_last(Lock& lock) CONCORD_REQUIRES(mutex_);
  void issue(PendingCall& call) CONCORD_REQUIRES(mutex_);
  void throw_if_failed(Lock& lock) CONCORD_REQUIRES(mutex_);
  void throw_if_failed(PendingCall& call) CONCORD_REQUIRES(mutex_);
  void wait_until_issued(Lock& lock, PendingCall& call) CONCORD_REQUIRES(mutex_);
  void wait_for_event(const Event& event);
  void settle(Lock& lock) CONCORD_REQUIRES(mutex_);
  bool settle_front(Lock& lock) CONCORD_REQUIRES(mutex_);
  void note_start(PendingCall& call);
  void note_duration(const PendingCall& call);
  void fail(Lock& lock, const PendingCall* call, concord_status status, const std::string& detail)
      CONCORD_REQUIRES(mutex_);
  void tick() noexcept;
  void look_at_creation(Lock& lock) CONCORD_REQUIRES(mutex_);
  void look_from_outside();
  std::shared_ptr<Event> take_event() CONCORD_REQUIRES(mutex_);
  void give_back(std::shared_ptr<Event>& event) CONCORD_REQUIRES(mutex_);

  const std::string name_;
  const RankGroup ranks_;
  const int64_t index_;
  const ChannelServices services_;
  const std::chrono::milliseconds limit_;  // the watchdog reports a timeout after it
  const bool keeps_time_;                  // the plugin has its own timeouts
  const bool times_calls_;                 // measures calls on the device, with timing events
  bool closed_ = false;

  std::atomic<bool> opened_ = false;                    // communicator_ exists and is not replaced
  std::optional<Clock::time_point> unreachable_since_;  // used by the watchdog only
  Clock::time_point next_look_at_creation_;             // used by the watchdog only

  std::mutex submitting_;  // taken before mutex_: keeps the order of calls while they are compared
  std::unique_ptr<CallChecker> checker_ CONCORD_GUARDED_BY(submitting_);

  mutable std::mutex mutex_;  // guards everything below
  std::condition_variable changed_;
  State state_ CONCORD_GUARDED_BY(mutex_) = State::absent;
  std::optional<Error> failure_ CONCORD_GUARDED_BY(mutex_);
  int64_t made_ CONCORD_GUARDED_BY(mutex_) = 0;
  int64_t p2p_made_ CONCORD_GUARDED_BY(mutex_) = 0;
  std::deque<std::shared_ptr<PendingCall>> pending_ CONCORD_GUARDED_BY(mutex_);
  std::vector<std::shared_ptr<Event>> spare_events_ CONCORD_GUARDED_BY(mutex_);
  std::optional<Stream> stream_;
  std::optional<Communicator> communicator_;  // destroyed before what its work uses
  std::thread creator_;
};

}  // namespace concord
