// Whether the processes of the other ranks still run, for callers that wait for one of them.
//
// A rank announces in the store which process it is, and when it leaves. A process that cannot do so any more, because
// it was killed or stopped, is checked in /proc by the ranks of the same machine. Nothing is known here about one that
// was killed on another machine; communicators see that (capability comm.detects_loss). Threads: any thread.
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

  // Tells the others which process this rank is.
  Peers(std::shared_ptr<Store> store, int64_t rank);

  // Looks up now which process |rank| is: once the store is gone, or stopped, it cannot be queried. Waits: until |rank|
  // has said it, at most |timeout| (Error TIMEOUT).
  void await_process(int64_t rank, Milliseconds timeout);

  // Tells the others not to wait for this rank any more: it has finished, or it gives up. Waits: for the store.
  // Never throws.
  enum class LeaveReason { done, gives_up };
  void leave(LeaveReason how) noexcept;

  // The error that this rank is about to throw was caused by |rank|. The waits below blame a lost rank themselves.
  void blame(int64_t rank) noexcept;
  // For a process that is about to exit: launchers report the one that ends first, and that should be the one to blame,
  // if there is one. Waits: for its end, if that can be observed, a few seconds at most.
  void wait_for_culprit_exit() noexcept;

  // Never throws: unknown if the store does not answer.
  State state(int64_t rank) noexcept;
  // Whether nothing more comes from |rank|: it has left or its process has ended. Throws Error if the store is gone.
  bool is_gone(int64_t rank);
  // Whether |rank| has given up, or its process has ended before it had done its part. Throws as is_gone.
  bool is_lost(int64_t rank);
  bool is_any_lost(int64_t world);  // of the ranks below |world|
  // "pid 4711 is stopped", "pid 4711 has ended"; empty if it runs, or if that is unknown here. Never throws.
  std::string trouble(int64_t rank) noexcept;

  // The value of |key|, which |rank| sets. Throws Error: PEER_LOST as soon as |rank| is gone, TIMEOUT after |timeout|.
  std::string await(const std::string& key, int64_t rank, Milliseconds timeout);

  // Returns when all members of |ranks| have called it with the same |key|; this rank has place |index| among them.
  // Throws Error: PEER_LOST as soon as one that has not joined is gone, TIMEOUT after |timeout|, both naming who is
  // missing: "not joined by rank 3 (pid 4711 is stopped)". Costs a rank a handful of store operations, whatever the
  // number of ranks.
  void meet(const std::string& key, const RankGroup& ranks, int64_t index, Milliseconds timeout);
  // Which of |ranks| was lost after it had joined, if this or another rank knows one. Throws as is_gone.
  std::optional<int64_t> lost_since(const std::string& key, const RankGroup& ranks, int64_t index);
  // "rank 3 (pid 4711 has ended)", "rank 3". Never throws.
  std::string describe(int64_t rank) noexcept;

 private:
  struct Process {
    std::string place;  // the machine, and the pid namespace in which the number counts
    pid_t pid = 0;
    uint64_t start_time = 0;
  };

  static Process this_process();
  static std::optional<Process> parse(const std::string& text);
  std::optional<Process> find(int64_t rank);  // throws Error if the store is gone
  Error lost(int64_t rank, const std::string& sentence);
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
