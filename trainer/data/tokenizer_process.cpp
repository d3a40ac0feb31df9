#include "trainer/data/tokenizer_process.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <stdexcept>
#include <thread>
#include <utility>

#include "core/config_error.h"
#include "core/quoted.h"

extern char** environ;

namespace concord {
namespace {

constexpr const char* kScript =
#include "tokenizer_script.inc"
    ;

std::string tokenizer_file(const std::string& path) {
  namespace fs = std::filesystem;
  std::error_code ignored;
  const std::string file = fs::is_directory(path, ignored) ? (fs::path(path) / "tokenizer.json").string() : path;
  if (fs::is_regular_file(file, ignored)) return file;
  throw ConfigError(
      fmt::format("tokenizer {} not found; use 'byte', a tokenizer.json, or a folder that contains one", file));
}

// Our environment; we parallelize over processes, so the tokenizer's own threads would only compete with each other.
std::vector<std::string> child_environment() {
  std::vector<std::string> variables = {"TOKENIZERS_PARALLELISM=false"};
  for (char** variable = environ; *variable != nullptr; ++variable) {
    if (std::string_view(*variable).starts_with("TOKENIZERS_PARALLELISM=")) continue;
    variables.emplace_back(*variable);
  }
  return variables;
}

std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> list;
  for (std::string& text : texts) list.push_back(text.data());
  list.push_back(nullptr);
  return list;
}

// How long the process may be silent. HF's module is imported within seconds, even from a slow disk.
std::chrono::milliseconds patience() {
  constexpr double kSeconds = 120, kMost = 1e6;
  const char* const given = std::getenv("CONCORD_TOKENIZER_TIMEOUT");
  if (given == nullptr || *given == '\0') return std::chrono::milliseconds(static_cast<int64_t>(kSeconds * 1000));
  char* end = nullptr;
  const double seconds = std::strtod(given, &end);
  if (*end != '\0' || !(seconds > 0 && seconds <= kMost)) {
    throw ConfigError(fmt::format("CONCORD_TOKENIZER_TIMEOUT is {}; must be a number of seconds > 0 and <= {:g}",
                                  quoted(given), kMost));
  }
  return std::chrono::milliseconds(static_cast<int64_t>(std::ceil(seconds * 1000)));
}

// Waits briefly for |pid|, whose input has ended, to exit; kills it otherwise.
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

TokenizerProcess::TokenizerProcess(const std::string& path) : file_(tokenizer_file(path)) {
  const char* const python = std::getenv("CONCORD_PYTHON");
  python_ = python != nullptr && *python != '\0' ? python : "python3";
  start();
  try {
    greeting_ = pipe_->read_greeting();
  } catch (...) {
    stop();
    throw;
  }
}

TokenizerProcess::~TokenizerProcess() { stop(); }

void TokenizerProcess::stop() {
  pipe_.reset();
  end_process(pid_);
}

void TokenizerProcess::start() {
  const std::chrono::milliseconds silence = patience();
  // Its input is a socket because writing to one without a reader can be an error instead of SIGPIPE.
  std::array<int, 2> ends = {-1, -1};
  const bool has_in = ::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) == 0;
  UniqueFd in(ends[0]), its_in(ends[1]);
  ends = {-1, -1};
  const bool has_out = has_in && ::pipe2(ends.data(), O_CLOEXEC) == 0;
  UniqueFd out(ends[0]), its_out(ends[1]);
  if (!has_out) {
    throw std::runtime_error(fmt::format("cannot create a pipe to {}: {}", python_, std::strerror(errno)));
  }
  std::vector<std::string> arguments = {python_, "-c", kScript, file_};
  for (const std::string_view token : kSpecialTokens) arguments.emplace_back(token);
  std::vector<std::string> environment = child_environment();
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_adddup2(&actions, its_in.get(), STDIN_FILENO);
  ::posix_spawn_file_actions_adddup2(&actions, its_out.get(), STDOUT_FILENO);
  const int error = ::posix_spawnp(&pid_, python_.c_str(), &actions, nullptr, pointers(arguments).data(),
                                   pointers(environment).data());
  ::posix_spawn_file_actions_destroy(&actions);
  its_in.reset();
  its_out.reset();
  pipe_ = std::make_unique<TokenizerPipe>(
      std::move(in), std::move(out), fmt::format("the tokenizer process ({}, pid {})", python_, error == 0 ? pid_ : 0),
      silence);
  if (error == 0) return;
  pipe_.reset();
  throw ConfigError(
      fmt::format("cannot start {} for the tokenizer {}: {}; install Python with the module tokenizers, or set "
                  "CONCORD_PYTHON to a Python that has it",
                  python_, file_, std::strerror(error)));
}

std::vector<std::vector<int64_t>> TokenizerProcess::encode(const std::vector<std::string_view>& texts, bool literal) {
  return pipe_->encode(texts, literal);
}

std::optional<int64_t> TokenizerProcess::special(std::string_view token) const {
  const auto found = greeting_.specials.find(token);
  if (found == greeting_.specials.end()) return std::nullopt;
  return found->second;
}

}  // namespace concord
