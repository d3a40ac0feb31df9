#include "core/mesh/channel.h"

#include <fmt/core.h>

#include <algorithm>
#include <limits>

#include "platform/bridge/host_work.h"
#include "platform/loader/host.h"

namespace concord {

// Guarded by its channel's mutex, except |done| and |keep|, whose targets are used outside.
class PendingCall {
 public:
  enum class Stage { waiting, issued, done, failed };

  Stage stage = Stage::waiting;
  bool started = false;
  CallSignature signature;
  int64_t sequence = 0;
  uint64_t ticket = 0;
  std::function<void(const Communicator&, const Stream&)> issue;
  std::shared_ptr<const void> keep;
  concord_stream from = nullptr;  // the stream of the caller
  std::shared_ptr<Event> ready;   // recorded on that stream
  std::shared_ptr<Event> start;
  std::shared_ptr<Event> end;
  std::chrono::steady_clock::time_point since;  // when it was issued; later: when its start was observed
  std::optional<Error> error;                   // failure of this call only; other failures are the channel's
};

namespace {

constexpr std::chrono::seconds kPluginsGrace{5};  // lets the plugin's own timeout expire first
constexpr std::chrono::milliseconds kCreationLook{500};

bool is_p2p(const CallSignature& signature) { return signature.op == CommOp::kP2p; }

// A failure that does not affect the communicator: the call was rejected.
bool is_refusal(concord_status status) {
  return status == CONCORD_STATUS_INVALID_ARGUMENT || status == CONCORD_STATUS_UNIMPLEMENTED;
}

}  // namespace

Channel::Channel(std::string name, RankGroup ranks, int64_t rank, const ChannelServices& services)
    : name_(std::move(name)),
      ranks_(std::move(ranks)),
      index_(ranks_.index_of(rank).value()),
      services_(services),
      limit_(services.timeout + (services.device.platform().capability(CONCORD_CAP_COMM_TIMEOUT) != 0
                                     ? std::chrono::milliseconds(kPluginsGrace)
                                     : std::chrono::milliseconds(0))),
      keeps_time_(services.device.platform().capability(CONCORD_CAP_COMM_TIMEOUT) != 0),
      times_calls_(services.time != nullptr && !services.host_is_current &&
                   services.device.platform().capability(CONCORD_CAP_EVENT_TIMING) != 0) {
  if (ranks_.size() > std::numeric_limits<int32_t>::max()) {
    throw Error(CONCORD_STATUS_INVALID_ARGUMENT,
                fmt::format("group {} has {} ranks; the limit for a communicator is 2^31 - 1", name_, ranks_.size()));
  }
  if (services_.check_calls) {
    checker_ = std::make_unique<CallChecker>(services_.store, services_.flight.peers(),
                                             CallChecker::Options{name_, ranks_, index_, services_.timeout});
  }
  services_.watchdog.add(this, kTick, [this] { tick(); });
}

Channel::~Channel() { close(); }

void Channel::close() {
  if (closed_) return;
  closed_ = true;
  services_.watchdog.remove(this);
  if (creator_.joinable()) creator_.join();
  Lock lock(mutex_);
  const bool has_failed = failure_.has_value();
  lock.unlock();
  if (has_failed && communicator_ && services_.device.platform().capability(CONCORD_CAP_COMM_ABORT) != 0) {
    services_.device.platform().call_or_log<&concord_comm_table::abort>(communicator_->native());
  }
  communicator_.reset();  // waits for work in flight
  stream_.reset();
  lock.lock();
  spare_events_.clear();
  for (const std::shared_ptr<PendingCall>& call : pending_) {
    if (call->stage == PendingCall::Stage::issued) call->stage = PendingCall::Stage::done;
    call->keep.reset();
  }
  pending_.clear();
  state_ = State::failed;
  if (!failure_) {
    failure_.emplace(CONCORD_STATUS_FAILED_PRECONDITION,
                     fmt::format("group {} (ranks {}) is gone: finalize was called", name_, ranks_.to_string()));
  }
}

// --------------------------------------------------------------------------------------------------------- creation

std::string Channel::store_prefix() const { return fmt::format("group/{}/{}/", name_, ranks_.first()); }

// The plugin is called when all members have joined, because it would wait until the timeout for a missing one.
Communicator Channel::join() {
  const std::string prefix = store_prefix();
  UniqueId id;
  if (index_ == 0) {
    id = create_unique_id(services_.device.platform());
    services_.store->set(prefix + "id", {reinterpret_cast<const char*>(id.data()), id.size()});
  }
  services_.flight.peers().meet(prefix, ranks_, index_, services_.timeout);
  if (index_ != 0) {
    const std::string bytes = services_.store->get(prefix + "id", services_.timeout);
    id.assign(bytes.begin(), bytes.end());
  }
  return {services_.device, static_cast<int32_t>(ranks_.size()), static_cast<int32_t>(index_), id,
          CommOptions{name_, services_.timeout}};
}

void Channel::run_creation() {
  concord_status status = CONCORD_STATUS_INTERNAL;
  std::string detail;
  try {
    services_.device.make_current();  // this thread is new
    Communicator communicator = join();
    Lock lock(mutex_);
    if (state_ == State::creating) open(lock, std::move(communicator));
    return;
  } catch (const Error& error) {
    status = error.status();
    detail = error.what();
  } catch (const std::exception& error) {
    detail = error.what();
  }
  Lock lock(mutex_);
  fail(lock, nullptr, status, fmt::format("the communicator could not be created: {}", detail));
}

void Channel::open(Lock& lock, Communicator communicator) {
  communicator_.emplace(std::move(communicator));
  stream_.emplace(services_.device, Stream::priority_range(services_.device).greatest);
  state_ = State::ready;
  opened_ = true;
  for (const std::shared_ptr<PendingCall>& call : pending_) {
    try {
      issue(*call);
    } catch (const Error& error) {
      if (communicator_->error()) {
        fail(lock, call.get(), error.status(), error.what());
        return;
      }
      call->stage = PendingCall::Stage::failed;
      call->error = error;
      services_.flight.recorder().mark(call->ticket, CallState::failed);
    }
  }
  changed_.notify_all();
}

void Channel::begin_create() {
  const std::lock_guard lock(mutex_);
  if (state_ != State::absent) return;
  state_ = State::creating;
  creator_ = std::thread([this] { run_creation(); });
}

void Channel::create() {
  begin_create();
  Lock lock(mutex_);
  changed_.wait(lock, [&]() CONCORD_REQUIRES(mutex_) { return state_ == State::ready || state_ == State::failed; });
  throw_if_failed(lock);
}

bool Channel::created() const {
  const std::lock_guard lock(mutex_);
  return state_ == State::ready;
}

bool Channel::failed() const {
  const std::lock_guard lock(mutex_);
  return state_ == State::failing || state_ == State::failed;
}

void Channel::adopt(Communicator communicator) {
  Lock lock(mutex_);
  if (state_ == State::absent) open(lock, std::move(communicator));
}

std::optional<Communicator> Channel::split(std::span<const int32_t> members, const std::string& name) {
  const std::lock_guard in_order(submitting_);
  create();
  return communicator_.value().split(members, CommOptions{name, services_.timeout});
}

// ------------------------------------------------------------------------------------------------------------ calls

std::shared_ptr<PendingCall> Channel::submit(ChannelCall call, const Stream* current) {
  const std::lock_guard in_order(submitting_);
  Lock lock(mutex_);
  throw_if_failed(lock);
  const std::shared_ptr<PendingCall> pending = note(call);
  if (checker_ != nullptr) compare(lock, call, *pending);
  pending->issue = std::move(call.issue);
  pending->keep = std::move(call.keep);
  if (current != nullptr) {
    pending->from = current->native();
    // If this channel's device is the bridge of the caller's, the event must be the caller's device's.
    const bool is_bridged = current->device() != services_.device;
    pending->ready = is_bridged ? std::make_shared<Event>(current->device()) : take_event();
    pending->ready->record(*current);
  }
  pending_.push_back(pending);
  if (state_ == State::ready) {
    issue_last(lock);
    settle(lock);
  } else {
    lock.unlock();
    begin_create();
  }
  return pending;
}

// Assigns a call its number and records it.
std::shared_ptr<PendingCall> Channel::note(const ChannelCall& call) {
  const bool p2p = is_p2p(call.signature);
  auto pending = std::make_shared<PendingCall>();
  pending->signature = call.signature;
  pending->sequence = p2p ? ++p2p_made_ : ++made_;
  pending->ticket =
      services_.flight.recorder().record(p2p ? p2p_name(name_) : name_, pending->sequence, call.signature);
  return pending;
}

// Throws if the ranks' calls differ, which leaves the channel usable, and if one does not arrive, which does not.
void Channel::compare(Lock& lock, const ChannelCall& call, PendingCall& pending)
    CONCORD_NO_THREAD_SAFETY_ANALYSIS {  // releases the caller's lock in between
  lock.unlock();
  std::optional<Error> trouble;
  try {
    call.check ? call.check(*checker_, pending.sequence, pending.signature)
               : checker_->check(pending.sequence, pending.signature);
  } catch (const Error& error) {
    trouble = error;
  }
  lock.lock();
  if (trouble) {
    services_.flight.recorder().mark(pending.ticket, CallState::failed);
    if (is_refusal(trouble->status())) throw *trouble;
    fail(lock, &pending, trouble->status(), trouble->what());
  }
  throw_if_failed(lock);
}

// Submits the latest call to the device.
void Channel::issue_last(Lock& lock) {
  const std::shared_ptr<PendingCall> call = pending_.back();
  try {
    issue(*call);
  } catch (const Error& error) {
    services_.flight.recorder().mark(call->ticket, CallState::failed);
    if (is_refusal(error.status()) && !communicator_->error()) {
      pending_.pop_back();
      throw;
    }
    fail(lock, call.get(), error.status(), error.what());
    throw_if_failed(lock);
  }
}

void Channel::issue(PendingCall& call) {
  if (call.ready != nullptr && call.ready->device() != services_.device) {
    bridge::wait_for_device(*stream_, std::exchange(call.ready, nullptr));
  } else if (call.ready != nullptr) {
    call.ready->make_wait(*stream_);
  }
  call.start = take_event();
  call.start->record(*stream_);
  call.issue(*communicator_, *stream_);
  call.end = take_event();
  call.end->record(*stream_);
  call.issue = nullptr;
  call.since = Clock::now();
  call.stage = PendingCall::Stage::issued;
}

void Channel::wait_until_issued(Lock& lock, PendingCall& call) {
  changed_.wait(lock, [&] { return call.stage != PendingCall::Stage::waiting; });
  throw_if_failed(call);
}

void Channel::order_after(PendingCall& call, const Stream& current) {
  Lock lock(mutex_);
  wait_until_issued(lock, call);
  if (call.stage == PendingCall::Stage::done) return;
  call.end->make_wait(current);
  if (call.from == current.native()) call.keep.reset();
}

// Event::synchronize, ended by the plugin's own timeout or the watchdog's abort.
void Channel::wait_for_event(const Event& event) {
  if (keeps_time_ || services_.device.platform().capability(CONCORD_CAP_COMM_ABORT) != 0) return event.synchronize();
  for (std::chrono::microseconds pause{20}; !event.done();
       pause = std::min(pause * 2, std::chrono::microseconds(2000))) {
    std::this_thread::sleep_for(pause);
    const std::lock_guard lock(mutex_);
    if (state_ == State::failed) return;
  }
}

void Channel::wait(PendingCall& call) {
  const CommunicationTime::HostWait measured(services_.time.get());
  Lock lock(mutex_);
  wait_until_issued(lock, call);
  if (call.stage == PendingCall::Stage::issued) {
    const std::shared_ptr<Event> end = call.end;
    lock.unlock();
    std::optional<Error> trouble;
    try {
      wait_for_event(*end);
    } catch (const Error& error) {
      trouble = error;
    }
    lock.lock();
    if (trouble) fail(lock, &call, trouble->status(), trouble->what());
    settle(lock);
  }
  throw_if_failed(call);
}

bool Channel::done(PendingCall& call) {
  Lock lock(mutex_);
  settle(lock);
  throw_if_failed(call);
  return call.stage == PendingCall::Stage::done;
}

// --------------------------------------------------------------------------------------------------------- outcomes

void Channel::throw_if_failed(Lock& lock) {
  changed_.wait(lock, [&]() CONCORD_REQUIRES(mutex_) { return state_ != State::failing; });
  if (failure_) throw *failure_;
}

void Channel::throw_if_failed(PendingCall& call) {
  if (call.stage != PendingCall::Stage::failed) return;
  throw call.error ? *call.error : *failure_;
}

void Channel::note_start(PendingCall& call) {
  if (call.started || !call.start->done()) return;
  call.started = true;
  call.since = Clock::now();
  services_.flight.recorder().mark(call.ticket, CallState::started);
}

// Records the duration of |call|, which is done.
void Channel::note_duration(const PendingCall& call) {
  if (!times_calls_) return;
  const std::chrono::duration<double, std::milli> duration(Event::milliseconds_between(*call.start, *call.end));
  services_.time->add_on_device(std::chrono::duration_cast<CommunicationTime::Duration>(duration));
}

// Removes the first call from the list if it is done. False if there is nothing to remove.
bool Channel::settle_front(Lock& lock) {
  const std::shared_ptr<PendingCall> call = pending_.front();
  if (call->stage == PendingCall::Stage::waiting) return false;
  if (call->stage == PendingCall::Stage::failed) {  // rejected
    pending_.pop_front();
    return true;
  }
  // In this order: failures are reported before the event is reached.
  const bool reached = call->end->done();
  if (const auto error = communicator_->error()) {
    fail(lock, call.get(), error->status, error->detail);
    return false;
  }
  if (!reached) {
    note_start(*call);
    if (Clock::now() - call->since > limit_) {
      fail(lock, call.get(), CONCORD_STATUS_TIMEOUT,
           fmt::format("not finished after {} ms",
                       std::chrono::duration_cast<std::chrono::milliseconds>(limit_).count()));
    }
    return false;
  }
  note_duration(*call);
  call->stage = PendingCall::Stage::done;
  call->keep.reset();
  services_.flight.recorder().mark(call->ticket, CallState::done);
  for (std::shared_ptr<Event>* event : {&call->ready, &call->start, &call->end}) give_back(*event);
  pending_.pop_front();
  return true;
}

void Channel::settle(Lock& lock) {
  changed_.wait(lock, [&]() CONCORD_REQUIRES(mutex_) { return state_ != State::failing; });
  if (state_ != State::ready) return;
  try {
    while (!pending_.empty() && settle_front(lock)) {
    }
  } catch (const Error& error) {  // the device itself has failed
    fail(lock, pending_.front().get(), error.status(), error.what());
  }
}

// The first failure counts; a later one waits until that one has been reported.
void Channel::fail(Lock& lock, const PendingCall* call, concord_status status, const std::string& detail)
    CONCORD_NO_THREAD_SAFETY_ANALYSIS {  // releases the caller's lock in between
  if (state_ == State::failing || state_ == State::failed) {
    changed_.wait(lock, [&]() CONCORD_REQUIRES(mutex_) { return state_ == State::failed; });
    return;
  }
  const bool was_ready = state_ == State::ready;
  state_ = State::failing;
  const PendingCall* first = call == nullptr && !pending_.empty() ? pending_.front().get() : call;
  const std::string shown = first != nullptr && !first->signature.group.empty() ? first->signature.group : name_;
  const FlightService::Group group{name_, shown, ranks_, call != nullptr && is_p2p(call->signature)};
  std::string what = fmt::format("group {} (ranks {}): ", shown, ranks_.to_string());
  if (call != nullptr) {
    what += fmt::format("{} (call {}) failed: ", call->signature.to_string(), call->sequence);
    services_.flight.recorder().mark(call->ticket, CallState::failed);
  }
  what += detail;
  lock.unlock();
  const std::string message = services_.flight.report(group, what);
  if (was_ready && status == CONCORD_STATUS_TIMEOUT &&
      services_.device.platform().capability(CONCORD_CAP_COMM_ABORT) != 0) {
    services_.device.platform().call_or_log<&concord_comm_table::abort>(communicator_->native());
  }
  lock.lock();
  failure_.emplace(status, message);
  state_ = State::failed;
  for (const std::shared_ptr<PendingCall>& each : pending_) each->stage = PendingCall::Stage::failed;
  changed_.notify_all();
}

// The watchdog's check. Logs a failure found here, because no caller may ever ask for it.
void Channel::tick() noexcept {
  try {
    Lock lock(mutex_, std::try_to_lock);
    if (!lock.owns_lock()) return look_from_outside();
    unreachable_since_.reset();
    if (state_ != State::creating && state_ != State::ready) return;
    if (state_ == State::creating) look_at_creation(lock);
    settle(lock);
    if (state_ == State::failed) loader::log(CONCORD_LOG_ERROR, "core", failure_->what());
  } catch (const std::exception&) {  // thrown again by the next call
  }
}

// A plugin that creates a communicator may wait until the timeout for a rank that has exited after joining.
void Channel::look_at_creation(Lock& lock) CONCORD_NO_THREAD_SAFETY_ANALYSIS {  // releases the caller's lock in between
  if (Clock::now() < next_look_at_creation_) return;
  next_look_at_creation_ = Clock::now() + kCreationLook;
  lock.unlock();
  std::optional<Error> trouble;
  try {
    Peers& peers = services_.flight.peers();
    if (const std::optional<int64_t> lost = peers.lost_since(store_prefix(), ranks_, index_)) {
      peers.blame(*lost);
      trouble.emplace(CONCORD_STATUS_PEER_LOST, fmt::format("it needs {}", peers.describe(*lost)));
    }
  } catch (const Error& error) {
    trouble = error;
  }
  lock.lock();
  if (trouble && state_ == State::creating)
    fail(lock, nullptr, trouble->status(), fmt::format("the communicator could not be created: {}", trouble->what()));
}

// Called while another thread is inside the channel. If it stays longer than any call may take, it is stuck in the
// vendor's library behind a call that does not finish (a full launch queue blocks). Aborting releases it, and it then
// detects the failure itself.
void Channel::look_from_outside() {
  const Clock::time_point now = Clock::now();
  if (!unreachable_since_) unreachable_since_ = now;
  if (now - *unreachable_since_ < limit_ || !opened_ ||
      services_.device.platform().capability(CONCORD_CAP_COMM_ABORT) == 0) {
    return;
  }
  unreachable_since_.reset();
  services_.device.platform().call_or_log<&concord_comm_table::abort>(communicator_->native());
}

std::shared_ptr<Event> Channel::take_event() {
  if (spare_events_.empty())
    return std::make_shared<Event>(services_.device, times_calls_ ? Timing::kOn : Timing::kOff);
  std::shared_ptr<Event> event = std::move(spare_events_.back());
  spare_events_.pop_back();
  return event;
}

// An event that is still being waited for is not reused.
void Channel::give_back(std::shared_ptr<Event>& event) {
  constexpr size_t kSpare = 64;
  if (event != nullptr && event.use_count() == 1 && spare_events_.size() < kSpare)
    spare_events_.push_back(std::move(event));
  event.reset();
}

}  // namespace concord
