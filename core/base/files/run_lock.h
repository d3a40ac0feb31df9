// The lock of a job on its output folder, OUTPUT_DIR/.lock: only one job at a time writes to the folder.
//
// The file names its holder, is locked with fcntl while the job runs, and is deleted afterwards. The kernel releases
// the lock when the process exits, for any reason, and forked children do not inherit it; the file of a killed holder
// is taken over. On a network file system, whose locks may reach only one machine, and on one without locks, the holder
// also rewrites the file every few seconds as a heartbeat. A process that finds the file watches whether it changes;
// clocks of two machines are never compared.
//
// If a launcher restarts the job, the file also names the launcher. It then stays when the holder fails or is killed,
// and other jobs on the same machine are rejected until the launcher has exited too.
//
// Closing any descriptor of the file releases the lock of the whole process (POSIX), so nothing else in the process may
// open it. Threads: any, one at a time per object.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "platform/base/unique_fd.hpp"

namespace concord {

inline constexpr const char* kRunLockFile = ".lock";
// Set by a launcher that holds a lock, to the job's name in it, for its ranks and their children.
inline constexpr const char* kRunLockVariable = "CONCORD_RUN_LOCK";

std::string host_name();

struct LockHolder {
  std::string host;
  int64_t pid = 0;
  std::string job;                // identical for all processes of a job
  int64_t launcher = 0;           // pid of the process that starts the job's next attempt; 0: none
  uint64_t launcher_started = 0;  // in clock ticks since boot; 0: no launcher, or it has exited

  bool operator==(const LockHolder&) const = default;
};

// Throws the ConfigError for |folder|, which is locked by |holder|.
[[noreturn]] void refuse_locked_folder(const std::filesystem::path& folder, const LockHolder& holder,
                                       const std::string& own_host = host_name());

int lock_whole_file(int file);  // never waits; returns 0 or errno

struct RunLockOptions {
  std::chrono::milliseconds beat{5000};  // time between two heartbeats
  int missed_beats = 4;                  // number of missed heartbeats after which a holder is considered dead
  bool shares = true;                    // share the lock with other processes of the same job; false: reject them too
  int64_t launcher = 0;                  // pid of the process that starts the job's next attempt; 0: none
  std::optional<bool> has_heartbeat = {};                // default: on network file systems and on those without locks
  std::string host = host_name();                        // host name of this process
  int (*lock)(int file) = lock_whole_file;               // replaced by tests
  std::function<void(const LockHolder&)> on_watch = {};  // called before waiting for the heartbeat of a holder
};

class RunLock {
 public:
  // Creates |folder| if it does not exist. If a process of the same |job| holds the lock, shares it, and takes over
  // when that process exits. Waits: only for missed heartbeats. Throws ConfigError with host and pid if another job
  // holds the lock, or if the file cannot be written or is not a lock of this program.
  RunLock(std::filesystem::path folder, const std::string& job, RunLockOptions options = {});
  ~RunLock();
  RunLock(const RunLock&) = delete;
  RunLock& operator=(const RunLock&) = delete;

 private:
  bool try_to_take(std::string* dead, bool is_last);
  bool is_same_job(const LockHolder& holder) const;
  void take();
  void write_holder();
  void keep_heartbeat();
  bool is_in_place() const;

  std::filesystem::path folder_, path_;
  LockHolder own_;
  RunLockOptions options_;
  UniqueFd file_;
  bool has_locks_ = true, has_heartbeat_ = false;
  bool is_new_folder_ = false;
  int64_t beats_ = 0;
  std::mutex mutex_;
  bool is_holder_ = false;  // guarded by mutex_ while the thread runs, as is is_ending_
  bool is_ending_ = false;
  std::condition_variable ended_;
  std::thread thread_;
};

// Returns the live holder of the lock of |folder|; nullopt if it is not locked, or locked by the job of this process.
// Must not be called by the holder itself.
std::optional<LockHolder> live_holder_of(const std::filesystem::path& folder, const RunLockOptions& options = {});
// Like live_holder_of(), for the folder |path| and all its parents.
std::optional<LockHolder> live_run_around(const std::filesystem::path& path);

}  // namespace concord
