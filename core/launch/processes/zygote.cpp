#include "core/launch/processes/zygote.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <cerrno>
#include <cstring>
#include <span>
#include <string>
#include <system_error>

#include "core/base/process_list.h"
#include "core/launch/processes/pipe.h"
#include "core/launch/processes/zygote_process.h"
#include "core/launch/watch/hang_watch.h"
#include "platform/base/descriptor_message.hpp"
#include "platform/base/framed_socket.hpp"

namespace concord {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::seconds kForkTime{10};
constexpr std::chrono::minutes kLoadTime{10};  // libtorch from a slow disk; afterwards ranks load it themselves

// Waits: for a zygote that has stopped reading, at most kForkTime.
bool send_environment(int fd, const std::string& text) {
  return send_all(fd, text, [fd] { return wait_until_ready(fd, POLLOUT, Clock::now() + kForkTime); });
}

bool send_request(int fd, const ZygoteRequest& request, const int (&descriptors)[kZygoteDescriptors]) {
  return send_with_descriptors(fd, std::span(reinterpret_cast<const char*>(&request), sizeof request),
                               std::span(descriptors));
}

}  // namespace

Zygote::Zygote(bool is_wanted, SessionGuard* guard, int slot, const SignalQueue* signals)
    : is_wanted_(is_wanted), guard_(guard), slot_(slot), signals_(signals) {}

Zygote::~Zygote() { drop(); }

std::optional<StartedProcess> Zygote::start(const ProcessCommand& command) {
  if (!is_wanted_) return std::nullopt;
  if (!is_ready(command)) {
    drop();
    return std::nullopt;
  }
  Pipe out = make_pipe(), err = make_pipe();
  set_nonblocking(out.read.get());
  set_nonblocking(err.read.get());
  const UniqueFd null(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  const int in = command.takes_stdin ? STDIN_FILENO : null.get();
  std::string environment;
  for (const std::string& entry : command.environment) (environment += entry).push_back('\0');
  const ZygoteRequest request{static_cast<uint32_t>(environment.size()), command.guard_slot, ::getpid()};
  ZygoteAnswer answer{};
  if (!send_request(control_.get(), request, {in, out.write.get(), err.write.get(), command.guard_fd}) ||
      !send_environment(control_.get(), environment) ||
      !receive(&answer, sizeof answer, kForkTime, /*heeds_signals=*/false)) {
    drop();
    return std::nullopt;
  }
  if (answer.error != 0) throw std::system_error(answer.error, std::generic_category(), "fork");
  return StartedProcess{answer.pid, std::move(out.read), std::move(err.read)};
}

// Starts it if it has not been started.
bool Zygote::is_ready(ProcessCommand command) {
  if (process_.pid > 0) return true;
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) return false;
  control_ = UniqueFd(ends[0]);
  const timeval limit{.tv_sec = kForkTime.count(), .tv_usec = 0};  // for one that has stopped reading
  ::setsockopt(control_.get(), SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
  const UniqueFd other(ends[1]);
  command.standard_input = other.get();
  command.takes_stdin = false;
  command.guard_slot = slot_;
  command.environment.push_back(std::string(kZygoteVariable) + "=1");
  try {
    process_ = start_process(command);
  } catch (const std::system_error&) {
    return false;
  }
  char byte = 0;
  return receive(&byte, 1, kLoadTime, /*heeds_signals=*/true);
}

// Returns false if the zygote has exited or is stopped, on timeout, or if there is a signal for the launcher. A rank
// that the zygote forks later cannot answer and exits.
bool Zygote::receive(void* to, size_t bytes, Clock::duration limit, bool heeds_signals) {
  const Clock::time_point end = Clock::now() + limit;
  return receive_exactly(control_.get(), to, bytes, [&] { return await(end, heeds_signals); });
}

// Whether there is something to be received from it.
bool Zygote::await(Clock::time_point end, bool heeds_signals) {
  pollfd both[2] = {{control_.get(), POLLIN, 0}, {heeds_signals ? signals_->fd() : -1, POLLIN, 0}};
  for (int looks = 0; Clock::now() < end;) {
    const int ready = ::poll(both, 2, static_cast<int>(HangWatch::kTick.count()));
    if (ready < 0 && errno != EINTR) return false;
    if (ready > 0) return both[0].revents != 0 && both[1].revents == 0;
    looks = is_stopped(process_.pid) ? looks + 1 : 0;
    if (looks * HangWatch::kTick >= HangWatch::kStoppedLimit) return false;
  }
  return false;
}

void Zygote::ended() {
  process_.pid = -1;
  drop();
}

// Kills the zygote; from now on ranks are started as programs.
void Zygote::drop() {
  is_wanted_ = false;
  if (process_.pid > 0) {
    ::kill(-process_.pid, SIGKILL);
    while (::waitpid(process_.pid, nullptr, 0) < 0 && errno == EINTR) {
    }
  }
  if (control_.get() >= 0) guard_->forget(slot_);
  process_ = {};
  control_.reset();
}

}  // namespace concord
