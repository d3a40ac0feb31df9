#include "backends/net/ucx/attendant.h"

#include <cstdlib>
#include <thread>

#include "backends/net/ucx/port.h"

namespace concord::net {

Attendant::Attendant() : epoll_(::epoll_create1(EPOLL_CLOEXEC)) {
  std::atexit(stop);
  std::thread([this] { run(); }).detach();
}

uint64_t Attendant::add(UcxPort* port, int events) {
  const std::lock_guard lock(mutex_);
  epoll_event event{};
  event.data.u64 = ++last_;
  ::epoll_ctl(epoll_, EPOLL_CTL_ADD, events, &event);
  ports_[last_] = {port, false};
  return last_;
}

// Waits while the attendant drives the port: it holds the mutex.
void Attendant::set_driver(uint64_t number, int events, bool to_attendant) {
  const std::lock_guard lock(mutex_);
  ports_[number].is_driven_here = to_attendant;
  watch(number, events, to_attendant);
}

void Attendant::remove(uint64_t number, int events) {
  const std::lock_guard lock(mutex_);
  ports_.erase(number);
  ::epoll_ctl(epoll_, EPOLL_CTL_DEL, events, nullptr);
}

void Attendant::run() {
  while (true) {
    epoll_event event{};
    if (::epoll_wait(epoll_, &event, 1, -1) != 1) continue;
    const std::lock_guard lock(mutex_);
    const uint64_t number = event.data.u64;  // a copy: on x86-64 epoll_event is packed, and a reference misaligned
    const auto found = ports_.find(number);
    if (stopped_ || found == ports_.end() || !found->second.is_driven_here) continue;
    found->second.port->drain();
    watch(found->first, found->second.port->events(), true);
  }
}

}  // namespace concord::net
