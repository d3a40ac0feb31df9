#include "backends/shm/team.h"

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdio>
#include <ctime>

#include "platform/sdk/plugin.hpp"

namespace concord::shm {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr milliseconds kLookAround{100};
constexpr milliseconds kNap{2};          // between calls of "meanwhile"
constexpr milliseconds kTextGrace{200};  // how long a reader waits for the text that follows a verdict

// Rounds of spinning (about 10 ns each) before a rank lets others run, and how often it does so before it sleeps. With
// more ranks than processors a spinning rank only keeps the awaited one from running; and even with enough of them two
// ranks may share a processor for a while, so no rank spins for long.
constexpr int kSpins = 200;
constexpr int kYields = 200;
constexpr int kSpinsWhenCrowded = 10;
constexpr int kYieldsWhenCrowded = 20;

// Whether the ranks outnumber the processors that they may run on together.
bool crowded(const Segment& segment, int32_t world) {
  ProcessorSet together;
  for (int32_t r = 0; r < world; ++r) together |= segment.member(r).processors;
  return together.count() < static_cast<size_t>(world);
}

// The futex words are shared between processes, so none of the "private" variants.
void futex_wait(std::atomic<uint32_t>& word, uint32_t expected, milliseconds at_most) {
  const auto count = at_most.count();
  const timespec limit{static_cast<time_t>(count / 1000), static_cast<long>(count % 1000) * 1000000};
  ::syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAIT, expected, &limit, nullptr, 0);
}

void futex_wake(std::atomic<uint32_t>& word) {
  ::syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

uint64_t make_verdict(concord_status status, int32_t rank) {
  return static_cast<uint64_t>(static_cast<uint32_t>(rank)) << 32 | static_cast<uint32_t>(status);
}

class AllArrived final : public Awaited {
 public:
  AllArrived(const Segment& segment, int32_t world, uint64_t step) : Awaited(step), segment_(segment), world_(world) {}

  bool ready() override {
    for (; next_ < world_; ++next_) {
      if (!arrived(next_)) return false;
    }
    return true;
  }
  bool awaits(int32_t rank) const override { return !arrived(rank); }

 private:
  bool arrived(int32_t rank) const { return segment_.progress(rank).step.load() >= wish(); }

  const Segment& segment_;
  const int32_t world_;
  int32_t next_ = 0;
};

}  // namespace

Team::Team(std::shared_ptr<Segment> segment, int32_t rank, std::string name, milliseconds timeout,
           std::vector<int32_t> numbers)
    : segment_(std::move(segment)),
      rank_(rank),
      world_(segment_->geometry().world),
      name_(std::move(name)),
      timeout_(timeout),
      numbers_(std::move(numbers)),
      owner_(::getpid()),
      spins_(crowded(*segment_, world_) ? kSpinsWhenCrowded : kSpins),
      yields_(crowded(*segment_, world_) ? kYieldsWhenCrowded : kYields) {}

Team::~Team() {
  if (::getpid() == owner_) segment_->bedside(rank_).departed.store(1);
}

void Team::begin(const Call& call) {
  throw_if_failed();
  current_ = shown(call);
  segment_->bedside(rank_).activity.store(current_.head(), std::memory_order_relaxed);
}

void Team::end() { segment_->bedside(rank_).activity.store(0, std::memory_order_relaxed); }

// ------------------------------------------------------------------------------------------------------------- waiting
//
// The rank that publishes and the one that goes to sleep race against each other. Both sides write first and read
// second, and all four accesses are sequentially consistent: either the sleeper sees the news or the publisher sees the
// sleeper.

void Team::publish(uint64_t step) {
  segment_->progress(rank_).step.store(step);
  for (int32_t peer = 0; peer < world_; ++peer) {
    if (peer == rank_) continue;
    const uint64_t wish = segment_->bedside(peer).wish.load();
    // Only the last of the awaited ranks rings: a rank that is woken too early would go back to sleep.
    if (wish != 0 && wish <= step && all_have_reached(wish)) ring(peer);
  }
}

void Team::wait_for_all(uint64_t step) {
  AllArrived all(*segment_, world_, step);
  wait(all);
}

void Team::ring_for_news(int32_t peer) {
  if (segment_->bedside(peer).wish.load() == kAnyNews) ring(peer);
}

bool Team::all_have_reached(uint64_t step) const {
  for (int32_t r = 0; r < world_; ++r) {
    if (segment_->progress(r).step.load() < step) return false;
  }
  return true;
}

void Team::ring(int32_t rank) const {
  Bedside& bedside = segment_->bedside(rank);
  bedside.doorbell.fetch_add(1);
  futex_wake(bedside.doorbell);
}

void Team::wait_slowly(Awaited& awaited) {
  for (int i = 0; i < yields_; ++i) {
    if (awaited.ready()) return;
    throw_if_failed();
    if (!yielding_.yield()) break;
  }
  const auto start = Clock::now();
  auto look_at = start + kLookAround;
  while (true) {
    const auto left = std::chrono::ceil<milliseconds>(timeout_ - (Clock::now() - start));
    if (meanwhile_ != nullptr) meanwhile_();
    sleep(awaited, std::clamp(left, milliseconds{1}, meanwhile_ != nullptr ? kNap : kLookAround));
    if (awaited.ready()) return;
    throw_if_failed();
    const auto now = Clock::now();
    if (now >= look_at) {
      if (look_for_lost(awaited)) return;
      look_at = now + kLookAround;
    }
    if (now - start >= timeout_) {
      if (awaited.ready()) return;  // this rank itself may have been stopped for long
      time_out(awaited, std::chrono::duration_cast<milliseconds>(now - start));
    }
  }
}

void Team::wait(Awaited& awaited, const std::function<void()>& meanwhile) {
  const auto start = Clock::now();
  auto look_at = start + kLookAround;
  while (!awaited.ready()) {
    throw_if_failed();
    meanwhile();
    const auto now = Clock::now();
    if (now < look_at) continue;
    if (look_for_lost(awaited) || awaited.ready()) return;
    look_at = now + kLookAround;
    if (now - start >= timeout_) time_out(awaited, std::chrono::duration_cast<milliseconds>(now - start));
  }
}

void Team::sleep(Awaited& awaited, milliseconds at_most) {
  Bedside& mine = segment_->bedside(rank_);
  mine.wish.store(awaited.wish());
  const uint32_t bell = mine.doorbell.load();
  if (!awaited.ready() && !failed()) futex_wait(mine.doorbell, bell, at_most);
  mine.wish.store(0, std::memory_order_relaxed);
}

bool Team::look_for_lost(Awaited& awaited) {
  for (int32_t r = 0; r < world_; ++r) {
    if (r == rank_ || !awaited.awaits(r)) continue;
    const ProcessIdentity& process = segment_->member(r).process;
    if (state_of(process) != ProcessState::kEnded) continue;
    // All that it ever wrote is visible now: it may have arrived just before its end.
    if (awaited.ready()) return true;
    throw_if_failed();
    if (!awaited.awaits(r)) continue;
    fail(CONCORD_STATUS_PEER_LOST,
         sdk::text("rank %d (pid %lld) of communicator '%s' has ended; rank %d was waiting for it in %s", number(r),
                   static_cast<long long>(process.pid), name_.c_str(), number(rank_), describe(current_).c_str()));
  }
  return false;
}

std::string Team::whereabouts(int32_t rank) const {
  const Bedside& bedside = segment_->bedside(rank);
  const uint64_t activity = bedside.activity.load(std::memory_order_relaxed);
  std::string doing = "is not in an operation";
  if (bedside.departed.load() != 0) {
    doing = "has destroyed its communicator";
  } else if (activity != 0) {
    Call call = Call::unpack(activity, 0);
    call.dtype = 0;  // the count is not part of it
    doing = "is in " + describe(call);
  }
  return sdk::text("rank %d (%s; it %s)", number(rank), describe(segment_->member(rank).process).c_str(),
                   doing.c_str());
}

void Team::time_out(const Awaited& awaited, milliseconds waited) {
  std::string missing;
  for (int32_t r = 0; r < world_; ++r) {
    if (r == rank_ || !awaited.awaits(r)) continue;
    if (!missing.empty()) missing += ", ";
    missing += whereabouts(r);
    if (missing.size() > 600) {
      missing += ", ...";
      break;
    }
  }
  fail(CONCORD_STATUS_TIMEOUT,
       sdk::text("rank %d of communicator '%s' has waited %lld ms in %s for %s", number(rank_), name_.c_str(),
                 static_cast<long long>(waited.count()), describe(current_).c_str(), missing.c_str()));
}

// ------------------------------------------------------------------------------------------------------------ failures

void Team::record(concord_status status, const std::string& detail) noexcept {
  FailureRecord& failure = segment_->failure();
  uint64_t none = 0;
  if (failure.verdict.compare_exchange_strong(none, make_verdict(status, rank_))) {
    std::snprintf(failure.text, sizeof failure.text, "%s", detail.c_str());
    failure.text_ready.store(1);
  }
  for (int32_t r = 0; r < world_; ++r) ring(r);
}

void Team::fail(concord_status status, const std::string& detail) {
  record(status, detail);
  throw_if_failed();
  std::abort();  // not reached: there is a record now
}

bool Team::failed() const { return segment_->failure().verdict.load() != 0; }

void Team::throw_if_failed() const {
  if (!failed()) return;
  std::string detail;
  const concord_status status = error(&detail);
  sdk::fail(status, detail);
}

void Team::abort() noexcept {
  try {
    record(CONCORD_STATUS_ABORTED, sdk::text("communicator '%s' was aborted by rank %d (pid %lld)", name_.c_str(),
                                             number(rank_), static_cast<long long>(::getpid())));
  } catch (...) {  // no memory for the message
    record(CONCORD_STATUS_ABORTED, std::string());
  }
}

concord_status Team::error(std::string* out_detail) const {
  const FailureRecord& failure = segment_->failure();
  const uint64_t verdict = failure.verdict.load();
  if (verdict == 0) return CONCORD_STATUS_OK;
  const auto status = static_cast<concord_status>(static_cast<uint32_t>(verdict));
  if (out_detail == nullptr) return status;
  const auto give_up = Clock::now() + kTextGrace;  // its rank may have been killed before the text
  while (failure.text_ready.load() == 0 && Clock::now() < give_up) ::sched_yield();
  if (failure.text_ready.load() != 0) {
    *out_detail = failure.text;
  } else {
    *out_detail = sdk::text("communicator '%s' has failed: rank %d saw status %d", name_.c_str(),
                            number(static_cast<int32_t>(verdict >> 32)), status);
  }
  return status;
}

}  // namespace concord::shm
