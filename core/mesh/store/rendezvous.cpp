#include "core/mesh/store/rendezvous.h"

#include <fmt/core.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <functional>
#include <thread>

#include "core/base/quoted.h"
#include "platform/loader/error.h"

namespace concord {
namespace {

using Clock = std::chrono::steady_clock;
using Milliseconds = std::chrono::milliseconds;

constexpr const char* kFault = "rendezvous/fault";
constexpr const char* kSeen = "rendezvous/seen";
constexpr const char* kArrived = "rendezvous/arrived";
constexpr const char* kComplete = "rendezvous/complete";
constexpr const char* kTerms = "rendezvous/terms";
constexpr Milliseconds kGlance{250};  // minimum interval of a waiting rank's checks for errors of others
constexpr Milliseconds kStay{5000};   // minimum time that rank 0 waits for the others to see that error
constexpr size_t kMaxFault = 1000;    // bytes of a message; and of its part about one rank:
constexpr size_t kMaxWords = 200;
constexpr size_t kNamed = 8;  // more missing ranks than this are counted, not listed

std::string claim_key(int64_t rank) { return fmt::format("rendezvous/rank/{}", rank); }
std::string who_key(int64_t rank) { return fmt::format("rendezvous/who/{}", rank); }

Milliseconds left_until(Clock::time_point deadline) {
  return std::max(Milliseconds(0), std::chrono::duration_cast<Milliseconds>(deadline - Clock::now()));
}

// Returns the interval between checks, long enough that all ranks together make about 2,000 checks per second.
Milliseconds glance_of(const Member& member) { return std::max(kGlance, Milliseconds(member.world / 2)); }

// Returns the number of processes that have joined so far. Queries all ranks.
int64_t count_claims(Store& store, int64_t world) {
  int64_t count = 0;
  for (int64_t rank = 0; rank < world; ++rank) {
    if (store.has(claim_key(rank))) count += store.add(claim_key(rank), 0);
  }
  return count;
}

// Ends this rank's rendezvous with an error that all ranks share. Rank 0, which serves the store, waits until the
// others have seen the error as well, including those that have not joined yet.
[[noreturn]] void end_with(Store& store, const Member& member, const std::string& message) {
  store.add(kSeen, 1);
  const Clock::time_point deadline = Clock::now() + std::max(kStay, 4 * glance_of(member));
  const int64_t all = member.rank == 0 ? std::max(member.world, count_claims(store, member.world)) : 0;
  while (member.rank == 0 && store.add(kSeen, 0) < all && Clock::now() < deadline) {
    std::this_thread::sleep_for(Milliseconds(5));
  }
  throw Error(CONCORD_STATUS_INVALID_ARGUMENT, message);
}

[[noreturn]] void raise(Store& store, const Member& member, const std::string& message) {
  store.set(kFault, message);
  end_with(store, member, message);
}

std::string pack(const std::vector<Term>& terms) {
  std::string text;
  for (const Term& term : terms) text += fmt::format("{}={}\n", term.name, term.value);
  return text;
}

std::vector<Term> unpack(const std::string& text) {
  std::vector<Term> terms;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const std::string line = text.substr(begin, end - begin);
    const size_t split = std::min(line.find('='), line.size());
    terms.push_back({line.substr(0, split), line.substr(std::min(split + 1, line.size()))});
    begin = end + 1;
  }
  return terms;
}

void claim_rank(Store& store, const Member& member) {
  if (store.add(claim_key(member.rank), 1) == 1) {
    store.set(who_key(member.rank), member.who);
    return;
  }
  // The first process may not have written its name yet; the message is still useful without it.
  std::string other = "another process";
  try {
    other = one_line(store.get(who_key(member.rank), Milliseconds(1000)), kMaxWords);
  } catch (const Error&) {
  }
  raise(store, member,
        fmt::format("two processes have rank {} of {}: {}, and {}; give every process its own RANK (or "
                    "OMPI_COMM_WORLD_RANK, SLURM_PROCID), or let a launcher do it",
                    member.rank, member.world, other, member.who));
}

// Calls |wait|, which throws TIMEOUT after the given time, until it returns or |deadline| has passed (false), and
// checks in between whether another rank has found an error.
bool wait_for(Store& store, const Member& member, Clock::time_point deadline,
              const std::function<void(Milliseconds)>& wait) {
  const Milliseconds glance = glance_of(member);
  for (;;) {
    const Milliseconds left = left_until(deadline);
    try {
      wait(std::min(left, glance));
      return true;
    } catch (const Error& error) {
      if (error.status() != CONCORD_STATUS_TIMEOUT) throw;
    }
    if (store.has(kFault)) end_with(store, member, one_line(store.get(kFault, kGlance), kMaxFault));
    if (left <= glance) return false;
  }
}

void compare_terms(Store& store, const Member& member, const std::vector<Term>& first) {
  if (first == member.terms) return;
  const size_t common = std::min(first.size(), member.terms.size());
  for (size_t i = 0; i < common; ++i) {
    if (first[i] == member.terms[i]) continue;
    raise(store, member,
          fmt::format("rank {} was started with {} {}, rank 0 with {}; start all ranks with the same settings",
                      member.rank, member.terms[i].name, member.terms[i].value,
                      one_line(fmt::format("{} {}", first[i].name, first[i].value), kMaxWords)));
  }
  raise(store, member,
        fmt::format("rank {} and rank 0 are different builds of this program: they compare {} and {} settings",
                    member.rank, member.terms.size(), first.size()));
}

// Returns the ranks that have not joined, at most kNamed of them.
std::string missing_ranks(Store& store, int64_t world) {
  std::vector<int64_t> missing;
  int64_t count = 0;
  for (int64_t rank = 0; rank < world; ++rank) {
    if (store.has(claim_key(rank))) continue;
    if (missing.size() < kNamed) missing.push_back(rank);
    ++count;
  }
  const std::string names = fmt::format("{}", fmt::join(missing, ", "));
  return fmt::format("{}{}{}", count == 1 ? "rank " : "ranks ", names,
                     count > static_cast<int64_t>(kNamed) ? ", ..." : "");
}

[[noreturn]] void give_up(Store& store, const Member& member, Milliseconds timeout) {
  const int64_t arrived = store.add(kArrived, 0);
  const std::string who = member.rank == 0 ? missing_ranks(store, member.world) : "the others";
  throw Error(CONCORD_STATUS_TIMEOUT,
              fmt::format("only {} of {} ranks joined within {} ms; rank {} waited for {}; check their errors, or "
                          "increase ddp_timeout; all ranks need the same {}, or none",
                          arrived, member.world, timeout.count(), member.rank, who, kJobToken));
}

}  // namespace

std::string describe_this_process() {
  char host[256] = "this machine";
  gethostname(host, sizeof host - 1);
  return fmt::format("process {} on {}", getpid(), static_cast<const char*>(host));
}

void rendezvous(Store& store, const Member& member, Milliseconds timeout) {
  const Clock::time_point deadline = Clock::now() + timeout;
  claim_rank(store, member);
  if (member.rank == 0) {
    store.set(kTerms, pack(member.terms));
  } else {
    std::string terms;
    const auto look = [&](Milliseconds limit) { terms = store.get(kTerms, limit); };
    if (!wait_for(store, member, deadline, look)) give_up(store, member, timeout);
    compare_terms(store, member, unpack(terms));
  }
  if (store.add(kArrived, 1) == member.world) store.set(kComplete, "1");
  const std::string complete = kComplete;
  const auto wait = [&](Milliseconds limit) { store.wait({&complete, 1}, limit); };
  if (!wait_for(store, member, deadline, wait)) give_up(store, member, timeout);
}

bool exit_barrier(Store& store, const Member& member, Milliseconds timeout, const std::function<bool()>& is_any_lost) {
  const std::string gone = "rendezvous/gone";
  const Clock::time_point deadline = Clock::now() + timeout;
  if (store.add("rendezvous/leaving", 1) == member.world) store.set(gone, "1");
  if (member.rank != 0) return true;
  for (;;) {
    const Milliseconds left = left_until(deadline);
    try {
      store.wait({&gone, 1}, std::min(left, kGlance));
      return true;
    } catch (const Error& error) {
      if (error.status() != CONCORD_STATUS_TIMEOUT) throw;
    }
    if (left <= kGlance || is_any_lost()) return false;
  }
}

}  // namespace concord
