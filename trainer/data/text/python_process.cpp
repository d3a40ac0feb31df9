#include "trainer/data/text/python_process.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <spawn.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <string_view>
#include <thread>

#include "core/base/config_error.h"
#include "platform/base/python_path.hpp"

extern char** environ;

namespace concord {
namespace {

// Returns our environment without variables that would make Python import from the working folder. Disables the
// tokenizer's own threads, which would compete with our processes.
std::vector<std::string> child_environment() {
  constexpr std::string_view kPath = "PYTHONPATH=";
  std::vector<std::string> variables = {"TOKENIZERS_PARALLELISM=false", "PYTHONSAFEPATH=1"};
  for (char** variable = environ; *variable != nullptr; ++variable) {
    const std::string_view text = *variable;
    if (text.starts_with("TOKENIZERS_PARALLELISM=") || text.starts_with("PYTHONSAFEPATH=")) continue;
    if (!text.starts_with(kPath)) {
      variables.emplace_back(text);
    } else if (const std::string path = absolute_python_path(text.substr(kPath.size())); !path.empty()) {
      variables.push_back(std::string(kPath) + path);
    }
  }
  return variables;
}

// Keeps a limit that is already lower.
void limit_memory(pid_t pid, uint64_t most) {
  rlimit limit{};
  if (::prlimit(pid, RLIMIT_AS, nullptr, &limit) != 0)
    return;  // the process has already exited, which the caller detects
  limit.rlim_max = std::min<rlim_t>(limit.rlim_max, most);
  limit.rlim_cur = std::min(limit.rlim_cur, limit.rlim_max);
  ::prlimit(pid, RLIMIT_AS, &limit, nullptr);
}

std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> list;
  for (std::string& text : texts) list.push_back(text.data());
  list.push_back(nullptr);
  return list;
}

// Waits briefly for |pid|, whose input is closed, to exit; then kills it.
void end_process(pid_t pid) {
  constexpr int kTries = 100;
  constexpr auto kBetween = std::chrono::milliseconds(5);
  for (int i = 0; i < kTries; ++i) {
    if (::waitpid(pid, nullptr, WNOHANG) != 0) return;
    std::this_thread::sleep_for(kBetween);
  }
  ::kill(pid, SIGKILL);
  ::waitpid(pid, nullptr, 0);
}

}  // namespace

PythonProcess::PythonProcess(const char* script, const std::vector<std::string>& arguments, const std::string& purpose,
                             std::optional<uint64_t> most_memory) {
  const char* const given = std::getenv("CONCORD_PYTHON");
  python_ = given != nullptr && *given != '\0' ? given : "python3";
  std::array<int, 2> ends = {-1, -1};
  const bool has_in = ::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) == 0;
  input_ = UniqueFd(ends[0]);
  UniqueFd its_in(ends[1]);
  ends = {-1, -1};
  const bool has_out = has_in && ::pipe2(ends.data(), O_CLOEXEC) == 0;
  output_ = UniqueFd(ends[0]);
  UniqueFd its_out(ends[1]);
  if (!has_out) {
    throw std::runtime_error(fmt::format("cannot create a pipe to {}: {}", python_, std::strerror(errno)));
  }
  std::vector<std::string> args = {python_, "-c", script};
  args.insert(args.end(), arguments.begin(), arguments.end());
  std::vector<std::string> environment = child_environment();
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_adddup2(&actions, its_in.get(), STDIN_FILENO);
  ::posix_spawn_file_actions_adddup2(&actions, its_out.get(), STDOUT_FILENO);
  const int error =
      ::posix_spawnp(&pid_, python_.c_str(), &actions, nullptr, pointers(args).data(), pointers(environment).data());
  ::posix_spawn_file_actions_destroy(&actions);
  if (error == 0) {
    if (most_memory) limit_memory(pid_, *most_memory);
    return;
  }
  pid_ = -1;
  throw ConfigError(
      fmt::format("cannot start {} for {}: {}; install Python with the modules that it needs, or set CONCORD_PYTHON to "
                  "a Python that has them",
                  python_, purpose, std::strerror(error)));
}

PythonProcess::~PythonProcess() {
  input_.reset();
  if (pid_ > 0) end_process(pid_);
}

}  // namespace concord
