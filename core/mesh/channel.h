// A communicator with its stream, the calls in flight on it, and their outcomes.
//
// Creation. The communicator is created at the first call, on a separate thread; calls made meanwhile are queued in
// their order and passed on when it exists. The host waits for a communicator only if it waits for the result of a
// call. So a rank takes part in all creations that it has begun at the same time, and lazily made groups, however they
// overlap and whatever the order in which ranks first use them, can deadlock only if the calls themselves would. No
// group has to be created because of another one, and unused groups are never created.
//
// Order. A call runs on the channel's own stream, which first waits for what the caller's current stream has queued
// (|current|); order_after makes a stream wait for the call. The host waits for neither. Where libtorch computes on the
// calling thread (capability stream.host_is_current) there is no such stream: |current| is null, and wait() is used.
//
// Failure. What goes wrong after a call (a lost peer, a timeout) is found by the caller that waits for it or else by
// the watchdog, reported once through FlightService, and thrown by every later call. Where the plugin keeps no time
// itself (capability comm.timeout), the watchdog does, and aborts the communicator. Of calls that ended within one tick
// of the watchdog (kTick) before a failure, the first that no one waited for may be named as the one that failed.
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

// What the channels of a rank share. Outlives their close().
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
  std::shared_ptr<const void> keep;                               // lives until the work is done: the tensors
  std::function<void(CallChecker&, int64_t sequence, const CallSignature&)> check;  // null: compare the signature
};

class PendingCall;  // a call in flight; a handle for the functions below

class Channel {
 public:
  static constexpr std::chrono::milliseconds kTick{100};

  // |ranks| has more than one member; |rank| is one of them. |name| is the same on all of them, and no other group with
  // the same first rank has it.
  Channel(std::string name, RankGroup ranks, int64_t rank, const ChannelServices& services);
  ~Channel();
  Channel(const Channel&) = delete;
  Channel& operator=(const Channel&) = delete;

  // Shuts down: waits for calls in flight, or aborts them if the channel has failed. Afterwards the services are not
  // used any more, so holders of the channel or of a call of it may outlive them; calls that were in flight
  // are done, and new ones are refused. Threads: no one else uses the channel meanwhile.
  void close();

  const std::string& name() const { return name_; }
  const RankGroup& ranks() const { return ranks_; }
  int64_t index() const { return index_; }  // of this rank within ranks()
  const Device& device() const { return services_.device; }
  bool host_is_current() const { return services_.host_is_current; }

  // Begins the creation; create() also waits for it. Every member has to come, within the timeout.
  void begin_create();
  void create();
  bool created() const;
  bool failed() const;
  // Takes a communicator that was made elsewhere (by split), unless one was made or begun here.
  void adopt(Communicator communicator);
  // A communicator of |members|, which are indices in ranks(). Every rank of this channel calls it; a rank that is not
  // a member gives an empty list. Waits: for all of them.
  std::optional<Communicator> split(std::span<const int32_t> members, const std::string& name);

  std::shared_ptr<PendingCall> submit(ChannelCall call, const Stream* current);
  // Later work of |current| starts after |call|. Throws if the call is known to have failed. Waits: at most for the
  // creation. Releases what the call keeps if |current| is the stream it was submitted from: memory that is freed then
  // is reused after this point, as libtorch does for any work of a stream.
  void order_after(PendingCall& call, const Stream& current);
  // Waits: until the call is done. Throws Error with the call, the group and who is behind if it failed.
  void wait(PendingCall& call);
  bool done(PendingCall& call);  // never waits; throws as wait

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
  const std::chrono::milliseconds limit_;  // after which the watchdog calls it a timeout
  const bool keeps_time_;                  // the plugin does
  const bool times_calls_;                 // on the device, with events that have a time
  bool closed_ = false;

  std::atomic<bool> opened_ = false;                    // communicator_ exists and stays
  std::optional<Clock::time_point> unreachable_since_;  // the watchdog's own
  Clock::time_point next_look_at_creation_;             // the watchdog's own, too

  std::mutex submitting_;  // taken before mutex_: holds the order of calls while they are compared
  std::unique_ptr<CallChecker> checker_ CONCORD_GUARDED_BY(submitting_);

  mutable std::mutex mutex_;  // all below
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
