#include "core/base/files/run_lock.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <pthread.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <nlohmann/json.hpp>
#include <utility>

#include "core/base/config_error.h"
#include "core/base/files/paths.h"
#include "core/base/parse_json.h"
#include "core/base/process_list.h"
#include "core/base/quoted.h"

namespace concord {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMaxLockBytes = 4096;
constexpr std::chrono::milliseconds kHolderWrites{10};  // from taking the lock until the holder's name is written
constexpr int kMaxReads = 100;

std::string lock_content(const UniqueFd& file) {
  std::string text(kMaxLockBytes, '\0');
  const ssize_t bytes = ::pread(file.get(), text.data(), text.size(), 0);
  text.resize(bytes > 0 ? static_cast<size_t>(bytes) : 0);
  return text;
}

UniqueFd open_lock_file(const fs::path& path, int flags) {
  UniqueFd file(::open(path.c_str(), flags | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0666));
  struct stat state{};
  if (file && ::fstat(file.get(), &state) == 0 && S_ISREG(state.st_mode)) return file;
  if (file) errno = EEXIST;
  return UniqueFd();
}

std::optional<LockHolder> parse_holder(const std::string& text) {
  const auto json = json_or_discarded(text);
  if (!json.is_object() || !json.contains("host") || !json.contains("pid") || !json.contains("job"))
    return std::nullopt;
  if (!json["host"].is_string() || !json["pid"].is_number_integer() || !json["job"].is_string()) return std::nullopt;
  LockHolder holder{json["host"].get<std::string>(), json["pid"].get<int64_t>(), json["job"].get<std::string>()};
  if (const auto launcher = json.find("launcher"); launcher != json.end() && launcher->is_array() &&
                                                   launcher->size() == 2 && (*launcher)[0].is_number_integer() &&
                                                   (*launcher)[1].is_number_unsigned()) {
    holder.launcher = (*launcher)[0].get<int64_t>();
    holder.launcher_started = (*launcher)[1].get<uint64_t>();
  }
  return holder;
}

// Returns the start time of process |pid| in clock ticks since boot; 0: the process has exited.
uint64_t start_of(int64_t pid) {
  ProcessEntry entry;
  const bool is_there = pid > 0 && parse_process_stat(read_process_file(static_cast<pid_t>(pid), "stat"), &entry);
  return is_there && entry.state != 'Z' ? entry.start_time : 0;
}

// Returns |holder| with the pid of its launcher, if the launcher is alive. |host|: name of this machine.
std::optional<LockHolder> live_launcher_of(LockHolder holder, const std::string& host) {
  if (holder.launcher_started == 0 || holder.host != host || start_of(holder.launcher) != holder.launcher_started)
    return std::nullopt;
  holder.pid = holder.launcher;
  return holder;
}

bool is_held(int error) { return error == EAGAIN || error == EACCES; }

// Opens the file for each check: only then does a network file system query its server.
bool is_beating(const fs::path& path, const std::string& text, const LockHolder& holder,
                const RunLockOptions& options) {
  constexpr int kLooksPerBeat = 5;
  if (options.on_watch) options.on_watch(holder);
  for (int look = 0; look < options.missed_beats * kLooksPerBeat; ++look) {
    std::this_thread::sleep_for(options.beat / kLooksPerBeat);
    const UniqueFd file = open_lock_file(path, O_RDONLY);
    if (!file) return false;  // the holder has deleted it
    const std::string now = lock_content(file);
    if (now != text && parse_holder(now)) return true;
  }
  return false;
}

// Returns the process that has locked |file|: -1 if it is on another machine, 0 if none. Sets errno if the file system
// has no locks.
int64_t locking_process(const UniqueFd& file) {
  struct flock whole{};
  whole.l_type = F_WRLCK;
  whole.l_whence = SEEK_SET;
  errno = 0;
  if (::fcntl(file.get(), F_GETLK, &whole) != 0 || whole.l_type == F_UNLCK) return 0;
  return whole.l_pid > 0 ? whole.l_pid : -1;  // on another machine
}

}  // namespace

void refuse_locked_folder(const fs::path& folder, const LockHolder& holder, const std::string& own_host) {
  const std::string elsewhere = holder.host == own_host ? ""
                                                        : fmt::format("; if that machine no longer runs it, delete {}",
                                                                      (folder / kRunLockFile).string());
  throw ConfigError(
      fmt::format("output folder {} is in use by process {} on {}; wait until it has ended, or choose another folder{}",
                  quoted(folder.string()), holder.pid, quoted(holder.host), elsewhere));
}

int lock_whole_file(int file) {
  struct flock whole{};
  whole.l_type = F_WRLCK;
  whole.l_whence = SEEK_SET;
  return ::fcntl(file, F_SETLK, &whole) == 0 ? 0 : errno;
}

std::string host_name() {
  char name[HOST_NAME_MAX + 1] = {};
  return ::gethostname(name, sizeof name - 1) == 0 ? name : "localhost";
}

RunLock::RunLock(fs::path folder, const std::string& job, RunLockOptions options)
    : folder_(std::move(folder)),
      path_(folder_ / kRunLockFile),
      own_{options.host, ::getpid(), job, options.launcher, start_of(options.launcher)},
      options_(std::move(options)) {
  std::string dead;  // file content that a dead holder has left
  for (int i = 0; !try_to_take(&dead, /*is_last=*/i == kMaxReads); ++i) {
  }
  if (!has_heartbeat_) {
    if (!is_holder_) file_.reset();
    return;
  }
  sigset_t all, before;  // signals are handled by other threads
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_BLOCK, &all, &before);
  thread_ = std::thread([this] { keep_heartbeat(); });
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

// Deletes the file while it is locked: a process that has opened it detects that it is no longer the file in the
// folder.
RunLock::~RunLock() {
  if (thread_.joinable()) {
    const std::unique_lock lock(mutex_);
    is_ending_ = true;
  }
  ended_.notify_all();
  if (thread_.joinable()) thread_.join();
  if (!is_holder_ || !is_in_place() || parse_holder(lock_content(file_)) != own_) return;
  if (own_.launcher_started != 0 && std::uncaught_exceptions() > 0) return;  // the next attempt takes it over
  ::unlink(path_.c_str());
  file_.reset();
  std::error_code ignored;
  if (is_new_folder_) fs::remove(folder_, ignored);  // if nothing was written there
}

// Returns whether the lock is held or shared. False: retry, because files have changed or the holder may be dead; its
// file content is then stored in |dead|.
bool RunLock::try_to_take(std::string* dead, bool is_last) {
  std::error_code error;
  is_new_folder_ |= fs::create_directories(folder_, error);
  if (error) throw ConfigError(fmt::format("cannot create folder {}: {}", quoted(folder_.string()), error.message()));
  file_ = open_lock_file(path_, O_RDWR | O_CREAT);
  if (!file_ && errno == ENOENT) return false;
  if (!file_) {
    throw ConfigError(fmt::format("cannot lock the output folder: {}: {}; choose another folder, or move it away",
                                  path_.string(), std::strerror(errno)));
  }
  const int code = options_.lock(file_.get());
  has_locks_ = code == 0 || is_held(code);
  has_heartbeat_ = options_.has_heartbeat.value_or(!has_locks_ || is_on_network(folder_));
  if (code == 0 && !is_in_place()) return false;
  const std::string text = lock_content(file_);
  const std::optional<LockHolder> holder = parse_holder(text);
  if (!holder && is_held(code) && !is_last) {  // the holder is about to write its name
    std::this_thread::sleep_for(kHolderWrites);
    return false;
  }
  if (!holder && !is_held(code) && !text.empty()) {
    throw ConfigError(
        fmt::format("{} is not a lock of Concord; choose another output folder, or move it away", path_.string()));
  }
  if (holder && is_same_job(*holder)) {
    if (code == 0) take();
    return true;
  }
  if (is_held(code))
    refuse_locked_folder(folder_, holder.value_or(LockHolder{own_.host, locking_process(file_), ""}), own_.host);
  const std::optional<LockHolder> launcher = holder ? live_launcher_of(*holder, own_.host) : std::nullopt;
  if (launcher) refuse_locked_folder(folder_, *launcher, own_.host);
  const bool may_live = holder && (!has_locks_ || (is_on_network(folder_) && holder->host != own_.host));
  if (may_live && text != *dead) {
    file_.reset();
    if (is_beating(path_, text, *holder, options_)) refuse_locked_folder(folder_, *holder, own_.host);
    *dead = text;
    return false;
  }
  take();
  return true;
}

bool RunLock::is_same_job(const LockHolder& holder) const {
  const bool has_same_launcher = own_.launcher_started != 0 && holder.host == own_.host &&
                                 holder.launcher == own_.launcher && holder.launcher_started == own_.launcher_started;
  return has_same_launcher || (options_.shares && !own_.job.empty() && holder.job == own_.job);
}

void RunLock::take() {
  is_holder_ = true;
  write_holder();
  if (has_locks_) return;
  // If several processes write at the same time, the last one has the lock.
  std::this_thread::sleep_for(options_.beat / 5);
  const UniqueFd file = open_lock_file(path_, O_RDONLY);
  const std::optional<LockHolder> holder = file ? parse_holder(lock_content(file)) : std::nullopt;
  if (holder && holder != own_) refuse_locked_folder(folder_, *holder, own_.host);
}

void RunLock::write_holder() {
  nlohmann::ordered_json json = {{"host", own_.host}, {"pid", own_.pid}, {"job", own_.job}, {"beats", ++beats_}};
  if (own_.launcher_started != 0) json["launcher"] = {own_.launcher, own_.launcher_started};
  const std::string text = json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
  // A failed write (full disk) costs one heartbeat; the kernel's lock is still held.
  if (::pwrite(file_.get(), text.data(), text.size(), 0) == static_cast<ssize_t>(text.size()) &&
      ::ftruncate(file_.get(), static_cast<off_t>(text.size())) == 0 && has_heartbeat_) {
    ::fdatasync(file_.get());  // makes it visible on other machines
  }
}

void RunLock::keep_heartbeat() {
  std::string last;
  int missed = 0;
  std::unique_lock lock(mutex_);
  while (!ended_.wait_for(lock, options_.beat, [&] { return is_ending_; })) {
    if (!is_holder_) {  // another process of the same job is, and may have exited
      const std::string text = lock_content(file_);
      missed = text == std::exchange(last, text) ? missed + 1 : 0;
      is_holder_ = options_.lock(file_.get()) == 0 || missed >= options_.missed_beats;
    }
    if (is_holder_) write_holder();
  }
}

bool RunLock::is_in_place() const {
  struct stat opened{}, named{};
  return ::fstat(file_.get(), &opened) == 0 && ::lstat(path_.c_str(), &named) == 0 && opened.st_dev == named.st_dev &&
         opened.st_ino == named.st_ino;
}

std::optional<LockHolder> live_holder_of(const fs::path& folder, const RunLockOptions& options) {
  const UniqueFd file = open_lock_file(folder / kRunLockFile, O_RDONLY);
  const std::string text = file ? lock_content(file) : "";
  const std::optional<LockHolder> holder = parse_holder(text);
  const char* const job = std::getenv(kRunLockVariable);
  if (!holder || (job != nullptr && !holder->job.empty() && holder->job == job)) return std::nullopt;
  if (locking_process(file) != 0) return holder;
  const bool has_locks = errno == 0;
  if (const auto launcher = live_launcher_of(*holder, options.host)) return launcher;
  const bool may_live = !has_locks || (is_on_network(folder) && holder->host != options.host);
  return may_live && is_beating(folder / kRunLockFile, text, *holder, options) ? holder : std::nullopt;
}

std::optional<LockHolder> live_run_around(const fs::path& path) {
  std::error_code error;
  fs::path folder = fs::weakly_canonical(fs::absolute(path, error), error);
  for (;; folder = folder.parent_path()) {
    if (const std::optional<LockHolder> holder = live_holder_of(folder)) return holder;
    if (folder.empty() || folder == folder.root_path()) return std::nullopt;
  }
}

}  // namespace concord
