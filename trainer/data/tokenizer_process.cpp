#include "trainer/data/tokenizer_process.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <utility>

#include "core/config_error.h"

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
      fmt::format("there is no tokenizer {}; give 'byte', a tokenizer.json, or a folder that holds one", file));
}

// Our environment; parallel work is several processes, so tokenizers' own threads would only be in each other's way.
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

void close_fd(int* fd) {
  if (*fd >= 0) ::close(std::exchange(*fd, -1));
}

}  // namespace

TokenizerProcess::TokenizerProcess(const std::string& path) : file_(tokenizer_file(path)) {
  const char* const python = std::getenv("CONCORD_PYTHON");
  python_ = python != nullptr && *python != '\0' ? python : "python3";
  start();
  try {
    read_greeting();
  } catch (...) {
    close_fd(&to_);
    close_fd(&from_);
    if (pid_ > 0) ::waitpid(pid_, nullptr, 0);
    throw;
  }
}

TokenizerProcess::~TokenizerProcess() {
  close_fd(&to_);  // it ends at the end of its input
  close_fd(&from_);
  if (pid_ > 0) ::waitpid(pid_, nullptr, 0);
}

void TokenizerProcess::start() {
  // Its input is a socket because writing to one that nobody reads can be an error instead of SIGPIPE.
  std::array<int, 2> in = {-1, -1}, out = {-1, -1};
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, in.data()) != 0 || ::pipe2(out.data(), O_CLOEXEC) != 0) {
    throw std::runtime_error(fmt::format("cannot make a pipe to {}: {}", python_, std::strerror(errno)));
  }
  std::vector<std::string> arguments = {python_, "-c", kScript, file_};
  for (const std::string_view token : kSpecialTokens) arguments.emplace_back(token);
  std::vector<std::string> environment = child_environment();
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_adddup2(&actions, in[1], STDIN_FILENO);
  ::posix_spawn_file_actions_adddup2(&actions, out[1], STDOUT_FILENO);
  const int error = ::posix_spawnp(&pid_, python_.c_str(), &actions, nullptr, pointers(arguments).data(),
                                   pointers(environment).data());
  ::posix_spawn_file_actions_destroy(&actions);
  ::close(in[1]);
  ::close(out[1]);
  to_ = in[0];
  from_ = out[0];
  if (error == 0) return;
  pid_ = -1;
  close_fd(&to_);
  close_fd(&from_);
  throw ConfigError(
      fmt::format("cannot start {} for the tokenizer {}: {}; install Python with its module tokenizers, or name it in "
                  "CONCORD_PYTHON",
                  python_, file_, std::strerror(error)));
}

void TokenizerProcess::fail(const std::string& what) {
  throw std::runtime_error(fmt::format("the tokenizer process ({}, pid {}) {}", python_, pid_, what));
}

void TokenizerProcess::send(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t sent = ::send(to_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0) fail(fmt::format("takes no more text: {}", std::strerror(errno)));
    bytes.remove_prefix(static_cast<size_t>(sent));
  }
}

void TokenizerProcess::receive(void* to, size_t count) {
  char* at = static_cast<char*>(to);
  while (count > 0) {
    const ssize_t got = ::read(from_, at, count);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail(fmt::format("cannot be read: {}", std::strerror(errno)));
    if (got == 0) fail("ended before its answer; what it printed stands above");
    at += got;
    count -= static_cast<size_t>(got);
  }
}

void TokenizerProcess::read_greeting() {
  constexpr size_t kLongest = 1 << 16;
  std::string line;
  for (char letter = 0; line.size() < kLongest; line += letter) {
    receive(&letter, 1);
    if (letter == '\n') break;
  }
  try {
    const nlohmann::json greeting = nlohmann::json::parse(line);
    if (greeting.contains("error")) throw ConfigError(greeting["error"].get<std::string>());
    vocab_size_ = greeting.at("vocab_size").get<int64_t>();
    specials_ = greeting.at("specials").get<decltype(specials_)>();
    if (!greeting.at("end_of_document").is_null()) end_of_document_ = greeting["end_of_document"].get<int64_t>();
  } catch (const nlohmann::json::exception& error) {
    fail(fmt::format("greeted with '{}', which is not understood: {}", line, error.what()));
  }
}

std::vector<std::vector<int64_t>> TokenizerProcess::encode(const std::vector<std::string_view>& texts, bool literal) {
  // All of the request is read before the answer is begun (see the script), so the two cannot wait for each other.
  std::string request = fmt::format("{} {}\n", texts.size(), literal ? 1 : 0);
  for (const std::string_view text : texts) {
    if (text.size() > std::numeric_limits<uint32_t>::max()) {
      throw ConfigError(
          fmt::format("a document of {} bytes is too long for the tokenizer: at most 4 GiB", text.size()));
    }
    const uint32_t bytes = static_cast<uint32_t>(text.size());
    request.append(reinterpret_cast<const char*>(&bytes), sizeof bytes).append(text);
  }
  send(request);
  std::vector<std::vector<int64_t>> encoded;
  std::vector<uint32_t> ids;
  for (size_t i = 0; i < texts.size(); ++i) {
    uint32_t count = 0;
    receive(&count, sizeof count);
    ids.resize(count);
    receive(ids.data(), count * sizeof(uint32_t));
    encoded.emplace_back(ids.begin(), ids.end());
  }
  return encoded;
}

std::optional<int64_t> TokenizerProcess::special(std::string_view token) const {
  const auto found = specials_.find(token);
  if (found == specials_.end()) return std::nullopt;
  return found->second;
}

}  // namespace concord
