#include "core/launch/processes/spare_pool.h"

#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <algorithm>
#include <cerrno>
#include <system_error>

#include "core/launch/processes/spare_process.h"
#include "platform/base/stream_io.hpp"

namespace concord {
namespace {

// Sends all of |text| and ends the stream. Returns false if the socket is full: the spare does not read.
bool send_and_end(int fd, const std::string& text) {
  return send_all(fd, text, [] { return false; }) && ::shutdown(fd, SHUT_WR) == 0;
}

}  // namespace

SparePool::SparePool(int spares, SessionGuard* guard, int first_slot)
    : guard_(guard),
      first_slot_(first_slot),
      phases_(static_cast<size_t>(spares), SparePhase::absent),
      spares_(static_cast<size_t>(spares)) {}

SparePool::~SparePool() {
  for (size_t i = 0; i < spares_.size(); ++i) drop(i, SpareEvent::died);
}

SpareOrder SparePool::apply(size_t place, SpareEvent event) {
  const SpareStep step = next_step(job_rules(), phases_[place], event);
  phases_[place] = step.phase;
  return step.order;
}

void SparePool::renew() {
  handed_.clear();
  for (size_t i = 0; i < phases_.size(); ++i) apply(i, SpareEvent::renewed);
}

void SparePool::tick(ProcessCommand command) {
  note_ready();
  const std::optional<size_t> place = spare_to_start(phases_);
  if (place && apply(*place, SpareEvent::wanted) == SpareOrder::start) start(*place, std::move(command));
}

void SparePool::note_ready() {
  for (size_t i = 0; i < spares_.size(); ++i) {
    char byte = 0;
    if (phases_[i] != SparePhase::loading) continue;
    if (::recv(spares_[i].control.get(), &byte, 1, MSG_DONTWAIT) == 1) apply(i, SpareEvent::loaded);
  }
}

void SparePool::start(size_t place, ProcessCommand command) {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
    apply(place, SpareEvent::died);
    return;
  }
  Spare& spare = spares_[place];
  spare.control = UniqueFd(ends[0]);
  const UniqueFd other(ends[1]);
  command.standard_input = other.get();
  command.environment.push_back(std::string(kSpareVariable) + "=1");
  command.guard_fd = guard_->fd();
  command.guard_slot = first_slot_ + static_cast<int>(place);
  try {
    spare.process = start_process(command);
  } catch (const std::system_error&) {
    drop(place, SpareEvent::died);
  }
}

std::optional<StartedProcess> SparePool::take(const std::vector<std::string>& environment) {
  note_ready();
  std::string text;
  for (const std::string& entry : environment) (text += entry).push_back('\0');
  while (const std::optional<size_t> place = spare_to_take(phases_)) {
    Spare& spare = spares_[*place];
    if (!send_and_end(spare.control.get(), text)) {
      drop(*place, SpareEvent::died);
      continue;
    }
    apply(*place, SpareEvent::taken);
    guard_->forget(first_slot_ + static_cast<int>(*place));
    handed_.push_back(std::move(spare.control));
    StartedProcess process = std::move(spare.process);
    spare.process = {};
    return process;
  }
  return std::nullopt;
}

bool SparePool::owns(pid_t process) const {
  return std::ranges::any_of(spares_, [&](const Spare& spare) { return spare.process.pid == process; });
}

void SparePool::ended(pid_t process) {
  for (size_t i = 0; i < spares_.size(); ++i) {
    if (spares_[i].process.pid != process) continue;
    spares_[i].process.pid = -1;
    drop(i, SpareEvent::died);
  }
}

// Ends it, if it has not ended.
void SparePool::drop(size_t place, SpareEvent event) {
  Spare& spare = spares_[place];
  apply(place, event);
  if (spare.process.pid > 0) {
    ::kill(-spare.process.pid, SIGKILL);
    while (::waitpid(spare.process.pid, nullptr, 0) < 0 && errno == EINTR) {
    }
  }
  if (spare.process.pid != -1 || spare.control.get() >= 0) guard_->forget(first_slot_ + static_cast<int>(place));
  spare.process = {};
  spare.control.reset();
}

}  // namespace concord
