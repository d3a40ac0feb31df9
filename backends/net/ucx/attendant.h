// The thread that drives idle ports.
#pragma once

#include <sys/epoll.h>

#include <cstdint>
#include <map>
#include <mutex>

namespace concord::net {

class UcxPort;

// Drives the ports that nobody else drives. One thread, which sleeps while nothing comes, for as long as the process.
class Attendant {
 public:
  static Attendant& here() {
    static auto* const one = new Attendant();
    return *one;
  }
  // When the process exits: UCX's own handlers come next, and nobody may be inside UCX then.
  static void stop() {
    const std::lock_guard lock(here().mutex_);
    here().stopped_ = true;
  }
  bool stopped() {
    const std::lock_guard lock(mutex_);
    return stopped_;
  }
  // Ports are known by numbers: one that was removed is not found any more.
  uint64_t add(UcxPort* port, int events);
  void remove(uint64_t number, int events);
  // The port is the caller's, or this thread's; it has been drained then.
  void set_driver(uint64_t number, int events, bool to_attendant);

 private:
  Attendant();
  [[noreturn]] void run();

  const int epoll_;
  std::mutex mutex_;  // guards all below; held while a port is driven, so that none is removed meanwhile
  uint64_t last_ = 0;
  bool stopped_ = false;
  struct Ward {
    UcxPort* port = nullptr;
    bool ours = false;
  };
  void watch(uint64_t number, int events, bool wanted) const {
    epoll_event event{};
    event.events = wanted ? EPOLLIN | EPOLLONESHOT : 0;
    event.data.u64 = number;
    ::epoll_ctl(epoll_, EPOLL_CTL_MOD, events, &event);
  }
  std::map<uint64_t, Ward> ports_;
};

}  // namespace concord::net
