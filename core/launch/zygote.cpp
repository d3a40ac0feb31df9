#include "core/launch/zygote.h"

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

#include "core/launch/pipe.h"
#include "core/launch/zygote_process.h"
#include "platform/base/descriptor_message.hpp"

namespace concord {
namespace {

constexpr int kPatience = 10'000;  // milliseconds for a fork

// Not more than the socket takes at once: a zygote that is ready reads.
bool send_environment(int fd, const std::string& text) {
  for (size_t sent = 0; sent < text.size();) {
    const ssize_t length = ::send(fd, text.data() + sent, text.size() - sent, MSG_NOSIGNAL);
    if (length < 0 && errno == EINTR) continue;
    if (length <= 0) return false;
    sent += static_cast<size_t>(length);
  }
  return true;
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
      !receive(&answer, sizeof answer, kPatience, /*heeds_signals=*/false)) {
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
  return receive(&byte, 1, -1, /*heeds_signals=*/true);
}

// False: it has ended, the time is over, or there is a signal for the launcher. A rank that it forks later cannot
// answer and ends.
bool Zygote::receive(void* to, size_t bytes, int milliseconds, bool heeds_signals) {
  for (size_t got = 0; got < bytes;) {
    pollfd both[2] = {{control_.get(), POLLIN, 0}, {heeds_signals ? signals_->fd() : -1, POLLIN, 0}};
    if (::poll(both, 2, milliseconds) < 0) {
      if (errno == EINTR) continue;
      return false;
    }
    if (both[0].revents == 0 || both[1].revents != 0) return false;
    const ssize_t length = ::recv(control_.get(), static_cast<char*>(to) + got, bytes - got, 0);
    if (length < 0 && errno == EINTR) continue;
    if (length <= 0) return false;
    got += static_cast<size_t>(length);
  }
  return true;
}

void Zygote::ended() {
  process_.pid = -1;
  drop();
}

// It is not wanted any more.
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
