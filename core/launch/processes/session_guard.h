// A small process that outlives a launcher that is killed with kill -9, and then kills what the ranks left behind.
//
// The kernel kills every rank with the launcher (PR_SET_PDEATHSIG), but not what the rank has started. The guard
// finds that by two signs: each rank leads its own session, whose id the guard knows while the rank lives; and the
// variable CONCORD_LAUNCH_ID, which names the launcher, is inherited by all descendants, daemons included. It does not
// find a process that has both left its session and dropped or overwritten its variables, nor one of another user.
// The guard is for kill -9 alone: on every other end the launcher itself waits for, or kills, all descendants.
#pragma once

#include <sys/types.h>

#include <string>

#include "platform/base/unique_fd.hpp"

namespace concord {

inline constexpr const char* kLaunchId = "CONCORD_LAUNCH_ID";

class SessionGuard {
 public:
  // Forks; throws std::system_error. |folder| is removed as well when the launcher is killed; empty: none.
  SessionGuard(int slots, const std::string& launch_id, const std::string& folder = {});
  ~SessionGuard();  // lets the guard go and waits for its end; kills one that is stopped
  SessionGuard(const SessionGuard&) = delete;
  SessionGuard& operator=(const SessionGuard&) = delete;

  pid_t pid() const { return pid_; }
  int fd() const { return pipe_.get(); }

  // Called by the new process itself before exec, so that no moment is uncovered. Safe after fork.
  static void enter(int guard_fd, int slot);
  // Called by the launcher for a process that has entered in another slot: from now on it is in this one too.
  void adopt(int slot, pid_t session);
  // Called by the launcher when the leader of the session has ended: its number may soon be reused.
  void forget(int slot);

 private:
  UniqueFd pipe_;
  pid_t pid_ = -1;
};

}  // namespace concord
