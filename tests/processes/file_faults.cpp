// A library for LD_PRELOAD that logs a program's calls on files whose path begins with FILE_FAULTS_UNDER, and makes one
// of these calls fail.
//
//   FILE_FAULTS_UNDER   the prefix, absolute
//   FILE_FAULTS_NAME    only files with this name; default: all
//   FILE_FAULTS_LOG     a file: a line per call, appended after it has returned (a rename: before it):
//                       pid, RANK, call, path, detail (bytes, new name), separated by tabs; a call that is made to fail
//                       is logged before it, with the detail "strike"
//   FILE_FAULTS_CALLS   kinds that are counted and made to fail, comma-separated: open (for writing), write, allocate,
//                       sync, rename, mkdir, unlink, read (opens and reads); default: all except read
//   FILE_FAULTS_RANK    only in the process with this RANK; default: in all
//   FILE_FAULTS_ACTION  kill: SIGKILL at call FILE_FAULTS_AT, before it, after it or, for a write, in the middle of it
//                       (FILE_FAULTS_SIGNAL: number of a signal to use instead)
//                       no-space: ENOSPC starting at call AT, for calls that need space; no-space-once: at AT only
//                       io-error: EIO at AT only
//                       short: every write writes a random part
//                       delay: every call takes up to 2 ms longer
//   FILE_FAULTS_AT      starting at 1, counted per process
//   FILE_FAULTS_SEED    of the random choices
//
// Calls inside libc itself (fclose's write) are not intercepted; the program under test has none of them where it
// saves.
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <climits>
#include <csignal>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

namespace {

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : "";
}

enum class Action { none, kill, no_space, no_space_once, io_error, short_writes, delay };

Action parse_action(const std::string& text) {
  if (text == "kill") return Action::kill;
  if (text == "no-space") return Action::no_space;
  if (text == "no-space-once") return Action::no_space_once;
  if (text == "io-error") return Action::io_error;
  if (text == "short") return Action::short_writes;
  if (text == "delay") return Action::delay;
  return Action::none;
}

struct Settings {
  std::string under = variable("FILE_FAULTS_UNDER");
  std::string name = variable("FILE_FAULTS_NAME");
  std::string log = variable("FILE_FAULTS_LOG");
  std::string calls = variable("FILE_FAULTS_CALLS");
  Action action = parse_action(variable("FILE_FAULTS_ACTION"));
  int64_t at = std::atoll(variable("FILE_FAULTS_AT").c_str());
  uint64_t seed = std::strtoull(variable("FILE_FAULTS_SEED").c_str(), nullptr, 10);
  int signal = variable("FILE_FAULTS_SIGNAL").empty() ? SIGKILL : std::atoi(variable("FILE_FAULTS_SIGNAL").c_str());
  bool is_its_rank = variable("FILE_FAULTS_RANK").empty() || variable("FILE_FAULTS_RANK") == variable("RANK");

  bool counts(const std::string& kind) const {
    return calls.empty() ? kind != "read" : ("," + calls + ",").find("," + kind + ",") != std::string::npos;
  }
};

// Never destroyed: files are closed and removed until the end of the process.
const Settings*& current_settings() {
  static const Settings* value = new Settings;
  return value;
}
const Settings& settings() { return *current_settings(); }

std::atomic<int64_t> calls_made{0};

// splitmix64 of the seed and a number that differs per call.
uint64_t random_number(uint64_t call) {
  uint64_t z = settings().seed + (call + 1) * 0x9e3779b97f4a7c15;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  return z ^ (z >> 31);
}

std::string link_target(const std::string& link) {
  char text[PATH_MAX];
  const ssize_t size = ::readlink(link.c_str(), text, sizeof text);
  return size > 0 ? std::string(text, static_cast<size_t>(size)) : "";
}
std::string path_of(int fd) { return link_target("/proc/self/fd/" + std::to_string(fd)); }
std::string path_at(int folder, const char* path) {
  if (path == nullptr) return "";
  if (path[0] == '/') return path;
  return (folder == AT_FDCWD ? link_target("/proc/self/cwd") : path_of(folder)) + "/" + path;
}

// One intercepted call.
class Call {
 public:
  Call(const char* kind, const char* name, std::string path) : name_(name), path_(std::move(path)) {
    const Settings& s = settings();
    watched_ = !s.under.empty() && path_.starts_with(s.under) && (s.name.empty() || path_.ends_with("/" + s.name));
    if (!watched_ || !s.is_its_rank || !s.counts(kind)) return;
    number_ = ++calls_made;
    if (s.action == Action::delay) ::usleep(static_cast<useconds_t>(random() % 2000));
    const bool needs_space = std::strcmp(kind, "unlink") != 0 && std::strcmp(kind, "read") != 0;
    struck_ = s.action == Action::no_space ? needs_space && number_ >= s.at : s.at > 0 && number_ == s.at;
    if (s.action == Action::no_space_once) struck_ = struck_ && needs_space;
    if (struck_) log("strike");
    if (struck_ && s.action == Action::kill && random() % 3 == 0) send_signal();
  }

  // Returns the error to return instead of making the call; 0 if none.
  int error() const {
    if (!struck_) return 0;
    const Action action = settings().action;
    if (action == Action::no_space || action == Action::no_space_once) return ENOSPC;
    return action == Action::io_error ? EIO : 0;
  }
  // Returns how many of |bytes| to write.
  size_t part(size_t bytes) const {
    const bool cuts = number_ > 0 && (settings().action == Action::short_writes ||
                                      (struck_ && settings().action == Action::kill && random() % 3 == 1));
    return cuts && bytes > 1 ? 1 + random() / 3 % bytes : bytes;
  }
  // Call after the intercepted call has returned.
  void finish(const std::string& detail = "") {
    const int saved = errno;
    if (struck_ && settings().action == Action::kill && random() % 3 != 0) send_signal();
    if (watched_) log(detail);
    errno = saved;
  }

  // Uses system calls directly, since other libraries may intercept libc too.
  void log(const std::string& detail) const {
    if (!watched_ || settings().log.empty()) return;
    const std::string line =
        std::to_string(::getpid()) + "\t" + variable("RANK") + "\t" + name_ + "\t" + path_ + "\t" + detail + "\n";
    const auto fd =
        ::syscall(SYS_openat, AT_FDCWD, settings().log.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if (fd < 0) return;
    ::syscall(SYS_write, fd, line.data(), line.size());
    ::syscall(SYS_close, fd);
  }

 private:
  uint64_t random() const { return random_number(static_cast<uint64_t>(number_)); }
  static void send_signal() {
    ::kill(::getpid(), settings().signal);
    while (settings().signal == SIGKILL) ::pause();
  }

  const char* name_;
  std::string path_;
  bool watched_ = false;
  bool struck_ = false;
  int64_t number_ = 0;  // 0: not counted
};

// Makes |call|, unless it should fail.
template <class Body>
auto made(Call call, Body body, const std::string& detail = "") -> decltype(body()) {
  if (const int error = call.error()) {
    errno = error;
    return static_cast<decltype(body())>(-1);
  }
  const auto result = body();
  call.finish(detail);
  return result;
}

bool is_for_writing(int flags) { return (flags & O_ACCMODE) != O_RDONLY || (flags & (O_CREAT | O_TRUNC)) != 0; }

template <class Body>
int made_open(int folder, const char* path, int flags, Body body) {
  const int saved = errno;
  Call call(is_for_writing(flags) ? "open" : "read", is_for_writing(flags) ? "create" : "open", path_at(folder, path));
  errno = saved;
  return made(std::move(call), body);
}

template <class Body>
ssize_t made_write(int fd, size_t bytes, Body body) {
  Call call("write", "write", path_of(fd));
  const size_t part = call.part(bytes);
  return made(std::move(call), [&] { return body(part); }, std::to_string(part));
}

// Writes the first part of the pieces, like a short write.
template <class Body>
ssize_t made_writev(int fd, const iovec* pieces, int count, Body body) {
  size_t bytes = 0;
  for (int i = 0; i < count; ++i) bytes += pieces[i].iov_len;
  return made_write(fd, bytes, [&](size_t part) -> ssize_t {
    if (part == bytes) return body(pieces, count);
    iovec first = *std::find_if(pieces, pieces + count, [](const iovec& piece) { return piece.iov_len > 0; });
    first.iov_len = std::min(first.iov_len, part);
    return body(&first, 1);
  });
}

int made_rename(int from_folder, const char* from, int to_folder, const char* to, const std::string& name,
                int (*body)(int, const char*, int, const char*, unsigned), unsigned flags) {
  Call call("rename", name.c_str(), path_at(from_folder, from));
  if (call.error() == 0) call.log(path_at(to_folder, to));
  return made(std::move(call), [&] { return body(from_folder, from, to_folder, to, flags); }, "done");
}
int rename_by_kernel(int from_folder, const char* from, int to_folder, const char* to, unsigned flags) {
  static const auto real = reinterpret_cast<long (*)(long, ...)>(dlsym(RTLD_NEXT, "syscall"));
  return static_cast<int>(real(SYS_renameat2, from_folder, from, to_folder, to, flags));
}

}  // namespace

#define REAL(name) static const auto real = reinterpret_cast<decltype(&::name)>(dlsym(RTLD_NEXT, #name))
#define MODE_OF(flags)                                                  \
  mode_t mode = 0;                                                      \
  if (((flags) & O_CREAT) != 0 || ((flags) & O_TMPFILE) == O_TMPFILE) { \
    va_list arguments;                                                  \
    va_start(arguments, flags);                                         \
    mode = static_cast<mode_t>(va_arg(arguments, int));                 \
    va_end(arguments);                                                  \
  }

extern "C" {

// Resets the state like execve: called by preloaded.cpp in a forked process, with its own environment.
void reload_variables() {
  current_settings() = new Settings;
  calls_made = 0;
}

#define DEFINE_OPEN(name)                                                             \
  int name(const char* path, int flags, ...) {                                        \
    MODE_OF(flags)                                                                    \
    REAL(name);                                                                       \
    return made_open(AT_FDCWD, path, flags, [&] { return real(path, flags, mode); }); \
  }
DEFINE_OPEN(open)
DEFINE_OPEN(open64)

#define DEFINE_OPENAT(name)                                                                 \
  int name(int folder, const char* path, int flags, ...) {                                  \
    MODE_OF(flags)                                                                          \
    REAL(name);                                                                             \
    return made_open(folder, path, flags, [&] { return real(folder, path, flags, mode); }); \
  }
DEFINE_OPENAT(openat)
DEFINE_OPENAT(openat64)

// Replacements for calls without a mode if the compiler checks them (fortify).
int __open_2(const char* path, int flags) { return open(path, flags); }
int __open64_2(const char* path, int flags) { return open64(path, flags); }
int __openat_2(int folder, const char* path, int flags) { return openat(folder, path, flags); }
int __openat64_2(int folder, const char* path, int flags) { return openat64(folder, path, flags); }

int creat(const char* path, mode_t mode) { return open(path, O_CREAT | O_WRONLY | O_TRUNC, mode); }

// libstdc++'s streams open files with it, and write with write() and writev().
#define DEFINE_FOPEN(name)                                                              \
  FILE* name(const char* path, const char* mode) {                                      \
    REAL(name);                                                                         \
    FILE* file = nullptr;                                                               \
    made_open(AT_FDCWD, path, std::strpbrk(mode, "wa+") != nullptr ? O_RDWR : O_RDONLY, \
              [&] { return (file = real(path, mode)) != nullptr ? 0 : -1; });           \
    return file;                                                                        \
  }
DEFINE_FOPEN(fopen)
DEFINE_FOPEN(fopen64)

ssize_t write(int fd, const void* data, size_t bytes) {
  REAL(write);
  return made_write(fd, bytes, [&](size_t part) { return real(fd, data, part); });
}
ssize_t pwrite(int fd, const void* data, size_t bytes, off_t place) {
  REAL(pwrite);
  return made_write(fd, bytes, [&](size_t part) { return real(fd, data, part, place); });
}
ssize_t pwrite64(int fd, const void* data, size_t bytes, off64_t place) {
  REAL(pwrite64);
  return made_write(fd, bytes, [&](size_t part) { return real(fd, data, part, place); });
}
ssize_t writev(int fd, const iovec* pieces, int count) {
  REAL(writev);
  return made_writev(fd, pieces, count, [&](const iovec* some, int number) { return real(fd, some, number); });
}
ssize_t pwritev(int fd, const iovec* pieces, int count, off_t place) {
  REAL(pwritev);
  return made_writev(fd, pieces, count, [&](const iovec* some, int number) { return real(fd, some, number, place); });
}
ssize_t pwritev64(int fd, const iovec* pieces, int count, off64_t place) {
  REAL(pwritev64);
  return made_writev(fd, pieces, count, [&](const iovec* some, int number) { return real(fd, some, number, place); });
}

ssize_t read(int fd, void* data, size_t bytes) {
  REAL(read);
  return made({"read", "read", path_of(fd)}, [&] { return real(fd, data, bytes); });
}
ssize_t pread(int fd, void* data, size_t bytes, off_t place) {
  REAL(pread);
  return made({"read", "read", path_of(fd)}, [&] { return real(fd, data, bytes, place); });
}
ssize_t pread64(int fd, void* data, size_t bytes, off64_t place) {
  REAL(pread64);
  return made({"read", "read", path_of(fd)}, [&] { return real(fd, data, bytes, place); });
}

int fallocate(int fd, int mode, off_t place, off_t bytes) {
  REAL(fallocate);
  return made({"allocate", "fallocate", path_of(fd)}, [&] { return real(fd, mode, place, bytes); });
}
int fallocate64(int fd, int mode, off64_t place, off64_t bytes) {
  REAL(fallocate64);
  return made({"allocate", "fallocate", path_of(fd)}, [&] { return real(fd, mode, place, bytes); });
}
// Returns an error code instead of setting errno.
int posix_fallocate(int fd, off_t place, off_t bytes) {
  REAL(posix_fallocate);
  const int code = made({"allocate", "fallocate", path_of(fd)}, [&] { return real(fd, place, bytes); });
  return code == -1 ? errno : code;
}
int ftruncate(int fd, off_t bytes) {
  REAL(ftruncate);
  return made({"allocate", "ftruncate", path_of(fd)}, [&] { return real(fd, bytes); });
}
int ftruncate64(int fd, off64_t bytes) {
  REAL(ftruncate64);
  return made({"allocate", "ftruncate", path_of(fd)}, [&] { return real(fd, bytes); });
}

int fsync(int fd) {
  REAL(fsync);
  return made({"sync", "fsync", path_of(fd)}, [&] { return real(fd); });
}
int fdatasync(int fd) {
  REAL(fdatasync);
  return made({"sync", "fsync", path_of(fd)}, [&] { return real(fd); });
}

int rename(const char* from, const char* to) noexcept {
  return made_rename(AT_FDCWD, from, AT_FDCWD, to, "rename", rename_by_kernel, 0);
}
int renameat(int from_folder, const char* from, int to_folder, const char* to) noexcept {
  return made_rename(from_folder, from, to_folder, to, "rename", rename_by_kernel, 0);
}
int renameat2(int from_folder, const char* from, int to_folder, const char* to, unsigned flags) noexcept {
  return made_rename(from_folder, from, to_folder, to, flags == 0 ? "rename" : "exchange", rename_by_kernel, flags);
}
// All calls have at most six arguments; the kernel ignores the others.
long syscall(long number, ...) noexcept {
  va_list list;
  va_start(list, number);
  long a[6];
  for (long& each : a) each = va_arg(list, long);
  va_end(list);
  if (number == SYS_renameat2) {
    return renameat2(static_cast<int>(a[0]), reinterpret_cast<const char*>(a[1]), static_cast<int>(a[2]),
                     reinterpret_cast<const char*>(a[3]), static_cast<unsigned>(a[4]));
  }
  static const auto real = reinterpret_cast<long (*)(long, ...)>(dlsym(RTLD_NEXT, "syscall"));
  return real(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}

int mkdir(const char* path, mode_t mode) noexcept {
  REAL(mkdir);
  return made({"mkdir", "mkdir", path_at(AT_FDCWD, path)}, [&] { return real(path, mode); });
}
int mkdirat(int folder, const char* path, mode_t mode) noexcept {
  REAL(mkdirat);
  return made({"mkdir", "mkdir", path_at(folder, path)}, [&] { return real(folder, path, mode); });
}
int unlink(const char* path) noexcept {
  REAL(unlink);
  return made({"unlink", "unlink", path_at(AT_FDCWD, path)}, [&] { return real(path); });
}
int unlinkat(int folder, const char* path, int flags) noexcept {
  REAL(unlinkat);
  return made({"unlink", "unlink", path_at(folder, path)}, [&] { return real(folder, path, flags); });
}
int rmdir(const char* path) noexcept {
  REAL(rmdir);
  return made({"unlink", "unlink", path_at(AT_FDCWD, path)}, [&] { return real(path); });
}
int remove(const char* path) noexcept {
  REAL(remove);
  return made({"unlink", "unlink", path_at(AT_FDCWD, path)}, [&] { return real(path); });
}
}
