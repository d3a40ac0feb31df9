// Detects whether the processes of the other ranks still run, for callers that wait for one of them.
//
// A rank announces its process in the store, and also its departure. Ranks on the same machine check in /proc for a
// process that cannot announce it because it was killed or stopped. The death of a process on another machine is not
// detected here; communicators detect it (capability comm.detects_loss). Threads: any thread.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "core/mesh/rank_layout.h"
#include "core/mesh/store/store.h"
#include "platform/base/thread_safety.hpp"
#include "platform/loader/error.h"

namespace concord {

class Peers {
 public:
  using Milliseconds = std::chrono::milliseconds;
  enum class State { running, stopped, ended, unknown };

  // Announces the process of this rank.
  Peers(std::shared_ptr<Store> store, int64_t rank);

  // Looks up the process of |rank| now, since the store may be unreachable later. Waits: until |rank| has announced it,
  // at most |timeout| (Error TIMEOUT).
  void await_process(int64_t rank, Milliseconds timeout);

  // Tells the others not to wait for this rank any longer: it has finished, or it gives up. Waits: for the store. Never
  // throws.
  enum class LeaveReason { done, gives_up };
  void leave(LeaveReason how) noexcept;

  // Records that |rank| caused the error that this rank is about to throw. The waits below record a lost rank
  // themselves.
  void blame(int64_t rank) noexcept;
  // Call before the process exits. Launchers report the first process to exit, so this waits for the culprit, if known,
  // to exit first. Waits: a few seconds at most, if its exit can be observed.
  void wait_for_culprit_exit() noexcept;

  // Never throws: returns `unknown` if the store does not reply.
  State state(int64_t rank) noexcept;
  // Returns whether |rank| has left or its process has exited. Throws Error if the store is gone.
  bool is_gone(int64_t rank);
  // Returns whether |rank| has given up, or has exited before it finished. Throws like is_gone().
  bool is_lost(int64_t rank);
  bool is_any_lost(int64_t world);  // checks the ranks below |world|
  // Returns "pid 4711 is stopped" or "pid 4711 has ended"; empty if it runs, or if that is unknown here. Never throws.
  std::string trouble(int64_t rank) noexcept;

  // Returns the value of |key|, which |rank| sets. Throws Error: PEER_LOST as soon as |rank| is gone, TIMEOUT after
  // |timeout|.
  std::string await(const std::string& key, int64_t rank, Milliseconds timeout);

  // Barrier: returns when all members of |ranks| have called it with the same |key|; |index| is the index of this rank
  // among them. Throws Error: PEER_LOST as soon as a member that has not joined is gone, TIMEOUT after |timeout|, both
  // with the missing members: "not joined by rank 3 (pid 4711 is stopped)". Costs a rank a few store operations,
  // whatever the number of ranks.
  void meet(const std::string& key, const RankGroup& ranks, int64_t index, Milliseconds timeout);
  // Returns a member of |ranks| that was lost after it had joined, if this or another rank has detected one. Throws
  // like is_gone().
  std::optional<int64_t> lost_since(const std::string& key, const RankGroup& ranks, int64_t index);
  // Returns "rank 3 (pid 4711 has ended)" or "rank 3". Never throws.
  std::string describe(int64_t rank) noexcept;

 private:
  struct Process {
    std::string place;  // the machine and pid namespace of the pid
    pid_t pid = 0;
    uint64_t start_time = 0;
  };

  static Process this_process();
  static std::optional<Process> parse(const std::string& text);
  std::optional<Process> find(int64_t rank);  // throws Error if the store is gone
  Error lost(int64_t rank, const std::string& message);
  State look(const Process& process) const;
  std::optional<int64_t> known_lost(const std::string& key, const RankGroup& ranks);
  std::optional<int64_t> find_missing(const std::string& key, const RankGroup& ranks, int64_t index);
  std::string not_joined(const std::string& key, const RankGroup& ranks);

  std::shared_ptr<Store> store_;
  const int64_t rank_;
  const Process own_;
  std::atomic<int64_t> to_blame_ = -1;
  std::mutex mutex_;
  std::map<int64_t, Process> known_ CONCORD_GUARDED_BY(mutex_);
};

}  // namespace concord
