#include "backends/cuda/nccl/communicator.h"

#include <algorithm>
#include <thread>

#include "backends/cuda/status.h"

namespace concord::cuda {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

// How long a caller waits for NCCL to release a communicator. NCCL waits for the peers on this machine to release
// theirs, which the contract does not require; after a failure it waits for kernels to leave the device.
constexpr Clock::duration kOrderlyGrace = seconds(2);
constexpr Clock::duration kFailedGrace = seconds(5);
// How long an abort waits for a thread that is inside an operation to come out of it.
constexpr Clock::duration kLeaveGrace = seconds(10);

const concord_stream kNoStream = reinterpret_cast<concord_stream>(~uintptr_t{0});

ncclConfig_t nccl_config(bool blocking) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = blocking ? 1 : 0;
  config.splitShare = 0;  // an abort of one must not reach the other
  return config;
}

std::string name_rank(const std::string& name, int32_t rank, int32_t size) {
  return sdk::text("communicator '%s', rank %d of %d", name.c_str(), rank, size);
}

long long to_ms(Clock::duration duration) { return std::chrono::duration_cast<milliseconds>(duration).count(); }

}  // namespace

// ---------------------------------------------------------------------------------------------------- joining, ending

void Communicator::end(const std::shared_ptr<Link>& link, bool in_order, Clock::duration grace) {
  std::thread([link, in_order] {
    if (in_order) {
      link->nccl.ncclCommDestroy(link->handle);
    } else {
      const auto inside = [&] { return link->calls.load(std::memory_order_seq_cst) % 2 != 0; };
      if (inside() && link->nccl.ncclCommRevoke != nullptr) {
        // Abort frees what the thread inside still uses; revoke only makes it return. Older versions have abort
        // alone.
        link->nccl.ncclCommRevoke(link->handle, 0);
        for (const auto limit = Clock::now() + kLeaveGrace; inside() && Clock::now() < limit;) {
          std::this_thread::sleep_for(milliseconds(1));
        }
      }
      link->nccl.ncclCommAbort(link->handle);
    }
    const std::lock_guard lock(link->mutex);
    link->ended = true;
    link->changed.notify_all();
  }).detach();
  std::unique_lock lock(link->mutex);
  link->changed.wait_for(lock, grace, [&] { return link->ended; });
}

void Communicator::await(const std::shared_ptr<Link>& link, ncclResult_t result, const char* call,
                         Clock::time_point deadline, const std::string& who) {
  const Nccl& nccl = link->nccl;
  const auto give_up = [&](concord_status status, const std::string& reason) {
    if (link->handle != nullptr) end(link, false, kFailedGrace);
    sdk::fail(status, who + ": " + reason);
  };
  while (true) {
    ncclResult_t state = result;
    if (result == ncclSuccess || result == ncclInProgress) {
      const ncclResult_t asked = nccl.ncclCommGetAsyncError(link->handle, &state);
      if (asked != ncclSuccess) state = asked;
    }
    if (state == ncclSuccess) return;
    if (state != ncclInProgress) give_up(status_of(state), describe(nccl, state, call, link->handle));
    if (Clock::now() > deadline) {
      give_up(CONCORD_STATUS_TIMEOUT,
              sdk::text("not all ranks reached %s in time; are their processes alive, do they have the "
                        "same unique id, and can they reach this machine (NCCL_SOCKET_IFNAME)?",
                        call));
    }
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
}

ncclComm_t Communicator::meet(const Nccl& nccl, int32_t world, int32_t rank, const ncclUniqueId& id,
                              const sdk::CommConfig& config) {
  const auto deadline = Clock::now() + milliseconds(config.timeout_ms);
  const std::string who = name_rank(config.name, rank, world);
  const auto meeting = std::make_shared<Link>(nccl, nullptr);
  ncclConfig_t first = nccl_config(world == 1);  // one rank waits for no peer
  const ncclResult_t met = nccl.ncclCommInitRankConfig(&meeting->handle, world, id, rank, &first);
  await(meeting, met, "ncclCommInitRankConfig", deadline, who);
  if (world == 1) return meeting->handle;
  ncclConfig_t blocking = nccl_config(true);
  const ncclResult_t split = nccl.ncclCommSplit(meeting->handle, 0, rank, &meeting->child, &blocking);
  await(meeting, split, "ncclCommSplit", deadline, who);
  end(meeting, false, kOrderlyGrace);  // aborted, not destroyed: a destroy would wait for the peers on this machine
  return meeting->child;
}

std::unique_ptr<Communicator> Communicator::join(const Nccl& nccl, int32_t device, int32_t world, int32_t rank,
                                                 const ncclUniqueId& id, const sdk::CommConfig& config) {
  const DeviceGuard here(device);
  ncclComm_t handle = meet(nccl, world, rank, id, config);
  return std::unique_ptr<Communicator>(new Communicator(nccl, device, world, rank, handle, config));
}

std::unique_ptr<Communicator> Communicator::split(const int32_t* ranks, int32_t count, const sdk::CommConfig& config) {
  sdk::check_split(ranks, count, rank_, size_);
  // Lists are disjoint, so their first ranks distinguish them; the place in the list is the order.
  const int color = count > 0 ? ranks[0] : NCCL_SPLIT_NOCOLOR;
  const auto key = static_cast<int32_t>(std::find(ranks, ranks + count, rank_) - ranks);
  ncclConfig_t blocking = nccl_config(true);
  {
    Inside inside(*this);
    link_->child = nullptr;
    finish("ncclCommSplit", nccl_.ncclCommSplit(handle(), color, key, &link_->child, &blocking));
  }
  if (count == 0) return nullptr;
  return std::unique_ptr<Communicator>(new Communicator(nccl_, device_, count, key, link_->child, config));
}

Communicator::Communicator(const Nccl& nccl, int32_t device, int32_t size, int32_t rank, ncclComm_t handle,
                           const sdk::CommConfig& config)
    : nccl_(nccl),
      device_(device),
      size_(size),
      rank_(rank),
      who_(name_rank(config.name, rank, size)),
      timeout_(milliseconds(config.timeout_ms)),
      link_(std::make_shared<Link>(nccl, handle)),
      last_stream_(kNoStream) {}

void Communicator::drain() noexcept try {
  cudaEvent_t event = nullptr;
  {
    const std::lock_guard lock(marks_mutex_);
    mark_what_is_queued(Clock::now());
    if (failed() || marks_.empty()) return;
    event = marks_.back().event;
  }
  // The guard still ticks: it may recycle the event, but only once it was reached, and it ends what does not end.
  cudaEventSynchronize(event);
} catch (const std::exception& error) {
  sdk::log(CONCORD_LOG_WARN, who_ + ": could not wait for its operations: " + error.what());
}

Communicator::~Communicator() {
  if (failed()) {
    std::unique_lock lock(link_->mutex);
    link_->changed.wait_for(lock, kFailedGrace, [&] { return link_->ended; });
    failures_.fetch_sub(1, std::memory_order_release);
  } else {
    end(link_, true, kOrderlyGrace);
  }
  for (const Mark& mark : marks_) cudaEventDestroy(mark.event);
  for (cudaEvent_t event : spare_events_) cudaEventDestroy(event);
}

// --------------------------------------------------------------------------------------------------------- operations

Communicator::Inside::Inside(Communicator& communicator) : link_(*communicator.link_) {
  // Both sequentially consistent: either this sees the failure, or the thread that ends the communicator sees this one
  // inside.
  link_.calls.fetch_add(1, std::memory_order_seq_cst);
  if (communicator.failed_.load(std::memory_order_seq_cst)) {
    link_.calls.fetch_add(1, std::memory_order_seq_cst);
    communicator.throw_failure();
  }
}

Communicator::Inside::~Inside() { link_.calls.fetch_add(1, std::memory_order_seq_cst); }

void Communicator::check() {
  if (failed()) throw_failure();
}

void Communicator::finish(const char* call, ncclResult_t result) {
  while (result == ncclInProgress && !failed()) {  // only if NCCL_COMM_BLOCKING=0 overrides the configuration
    std::this_thread::sleep_for(std::chrono::microseconds(20));
    ncclResult_t state = ncclInProgress;
    const ncclResult_t asked = nccl_.ncclCommGetAsyncError(handle(), &state);
    result = asked == ncclSuccess ? state : asked;
  }
  check();
  if (result == ncclSuccess) return;
  std::string detail = who_ + ": " + describe(nccl_, result, call, handle());
  if (status_of(result) == CONCORD_STATUS_INVALID_ARGUMENT)
    sdk::invalid(std::move(detail));  // an invalid call does not break the communicator
  const std::lock_guard lock(mutex_);
  fail(status_of(result), std::move(detail));
  sdk::fail(failure_, failure_detail_);
}

void Communicator::note(concord_stream stream) {
  if (last_stream_.load(std::memory_order_relaxed) != stream) {
    const std::lock_guard lock(mutex_);
    last_stream_.store(stream, std::memory_order_relaxed);
    if (std::find(streams_.begin(), streams_.end(), stream) == streams_.end()) streams_.push_back(stream);
  }
  queued_.fetch_add(1, std::memory_order_release);
}

// ----------------------------------------------------------------------------------------------------------- failures

void Communicator::throw_failure() {
  const std::lock_guard lock(mutex_);
  sdk::fail(failure_, failure_detail_);
}

void Communicator::fail(concord_status status, std::string detail) {
  if (failed()) return;
  failure_ = status;
  failure_detail_ = std::move(detail);
  failures_.fetch_add(1, std::memory_order_release);
  failed_.store(true, std::memory_order_seq_cst);
  end(link_, false, Clock::duration::zero());
}

void Communicator::abort() {
  const std::lock_guard lock(mutex_);
  fail(CONCORD_STATUS_ABORTED, who_ + ": aborted by this rank");
}

concord_status Communicator::error(std::string* out_detail) {
  const std::lock_guard lock(mutex_);
  if (!failed()) look_at_nccl(Clock::now());
  *out_detail = failure_detail_;
  return failure_;
}

void Communicator::look_at_nccl(Clock::time_point now) {
  ncclResult_t state = ncclSuccess;
  const ncclResult_t asked = nccl_.ncclCommGetAsyncError(handle(), &state);
  if (asked != ncclSuccess) state = asked;
  if (state == ncclSuccess || state == ncclInProgress) return;
  std::string detail = who_ + ": " + describe(nccl_, state, "an operation queued earlier", handle());
  if (status_of(state) != CONCORD_STATUS_PEER_LOST) return fail(status_of(state), std::move(detail));
  // A peer that waits for the same silent rank gives up at about the same time and closes its connections. That is not
  // a lost peer: it is our own timeout, seen a moment early.
  if (overdue(now, timeout_ / 8)) {
    return fail(CONCORD_STATUS_TIMEOUT, detail + "; a peer gave up waiting at the end of the timeout");
  }
  fail(CONCORD_STATUS_PEER_LOST, detail + "; a peer's process has exited, or it has aborted the communicator");
}

void Communicator::report(concord_stream stream) {
  const std::lock_guard lock(mutex_);
  if (!failed()) return;
  const auto found = std::find(streams_.begin(), streams_.end(), stream);
  if (found == streams_.end()) return;
  streams_.erase(found);
  sdk::fail(failure_, failure_detail_);
}

void Communicator::forget(concord_stream stream) {
  {
    const std::lock_guard lock(mutex_);
    std::erase(streams_, stream);
  }
  const std::lock_guard lock(marks_mutex_);  // afterwards no tick touches the stream
  if (last_stream_.load(std::memory_order_relaxed) != stream) return;
  mark_what_is_queued(Clock::now());
  last_stream_.store(kNoStream, std::memory_order_relaxed);
}

// -------------------------------------------------------------------------------------------------------- the guard's

void Communicator::tick(Clock::time_point now) noexcept {
  try {
    {
      const std::lock_guard lock(mutex_);
      if (!failed()) look_at_nccl(now);
      if (failed()) return;
    }
    {
      const std::lock_guard lock(marks_mutex_);
      pass_marks(now);
      mark_what_is_queued(now);
    }
    watch(now);
  } catch (const std::exception& error) {
    sdk::log(CONCORD_LOG_WARN, who_ + ": the guard could not check it: " + error.what());
  }
}

void Communicator::watch(Clock::time_point now) noexcept {
  try {
    const std::lock_guard lock(mutex_);
    if (failed() || !overdue(now, Clock::duration::zero())) return;
    fail(CONCORD_STATUS_TIMEOUT,
         sdk::text("%s: an operation made no progress for %lld ms; the other ranks have not reached "
                   "it, or are themselves waiting for something",
                   who_.c_str(), to_ms(timeout_)));
  } catch (const std::exception& error) {
    sdk::log(CONCORD_LOG_WARN, who_ + ": the guard could not abort it: " + error.what());
  }
}

void Communicator::mark_what_is_queued(Clock::time_point now) {
  const uint64_t queued = queued_.load(std::memory_order_acquire);
  const concord_stream stream = last_stream_.load(std::memory_order_relaxed);
  if (queued == marked_ || stream == kNoStream || failed()) return;
  if (marks_.empty()) waiting_since_ = now;  // before the calls: they may not come back
  const cudaError_t error = record_mark(stream, now);
  if (error != cudaSuccess) cudaGetLastError();  // a broken context: waiting on the streams reports it
  if (error != cudaErrorStreamCaptureUnsupported) marked_ = queued;  // else next time: nothing runs yet
  if (marks_.empty()) waiting_since_ = kNever;
}

// Adds a mark at the end of |stream|, unless it is capturing.
cudaError_t Communicator::record_mark(concord_stream stream, Clock::time_point now) {
  const DeviceGuard here(device_);
  cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
  cudaError_t error = cudaStreamIsCapturing(vendor(stream), &capture);
  if (error != cudaSuccess) return error;
  if (capture != cudaStreamCaptureStatusNone) return cudaErrorStreamCaptureUnsupported;
  if (spare_events_.empty()) {
    cudaEvent_t made = nullptr;
    error = cudaEventCreateWithFlags(&made, cudaEventDisableTiming);
    if (error != cudaSuccess) return error;
    spare_events_.push_back(made);
  }
  error = cudaEventRecord(spare_events_.back(), vendor(stream));
  if (error != cudaSuccess) return error;
  marks_.push_back({spare_events_.back(), now});
  spare_events_.pop_back();
  return cudaSuccess;
}

void Communicator::pass_marks(Clock::time_point now) {
  while (!marks_.empty()) {
    const cudaError_t error = cudaEventQuery(marks_.front().event);
    if (error != cudaSuccess) cudaGetLastError();
    if (error == cudaErrorNotReady) return;
    spare_events_.push_back(marks_.front().event);
    marks_.pop_front();
    progress_ = now;
    waiting_since_ = marks_.empty() ? kNever : marks_.front().recorded;
  }
}

bool Communicator::overdue(Clock::time_point now, Clock::duration slack) {
  const auto too_long_since = [&](Clock::time_point start) {
    return now - std::max(start, progress_.load()) > timeout_ - slack;
  };
  const Clock::time_point waiting_since = waiting_since_;
  if (waiting_since != kNever && too_long_since(waiting_since)) return true;
  const uint64_t call = link_->calls.load(std::memory_order_acquire);
  if (call % 2 == 0) return false;
  if (call != seen_call_) {
    seen_call_ = call;
    seen_call_at_ = now;
  }
  return too_long_since(seen_call_at_);
}

}  // namespace concord::cuda
