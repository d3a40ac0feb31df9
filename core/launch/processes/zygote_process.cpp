#include "core/launch/processes/zygote_process.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <span>
#include <string>

#include "core/base/process_list.h"
#include "core/launch/processes/process_start.h"
#include "core/launch/processes/session_guard.h"
#include "core/launch/processes/signal_queue.h"
#include "core/launch/processes/spare_process.h"
#include "platform/base/descriptor_message.hpp"
#include "platform/base/stream_io.hpp"

namespace concord {
namespace {

struct RankOrder {
  ZygoteRequest request{};
  std::array<int, kZygoteDescriptors> descriptors{};  // standard input, output and error, the guard's
  std::string environment;
};

bool has_one_thread() { return read_process_file(::getpid(), "status").find("\nThreads:\t1\n") != std::string::npos; }

bool receive_order(void* to, size_t bytes) {
  return receive_exactly(STDIN_FILENO, to, bytes, [] { return true; });
}

// Nothing: the launcher has gone, or has no more use for it.
std::optional<RankOrder> next_order() {
  RankOrder order;
  auto* const request = reinterpret_cast<char*>(&order.request);
  const size_t got =
      receive_with_descriptors(STDIN_FILENO, std::span(request, sizeof order.request), std::span(order.descriptors));
  if (got == 0 || !receive_order(request + got, sizeof order.request - got)) return std::nullopt;
  order.environment.resize(order.request.environment_bytes);
  if (!receive_order(order.environment.data(), order.environment.size())) return std::nullopt;
  return order;
}

void send_answer(const ZygoteAnswer& text) {
  if (::send(STDIN_FILENO, &text, sizeof text, MSG_NOSIGNAL) != sizeof text) ::_exit(1);
}

// In the new process, once |middle| has ended and the launcher, which takes in orphans, is its parent: then the
// launcher can wait for it, and the kernel kills it with the launcher.
void become_rank(const RankOrder& order, pid_t middle) {
  while (::getppid() == middle) ::usleep(100);
  ::setsid();
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != order.request.launcher) ::_exit(1);
  const auto [in, out, err, guard] = order.descriptors;
  SessionGuard::enter(guard, order.request.guard_slot);
  SignalQueue::reset_in_child();
  set_environment(order.environment);
  send_answer({::getpid(), 0});
  if (::dup2(in, 0) < 0 || ::dup2(out, 1) < 0 || ::dup2(err, 2) < 0) ::_exit(1);
  for (const int each : order.descriptors) ::close(each);
}

}  // namespace

bool is_zygote() {
  const char* value = std::getenv(kZygoteVariable);
  return value != nullptr && *value != 0;
}

void fork_ranks() {
  char name[16] = {};  // what tools show; a rank has the program's again
  ::prctl(PR_GET_NAME, name);
  ::prctl(PR_SET_NAME, kZygoteName);
  const char ready = 'r';
  if (!has_one_thread() || ::send(STDIN_FILENO, &ready, 1, MSG_NOSIGNAL) != 1) ::_exit(1);
  while (const std::optional<RankOrder> order = next_order()) {
    const pid_t middle = fork_with_signals_blocked();
    if (middle == 0) {
      const pid_t own = ::getpid(), rank = ::fork();
      if (rank == 0) {
        ::prctl(PR_SET_NAME, name);
        return become_rank(*order, own);
      }
      if (rank < 0) send_answer({-1, errno});
      ::_exit(0);
    }
    if (middle < 0) send_answer({-1, errno});
    while (middle > 0 && ::waitpid(middle, nullptr, 0) < 0 && errno == EINTR) {
    }
    for (const int each : order->descriptors) ::close(each);
  }
  ::_exit(0);
}

}  // namespace concord
