#include "core/launch/processes/session_guard.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "core/base/process_list.h"
#include "core/launch/processes/pipe.h"
#include "core/launch/processes/process_start.h"

namespace concord {
namespace {

constexpr int kRelease = -1;  // instead of a slot: the launcher is done and has left nothing

constexpr int kMaxLooks = 5000;  // at a guard that was let go, one per millisecond; it has nothing left to do

struct Message {  // shorter than PIPE_BUF, so writes are atomic
  int slot;
  pid_t session;  // 0: forget
};

void send(int fd, const Message& message) {
  // A dead guard is no reason to stop a job: the kernel still kills the ranks with the launcher.
  while (::write(fd, &message, sizeof message) < 0 && errno == EINTR) {
  }
}

struct Wards {
  std::vector<pid_t> sessions;  // by slot; 0: none
  std::string launch_id;
  std::string folder;
};

// Only that variable: a job is called after its first leader, and ranks of other launchers have its name in others.
bool names_launch(const std::string& variables, const std::string& launch_id) {
  const std::string key = std::string(kLaunchId) + "=";
  for (size_t begin = 0; begin < variables.size();) {
    const size_t end = std::min(variables.find('\0', begin), variables.size());
    const std::string_view variable(variables.data() + begin, end - begin);
    if (variable.starts_with(key) && variable.find(launch_id) != std::string_view::npos) return true;
    begin = end + 1;
  }
  return false;
}

bool is_ward(const Wards& wards, const ProcessEntry& entry) {
  const auto& sessions = wards.sessions;
  if (std::find(sessions.begin(), sessions.end(), entry.session) != sessions.end()) return true;
  return names_launch(read_process_file(entry.pid, "environ"), wards.launch_id);
}

// True if any of them was still running.
bool kill_wards(const Wards& wards) {
  bool found = false;
  for (const ProcessEntry& entry : list_processes()) {
    if (entry.state == 'Z' || !is_ward(wards, entry)) continue;
    found = true;
    ::kill(entry.pid, SIGKILL);
  }
  return found;
}

[[noreturn]] void guard_main(int pipe_fd, Wards* wards) {
  ::setsid();  // all signals stay blocked: the guard exits with the launcher, not before
  ::prctl(PR_SET_NAME, "concord-guard");
  // Keeps no descriptor of the launcher: readers of its output must see end-of-file.
  ::dup2(pipe_fd, 0);
  if (::close_range(1, ~0U, 0) != 0) {
    for (int fd = 1; fd < 65536; ++fd) ::close(fd);
  }
  Message messages[64];
  for (;;) {
    const ssize_t length = ::read(0, messages, sizeof messages);
    if (length < 0 && errno == EINTR) continue;
    if (length <= 0) break;
    for (size_t i = 0; i < static_cast<size_t>(length) / sizeof(Message); ++i) {
      if (messages[i].slot == kRelease) ::_exit(0);
      wards->sessions[static_cast<size_t>(messages[i].slot)] = messages[i].session;
    }
  }
  std::erase(wards->sessions, 0);
  // Not a snapshot: a listed process may fork and exit before it is examined, and then its child is not on the list. So
  // only several consecutive scans that find nothing are conclusive.
  for (int pass = 0, clean = 0; pass < 200 && clean < 3; ++pass) {
    clean = kill_wards(*wards) ? 0 : clean + 1;
    ::usleep(10'000);
  }
  std::error_code ignored;
  if (!wards->folder.empty()) std::filesystem::remove_all(wards->folder, ignored);
  ::_exit(0);
}

}  // namespace

SessionGuard::SessionGuard(int slots, const std::string& launch_id, const std::string& folder) {
  Pipe pipe = make_pipe();
  Wards wards{std::vector<pid_t>(static_cast<size_t>(slots), 0), launch_id, folder};
  pid_ = fork_with_signals_blocked();
  if (pid_ < 0) throw std::system_error(errno, std::generic_category(), "cannot start the guard process");
  if (pid_ == 0) guard_main(pipe.read.get(), &wards);
  pipe_ = std::move(pipe.write);
}

SessionGuard::~SessionGuard() {
  send(pipe_.get(), {kRelease, 0});
  pipe_.reset();
  for (int looks = 0; ::waitpid(pid_, nullptr, WNOHANG) == 0; ++looks) {
    if (is_stopped(pid_) || looks == kMaxLooks) ::kill(pid_, SIGKILL);
    ::usleep(1000);
  }
}

void SessionGuard::enter(int guard_fd, int slot) { send(guard_fd, {slot, ::getpid()}); }

void SessionGuard::adopt(int slot, pid_t session) { send(pipe_.get(), {slot, session}); }

void SessionGuard::forget(int slot) { send(pipe_.get(), {slot, 0}); }

}  // namespace concord
