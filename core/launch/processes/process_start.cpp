#include "core/launch/processes/process_start.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>

#include "core/base/config_error.h"
#include "core/launch/processes/session_guard.h"
#include "core/launch/processes/signal_queue.h"

namespace concord {
namespace {

// Why |file| cannot be run, or null.
const char* why_not(const std::string& file) {
  struct stat info{};
  if (::stat(file.c_str(), &info) != 0) return std::strerror(errno);
  if (S_ISDIR(info.st_mode)) return "it is a folder";
  if (::access(file.c_str(), X_OK) != 0) return "it is not executable (chmod +x)";
  return nullptr;
}

std::vector<char*> pointers(const std::vector<std::string>& texts) {
  std::vector<char*> result;
  for (const std::string& text : texts) result.push_back(const_cast<char*>(text.c_str()));
  result.push_back(nullptr);
  return result;
}

// Everything that the new process needs, prepared before fork: nothing may allocate between fork and exec.
struct Prepared {
  const char* program;
  char* const* arguments;
  char* const* environment;
  int in, out, err;  // in is -1 to inherit the launcher's
  int failure;       // receives errno on failure; closed on exec
  int guard_fd, guard_slot;
  pid_t launcher;
};

[[noreturn]] void become(const Prepared& prepared) {
  ::setsid();
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != prepared.launcher) ::_exit(1);  // it exited before the line above, so nobody would kill us
  SessionGuard::enter(prepared.guard_fd, prepared.guard_slot);
  SignalQueue::reset_in_child();
  const bool wired =
      (prepared.in < 0 || ::dup2(prepared.in, 0) == 0) && ::dup2(prepared.out, 1) == 1 && ::dup2(prepared.err, 2) == 2;
  if (wired) ::execve(prepared.program, prepared.arguments, prepared.environment);
  const int error = errno;
  if (::write(prepared.failure, &error, sizeof error) < 0) ::_exit(126);
  ::_exit(127);
}

// The errno of a failed start, 0 once exec has closed the other end.
int wait_for_exec(int fd) {
  int error = 0;
  for (;;) {
    const ssize_t length = ::read(fd, &error, sizeof error);
    if (length >= 0) return length == 0 ? 0 : error;
    if (errno != EINTR) return errno;
  }
}

}  // namespace

std::string find_program(std::string_view name, std::string_view path) {
  if (name.find('/') != std::string_view::npos) {
    if (const char* reason = why_not(std::string(name))) {
      throw ConfigError(fmt::format("cannot run '{}': {}", name, reason));
    }
    return std::string(name);
  }
  for (size_t begin = 0; begin <= path.size();) {
    const size_t end = std::min(path.find(':', begin), path.size());
    const std::string_view folder = path.substr(begin, end - begin);
    const std::string file = folder.empty() ? fmt::format("./{}", name) : fmt::format("{}/{}", folder, name);
    if (!name.empty() && !why_not(file)) return file;
    begin = end + 1;
  }
  throw ConfigError(
      fmt::format("program '{}' not found in PATH ({}); use a path with a '/' for a program elsewhere, e.g. ./{}", name,
                  path, name));
}

pid_t fork_with_signals_blocked() {
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  const pid_t pid = ::fork();
  const int error = errno;
  if (pid != 0) ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  errno = error;
  return pid;
}

StartedProcess start_process(const ProcessCommand& command) {
  const bool has_output = command.output >= 0;
  Pipe out = has_output ? Pipe{} : make_pipe();
  Pipe err = has_output ? Pipe{} : make_pipe();
  Pipe failure = make_pipe();
  if (!has_output) {
    set_nonblocking(out.read.get());
    set_nonblocking(err.read.get());
  }
  const bool reads_null = !command.takes_stdin && command.standard_input < 0;
  const UniqueFd null(!reads_null ? -1 : ::open("/dev/null", O_RDONLY | O_CLOEXEC));
  const std::vector<char*> arguments = pointers(command.arguments);
  const std::vector<char*> environment = pointers(command.environment);
  const Prepared prepared{command.program.c_str(),
                          arguments.data(),
                          environment.data(),
                          reads_null ? null.get() : command.standard_input,
                          has_output ? command.output : out.write.get(),
                          has_output ? command.output : err.write.get(),
                          failure.write.get(),
                          command.guard_fd,
                          command.guard_slot,
                          ::getpid()};
  const pid_t pid = fork_with_signals_blocked();
  if (pid < 0) throw std::system_error(errno, std::generic_category(), "fork");
  if (pid == 0) become(prepared);
  failure.write.reset();
  if (const int error = wait_for_exec(failure.read.get())) {
    while (::waitpid(pid, nullptr, 0) < 0 && errno == EINTR) {
    }
    throw std::system_error(error, std::generic_category(), fmt::format("cannot run '{}'", command.program));
  }
  return {pid, std::move(out.read), std::move(err.read)};
}

}  // namespace concord
