// The thread that drives ports while their owners do not.
#pragma once

#include <sys/epoll.h>

#include <cstdint>
#include <map>
#include <mutex>

namespace concord::net {

class UcxPort;

// Drives ports whose owners do not, because peers may need an answer. It has one thread, which lives as long as the
// process and sleeps until an event arrives.
class Attendant {
 public:
  static Attendant& here() {
    static auto* const one = new Attendant();
    return *one;
  }
  // Called at exit: UCX's own exit handlers come next, and no thread may be inside UCX then.
  static void stop() {
    const std::lock_guard lock(here().mutex_);
    here().stopped_ = true;
  }
  bool stopped() {
    const std::lock_guard lock(mutex_);
    return stopped_;
  }
  // Returns the number by which the other calls identify |port|. |events|: its event descriptor.
  uint64_t add(UcxPort* port, int events);
  void remove(uint64_t number, int events);
  // Sets whether this thread or the caller drives the port, which must have been drained before it is given to the
  // thread.
  void set_driver(uint64_t number, int events, bool to_attendant);

 private:
  Attendant();
  [[noreturn]] void run();

  const int epoll_;
  std::mutex mutex_;  // guards all below; held while a port is driven, so that it is not removed meanwhile
  uint64_t last_ = 0;
  bool stopped_ = false;
  struct Entry {
    UcxPort* port = nullptr;
    bool is_driven_here = false;
  };
  void watch(uint64_t number, int events, bool wanted) const {
    epoll_event event{};
    event.events = wanted ? EPOLLIN | EPOLLONESHOT : 0;
    event.data.u64 = number;
    ::epoll_ctl(epoll_, EPOLL_CTL_MOD, events, &event);
  }
  std::map<uint64_t, Entry> ports_;
};

}  // namespace concord::net
