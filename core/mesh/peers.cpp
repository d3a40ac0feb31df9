#include "core/mesh/peers.h"

#include <fmt/core.h>
#include <fmt/ranges.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <sstream>
#include <thread>

#include "core/base/process_list.h"
#include "platform/loader/error.h"

namespace concord {
namespace {

using Clock = std::chrono::steady_clock;

constexpr Peers::Milliseconds kLookEvery{250};  // interval at which a waiting rank checks whether the others still run
constexpr std::chrono::seconds kForTheBlamed{3};
constexpr const char* kDone = "done";
constexpr int64_t kLookedAt = 1024;  // ranks that one rank checks
constexpr size_t kMissingNamed = 8;  // more missing ranks than this are not listed

std::string process_key(int64_t rank) { return fmt::format("peers/{}", rank); }
std::string left_key(int64_t rank) { return fmt::format("peers/left/{}", rank); }
std::string came_key(const std::string& key, int64_t index) { return fmt::format("{}joined/{}", key, index); }
std::string count_key(const std::string& key) { return key + "count"; }
std::string complete_key(const std::string& key) { return key + "complete"; }
std::string lost_key(const std::string& key) { return key + "lost"; }

// Like Store::wait, but returns false on a timeout.
bool comes(Store& store, const std::string& key, Peers::Milliseconds timeout) {
  try {
    store.wait({&key, 1}, timeout);
    return true;
  } catch (const Error& error) {
    if (error.status() != CONCORD_STATUS_TIMEOUT) throw;
    return false;
  }
}

Peers::Milliseconds time_left(Clock::time_point deadline) {
  return std::max(Peers::Milliseconds(0), std::chrono::duration_cast<Peers::Milliseconds>(deadline - Clock::now()));
}

std::string this_place() {
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  struct stat status{};
  const bool known = !boot.empty() && ::stat("/proc/self/ns/pid", &status) == 0;
  return known ? fmt::format("{}/{}", boot, status.st_ino) : "";
}

}  // namespace

Peers::Peers(std::shared_ptr<Store> store, int64_t rank) : store_(std::move(store)), rank_(rank), own_(this_process()) {
  store_->set(process_key(rank_), fmt::format("{} {} {}", own_.place, own_.pid, own_.start_time));
}

Peers::Process Peers::this_process() {
  Process self{this_place(), ::getpid(), 0};
  ProcessEntry entry;
  if (parse_process_stat(read_process_file(self.pid, "stat"), &entry)) self.start_time = entry.start_time;
  return self;
}

std::optional<Peers::Process> Peers::parse(const std::string& text) {
  std::istringstream words(text);
  Process process;
  if (!(words >> process.place >> process.pid >> process.start_time) || process.pid <= 0) return std::nullopt;
  return process;
}

std::optional<Peers::Process> Peers::find(int64_t rank) {
  {
    const std::lock_guard lock(mutex_);
    const auto known = known_.find(rank);
    if (known != known_.end()) return known->second;
  }
  if (!store_->has(process_key(rank))) return std::nullopt;
  const std::optional<Process> process = parse(store_->get(process_key(rank), kLookEvery));
  const std::lock_guard lock(mutex_);
  if (process) known_.emplace(rank, *process);
  return process;
}

void Peers::await_process(int64_t rank, Milliseconds timeout) {
  const std::optional<Process> process = parse(store_->get(process_key(rank), timeout));
  const std::lock_guard lock(mutex_);
  if (process) known_.emplace(rank, *process);
}

// A process whose first thread has exited while others run looks like a zombie, but is running.
Peers::State Peers::look(const Process& process) const {
  if (own_.place.empty() || process.place != own_.place || own_.start_time == 0) return State::unknown;
  ProcessEntry entry;
  if (!parse_process_stat(read_process_file(process.pid, "stat"), &entry)) {
    return read_process_file(own_.pid, "stat").empty() ? State::unknown : State::ended;
  }
  if (entry.start_time != process.start_time || entry.state == 'X') return State::ended;
  if (entry.state == 'Z') return entry.threads > 1 ? State::running : State::ended;
  return entry.state == 'T' || entry.state == 't' ? State::stopped : State::running;
}

Peers::State Peers::state(int64_t rank) noexcept {
  try {
    const std::optional<Process> process = find(rank);
    return process ? look(*process) : State::unknown;
  } catch (const std::exception&) {
    return State::unknown;
  }
}

void Peers::leave(LeaveReason how) noexcept {
  try {
    store_->set(left_key(rank_), how == LeaveReason::done ? kDone : "gives up");
  } catch (const std::exception&) {  // waiting ranks see the end of the process, or of the store
  }
}

void Peers::blame(int64_t rank) noexcept {
  state(rank);  // the store may be unreachable at the next request
  to_blame_ = rank;
}

void Peers::wait_for_culprit_exit() noexcept {
  const int64_t other = to_blame_;
  if (other < 0 || other == rank_) return;
  const Clock::time_point deadline = Clock::now() + kForTheBlamed;
  while (state(other) == State::running && Clock::now() < deadline) std::this_thread::sleep_for(Milliseconds(10));
}

Error Peers::lost(int64_t rank, const std::string& message) {
  blame(rank);
  return {CONCORD_STATUS_PEER_LOST, message};
}

bool Peers::is_gone(int64_t rank) { return state(rank) == State::ended || store_->has(left_key(rank)); }

bool Peers::is_lost(int64_t rank) {
  const bool has_ended = state(rank) == State::ended;  // first: it may leave and exit in between
  return store_->has(left_key(rank)) ? store_->get(left_key(rank), kLookEvery) != kDone : has_ended;
}

bool Peers::is_any_lost(int64_t world) {
  for (int64_t rank = 0; rank < std::min(world, kLookedAt); ++rank) {
    if (is_lost(rank)) return true;
  }
  return false;
}

std::string Peers::trouble(int64_t rank) noexcept {
  try {
    const std::optional<Process> process = find(rank);
    const State state = process ? look(*process) : State::unknown;
    if (state == State::stopped) return fmt::format("pid {} is stopped", process->pid);
    if (state == State::ended) return fmt::format("pid {} has ended", process->pid);
    return store_->has(left_key(rank)) ? "it has left the job" : "";
  } catch (const std::exception&) {
    return "";
  }
}

std::string Peers::describe(int64_t rank) noexcept {
  const std::string problem = trouble(rank);
  return problem.empty() ? fmt::format("rank {}", rank) : fmt::format("rank {} ({})", rank, problem);
}

std::string Peers::await(const std::string& key, int64_t rank, Milliseconds timeout) {
  const Clock::time_point deadline = Clock::now() + timeout;
  for (;;) {
    const Milliseconds left = time_left(deadline);
    if (comes(*store_, key, std::min(left, kLookEvery))) return store_->get(key, kLookEvery);
    // It may have set the key just before it exited.
    if (is_gone(rank) && !store_->has(key)) {
      throw lost(rank, fmt::format("{} no longer answers", describe(rank)));
    }
    if (left <= kLookEvery) {
      throw Error(CONCORD_STATUS_TIMEOUT,
                  fmt::format("{} has not answered within {} ms", describe(rank), timeout.count()));
    }
  }
}

void Peers::meet(const std::string& key, const RankGroup& ranks, int64_t index, Milliseconds timeout) {
  const std::string complete = complete_key(key);
  const Clock::time_point deadline = Clock::now() + timeout;
  const Milliseconds glance =
      std::max(kLookEvery, Milliseconds(ranks.size() / 2));  // a large group must not flood the store
  const bool is_last = store_->add(count_key(key), 1) == ranks.size();
  store_->set(came_key(key, index), "1");
  if (is_last) store_->set(complete, "1");
  for (;;) {
    const Milliseconds left = time_left(deadline);
    if (comes(*store_, complete, std::min(left, glance))) return;
    if (store_->add(count_key(key), 0) == ranks.size()) {  // the last one has exited before it could announce it
      store_->set(complete, "1");
      return;
    }
    if (const std::optional<int64_t> missing = find_missing(key, ranks, index)) {
      throw lost(*missing, fmt::format("not joined by {}", describe(*missing)));
    }
    if (left <= glance) {
      throw Error(CONCORD_STATUS_TIMEOUT,
                  fmt::format("not joined by {} within {} ms", not_joined(key, ranks), timeout.count()));
    }
  }
}

// Returns the lost member that another member has detected and announced.
std::optional<int64_t> Peers::known_lost(const std::string& key, const RankGroup& ranks) {
  if (!store_->has(lost_key(key))) return std::nullopt;
  const std::string text = store_->get(lost_key(key), kLookEvery);
  int64_t rank = -1;
  std::from_chars(text.data(), text.data() + text.size(), rank);
  return ranks.index_of(rank) ? std::optional(rank) : std::nullopt;
}

// Each rank checks the following ranks that have not joined, up to the next one that has. Together they cover all
// members, and each checks only a few.
std::optional<int64_t> Peers::find_missing(const std::string& key, const RankGroup& ranks, int64_t index) {
  if (const std::optional<int64_t> known = known_lost(key, ranks)) return known;
  for (int64_t i = 1; i < std::min(ranks.size(), kLookedAt); ++i) {
    const int64_t other = (index + i) % ranks.size();
    if (store_->has(came_key(key, other))) return std::nullopt;
    if (!is_gone(ranks[other]) || store_->has(came_key(key, other)))
      continue;  // it may have joined just before it exited
    store_->set(lost_key(key), fmt::format("{}", ranks[other]));
    return ranks[other];
  }
  return std::nullopt;
}

// Each member checks the next one. Until all have joined, meet() does this.
std::optional<int64_t> Peers::lost_since(const std::string& key, const RankGroup& ranks, int64_t index) {
  if (!store_->has(complete_key(key))) return std::nullopt;
  if (const std::optional<int64_t> known = known_lost(key, ranks)) return known;
  const int64_t next = ranks[(index + 1) % ranks.size()];
  if (!is_lost(next)) return std::nullopt;
  store_->set(lost_key(key), fmt::format("{}", next));
  return next;
}

std::string Peers::not_joined(const std::string& key, const RankGroup& ranks) {
  std::vector<std::string> missing;
  for (int64_t i = 0; i < std::min(ranks.size(), kLookedAt) && missing.size() < kMissingNamed; ++i) {
    if (!store_->has(came_key(key, i))) missing.push_back(describe(ranks[i]));
  }
  return missing.empty() ? "some rank" : fmt::format("{}", fmt::join(missing, ", "));
}

}  // namespace concord
