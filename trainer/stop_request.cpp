#include "trainer/stop_request.h"

#include <atomic>

namespace concord {
namespace {

std::atomic<int> received = 0;
static_assert(std::atomic<int>::is_always_lock_free);  // so that a handler may write it

void remember(int signal) { received.store(signal, std::memory_order_relaxed); }

}  // namespace

StopRequest::StopRequest() {
  received = 0;
  struct sigaction action{};
  action.sa_handler = remember;
  action.sa_flags = SA_RESTART;
  sigaction(SIGTERM, &action, &before_term_);
  action.sa_flags = SA_RESTART | static_cast<int>(SA_RESETHAND);
  sigaction(SIGINT, &action, &before_int_);
}

StopRequest::~StopRequest() {
  sigaction(SIGTERM, &before_term_, nullptr);
  sigaction(SIGINT, &before_int_, nullptr);
}

bool StopRequest::requested() const { return received.load(std::memory_order_relaxed) != 0; }

std::string StopRequest::signal_name() const {
  const int signal = received.load(std::memory_order_relaxed);
  return signal == SIGTERM ? "SIGTERM" : signal == SIGINT ? "SIGINT" : "";
}

}  // namespace concord
