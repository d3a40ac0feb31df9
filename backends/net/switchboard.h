// The listening thread of a process with ids or control connections of communicators that span hosts. See control.h.
#pragma once

#include <poll.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "backends/net/line_state.h"
#include "backends/net/room.h"

namespace concord::net {

// Serves the ids that this process has created and all its control connections, on one thread. Threads: any.
class Switchboard {
 public:
  // Returns the switchboard of this process; a forked child has its own.
  static Switchboard& here();

  void keep(const void* id);
  void forget(const void* id) {
    const std::lock_guard lock(mutex_);
    rooms_.erase(std::string(static_cast<const char*>(id), kIdBytes));
  }
  void add(const std::shared_ptr<Line::State>& line) {
    const std::lock_guard lock(mutex_);
    lines_.push_back(line);
    start();
  }
  // Keeps |line| until all ranks have left it, or one is lost.
  void add_parting(const std::shared_ptr<Line::State>& line);
  // When it returns, no callback of the line runs, and none will.
  void remove(const std::shared_ptr<Line::State>& line) {
    const std::lock_guard lock(mutex_);
    std::erase(lines_, line);
  }

 private:
  // A connection that has not sent its first message.
  struct Stranger {
    SealedConnection connection;
    std::chrono::steady_clock::time_point until;
  };

  Switchboard();
  void start() CONCORD_REQUIRES(mutex_);
  [[noreturn]] void run();
  std::vector<pollfd> entries();
  // Whether one more stranger is accepted. The oldest one is dropped for it once it has had time for its message, so a
  // flood of connections does not keep out a rank that sends its message immediately.
  bool has_room() CONCORD_REQUIRES(mutex_);
  void listen_to_strangers() CONCORD_REQUIRES(mutex_);
  void listen_to_members() CONCORD_REQUIRES(mutex_);
  void listen_to_lines() CONCORD_REQUIRES(mutex_);
  // Removes the lines that all ranks have left and returns their callbacks.
  std::vector<std::function<void()>> close_parted() CONCORD_REQUIRES(mutex_);
  static void wait_for_parting();

  const pid_t owner_ = ::getpid();
  const std::string token_ = job_token();
  const UniqueFd wake_;
  std::mutex mutex_;  // guards all below; held while messages are handled, which never waits
  bool started_ CONCORD_GUARDED_BY(mutex_) = false;
  UniqueFd listener_ CONCORD_GUARDED_BY(mutex_);
  uint16_t port_ CONCORD_GUARDED_BY(mutex_) = 0;
  std::map<std::string, Room> rooms_ CONCORD_GUARDED_BY(mutex_);
  std::list<Stranger> strangers_ CONCORD_GUARDED_BY(mutex_);
  std::vector<std::shared_ptr<Line::State>> lines_ CONCORD_GUARDED_BY(mutex_);
  std::vector<std::shared_ptr<Line::State>> parting_ CONCORD_GUARDED_BY(mutex_);  // of lines_
  std::atomic<size_t> unparted_{0};  // lines in parting_, plus those whose callbacks have not returned
};

}  // namespace concord::net
