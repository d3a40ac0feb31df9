#include "tests/processes/preloaded_program.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <span>

#include "platform/base/descriptor_message.hpp"
#include "platform/base/unique_fd.hpp"
#include "tests/processes/preloaded_request.h"

namespace concord::testing_processes {
namespace {

class Server {
 public:
  // |library| is that of preloaded.cpp.
  Server(const std::string& program, std::vector<std::string> environment, const std::string& library)
      : program_(program), loaded_with_(load_variables(environment)) {
    int ends[2];
    if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) return;
    socket_ = UniqueFd(ends[0]);
    const UniqueFd other(ends[1]);
    const char* const folder = std::getenv("CONCORD_PLUGIN_PATH");
    environment.push_back("LD_PRELOAD=" + library);
    environment.push_back("PRELOADED_SOCKET=" + std::to_string(other.get()));
    environment.push_back("PRELOADED_LIBRARY=" + std::string(folder != nullptr ? folder : "") + "/libconcordtorch.so");
    const std::vector<std::string> command = {program};
    const std::vector<char*> arguments = exec_args(command), variables = exec_args(environment);
    pid_ = ::fork();
    if (pid_ == 0) {
      ::fcntl(other.get(), F_SETFD, 0);
      ::execve(arguments[0], arguments.data(), variables.data());
      ::_exit(127);
    }
  }
  ~Server() {  // the server exits when its socket is closed
    socket_.reset();
    while (pid_ > 0 && ::waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
    }
  }

  bool can_start(const std::string& program, const std::vector<std::string>& environment) const {
    return program == program_ && load_variables(environment) == loaded_with_;
  }

  // Returns the reply to the last message, or a negative number.
  pid_t answer() const {
    pid_t pid = -1;
    ssize_t length = 0;
    do length = ::recv(socket_.get(), &pid, sizeof pid, 0);
    while (length < 0 && errno == EINTR);
    return length == sizeof pid ? pid : -1;
  }

  bool send(const std::string& text, const int (&descriptors)[kPreloadedDescriptors]) const {
    return send_with_descriptors(socket_.get(), std::span<const char>(text), std::span(descriptors));
  }

 private:
  std::string program_;
  std::vector<std::string> loaded_with_;
  UniqueFd socket_;
  pid_t pid_ = -1;
};

PreloadedStart what_is_inherited(bool ignore_hangup) {
  PreloadedStart start{};
  for (int number = 1; number < NSIG; ++number) {
    struct sigaction action{};
    const bool ignored = ::sigaction(number, nullptr, &action) == 0 && action.sa_handler == SIG_IGN;
    if (number == SIGHUP ? ignore_hangup : ignored) start.ignored_signals |= uint64_t{1} << number;
  }
  for (int kind = 0; kind < RLIM_NLIMITS; ++kind) {
    ::getrlimit(static_cast<__rlimit_resource>(kind), &start.limits[kind]);
  }
  return start;
}

// Returns whether a subcommand loads libtorch; the others start fast anyway.
bool needs_libtorch(const std::vector<std::string>& command) {
  const std::vector<std::string> names = {"train", "probe", "generate"};
  return command.size() > 1 && std::ranges::find(names, command[1]) != names.end();
}

}  // namespace

std::optional<pid_t> start_preloaded(const std::vector<std::string>& command,
                                     const std::vector<std::string>& environment, const PreloadedStreams& streams,
                                     bool ignore_hangup) {
  static std::mutex mutex;
  static std::unique_ptr<Server> server;
  static const char* library = std::getenv("CONCORD_PRELOADED");
  if (library == nullptr || !needs_libtorch(command)) return std::nullopt;
  const std::string text = format_preloaded_request(what_is_inherited(ignore_hangup), command, environment);
  if (text.size() > kPreloadedBytes) return std::nullopt;
  const std::lock_guard lock(mutex);
  if (server == nullptr) {
    server = std::make_unique<Server>(command[0], environment, library);
    if (server->answer() != 0) library = nullptr;
  }
  if (library == nullptr || !server->can_start(command[0], environment)) return std::nullopt;
  const UniqueFd folder(::open(".", O_PATH | O_DIRECTORY | O_CLOEXEC));
  if (!server->send(text, {streams.in, streams.out, streams.err, folder.get()})) return std::nullopt;
  const pid_t pid = server->answer();
  return pid > 0 ? std::optional(pid) : std::nullopt;
}

}  // namespace concord::testing_processes
