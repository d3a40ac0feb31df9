#include "tests/processes/running_process.h"

#include <dirent.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>

#include "tests/processes/preloaded_program.h"

namespace concord::testing_processes {
namespace {

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

bool is_zombie(const std::string& pid) {
  const std::string stat = read_file("/proc/" + pid + "/stat");
  const size_t close = stat.rfind(')');
  return close == std::string::npos || (close + 2 < stat.size() && stat[close + 2] == 'Z');
}

int count(const std::string& text, const std::string& part) {
  int found = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + part.size())) ++found;
  return found;
}

// Returns this process's environment, with the entries of |more| replacing those of the same name.
std::vector<std::string> whole_environment(const std::vector<std::string>& more) {
  std::vector<std::string> all;
  for (char** entry = environ; *entry != nullptr; ++entry) all.emplace_back(*entry);
  for (const std::string& entry : more) {
    const std::string name = entry.substr(0, entry.find('=') + 1);
    std::erase_if(all, [&](const std::string& each) { return each.starts_with(name); });
    all.push_back(entry);
  }
  return all;
}

pid_t start(const std::vector<std::string>& command, const std::vector<std::string>& environment,
            const PreloadedStreams& streams, bool ignore_hangup) {
  const std::vector<char*> arguments = exec_args(command), variables = exec_args(environment);
  const pid_t pid = fork();
  if (pid != 0) return pid;
  dup2(streams.in, 0);
  dup2(streams.out, 1);
  dup2(streams.err, 2);
  ::signal(SIGHUP, ignore_hangup ? SIG_IGN : SIG_DFL);
  execve(arguments[0], arguments.data(), variables.data());
  _exit(127);
}

}  // namespace

RunningProcess::RunningProcess(const std::vector<std::string>& command, const ProcessSettings& settings) {
  int in[2];
  int out[2];
  int err[2];
  if (pipe2(in, O_CLOEXEC) != 0 || pipe2(out, O_CLOEXEC) != 0 || pipe2(err, O_CLOEXEC) != 0) std::abort();
  const std::vector<std::string> environment = whole_environment(settings.environment);
  const PreloadedStreams streams{in[0], out[1], err[1]};
  const std::optional<pid_t> forked = start_preloaded(command, environment, streams, settings.ignore_hangup);
  pid_ = forked ? *forked : start(command, environment, streams, settings.ignore_hangup);
  close(in[0]);
  close(out[1]);
  close(err[1]);
  out_fd_ = out[0];
  err_fd_ = err[0];
  if (write(in[1], settings.input.data(), settings.input.size()) < 0) ADD_FAILURE() << "cannot write its input";
  close(in[1]);
  if (settings.read_output) start_reading();
}

RunningProcess::~RunningProcess() {
  if (!has_ended()) {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  close_output();
  for (std::thread& reader : readers_) reader.join();
}

void RunningProcess::signal(int signal) const { EXPECT_EQ(kill(pid_, signal), 0) << strerror(errno); }

void RunningProcess::start_reading() {
  open_streams_ = 2;
  readers_.emplace_back([this, fd = std::exchange(out_fd_, -1)] { read_all(fd, &out_); });
  readers_.emplace_back([this, fd = std::exchange(err_fd_, -1)] { read_all(fd, &err_); });
}

void RunningProcess::close_output() {
  if (out_fd_ >= 0) close(std::exchange(out_fd_, -1));
  if (err_fd_ >= 0) close(std::exchange(err_fd_, -1));
}

void RunningProcess::read_all(int fd, std::string* text) {
  char buffer[65536];
  for (;;) {
    const ssize_t length = read(fd, buffer, sizeof buffer);
    const std::lock_guard lock(mutex_);
    if (length <= 0) break;
    text->append(buffer, static_cast<size_t>(length));
    changed_.notify_all();
  }
  close(fd);
  const std::lock_guard lock(mutex_);
  --open_streams_;
  changed_.notify_all();
}

bool RunningProcess::wait_for_text(const std::string& text, int times) {
  std::unique_lock lock(mutex_);
  const bool found = changed_.wait_for(lock, kHang, [&] { return count(out_, text) + count(err_, text) >= times; });
  if (!found) ADD_FAILURE() << "no '" << text << "' in:\n" << out_ << "\nnor in:\n" << err_;
  return found;
}

bool RunningProcess::has_ended() {
  if (!ended_) ended_ = waitpid(pid_, &status_, WNOHANG) == pid_;
  return ended_;
}

int RunningProcess::wait() {
  if (!poll_until([&] { return has_ended(); })) {
    ADD_FAILURE() << "process " << pid_ << " did not end; it wrote:\n" << out() << "\nand:\n" << err();
    return -1;
  }
  std::unique_lock lock(mutex_);
  if (!changed_.wait_for(lock, kHang, [&] { return open_streams_ == 0; })) ADD_FAILURE() << "its output is still open";
  return status_;
}

std::string RunningProcess::out() const {
  const std::lock_guard lock(mutex_);
  return out_;
}

std::string RunningProcess::err() const {
  const std::lock_guard lock(mutex_);
  return err_;
}

std::vector<std::string> RunningProcess::out_lines() const {
  std::vector<std::string> lines;
  std::istringstream text(out());
  for (std::string line; std::getline(text, line);) lines.push_back(line);
  return lines;
}

std::string find_program(const std::string& name) {
  const char* path = std::getenv("PATH");
  std::stringstream folders(path == nullptr ? "" : path);
  for (std::string folder; std::getline(folders, folder, ':');) {
    const std::string file = folder + "/" + name;
    if (::access(file.c_str(), X_OK) == 0) return file;
  }
  return "";
}

std::string command_line(pid_t pid) { return read_file("/proc/" + std::to_string(pid) + "/cmdline"); }

std::vector<pid_t> processes_with(const std::string& marker) {
  std::vector<pid_t> found;
  DIR* folder = opendir("/proc");
  while (const dirent* item = readdir(folder)) {
    if (item->d_name[0] < '1' || item->d_name[0] > '9') continue;
    const std::string pid = item->d_name;
    if (read_file("/proc/" + pid + "/cmdline").find(marker) == std::string::npos || is_zombie(pid)) continue;
    found.push_back(std::stoi(pid));
  }
  closedir(folder);
  return found;
}

bool all_gone(const std::string& marker) {
  return poll_until([&] { return processes_with(marker).empty(); });
}

bool is_gone(pid_t pid) {
  return poll_until([&] { return kill(pid, 0) != 0 && errno == ESRCH; });
}

std::string unique_marker() {
  static std::atomic<int> next{0};
  return "marker-" + std::to_string(getpid()) + "-" + std::to_string(next++) + "-end";
}

}  // namespace concord::testing_processes
