#include "backends/shm/process.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string>
#include <string_view>

#include "platform/base/unique_fd.hpp"
#include "platform/sdk/plugin.hpp"

namespace concord::shm {
namespace {

struct Stat {
  char state = '?';
  int64_t threads = 0;
  uint64_t start_time = 0;
};

enum class Read { kOk, kNoProcess, kFailed };

// The fields 3, 20 and 22 of /proc/PID/stat. The second field is a name in parentheses that may hold anything, so the
// fields are counted from the last ')'.
Read read_stat(int64_t pid, Stat* out_stat) {
  char path[64];
  std::snprintf(path, sizeof path, "/proc/%lld/stat", static_cast<long long>(pid));
  UniqueFd file(::open(path, O_RDONLY | O_CLOEXEC));
  if (!file) return errno == ENOENT && ::access("/proc/self/stat", R_OK) == 0 ? Read::kNoProcess : Read::kFailed;
  char text[1024];
  const ssize_t length = ::read(file.get(), text, sizeof text - 1);
  const bool gone = length < 0 && errno == ESRCH;
  file.reset();
  if (gone) return Read::kNoProcess;
  if (length <= 0) return Read::kFailed;
  text[length] = '\0';
  const char* rest = std::strrchr(text, ')');
  if (rest == nullptr) return Read::kFailed;
  long long threads = 0;
  unsigned long long start = 0;
  const int found =
      std::sscanf(rest + 1, " %c %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %lld %*s %llu",
                  &out_stat->state, &threads, &start);
  out_stat->threads = threads;
  out_stat->start_time = start;
  return found == 3 ? Read::kOk : Read::kFailed;
}

uint64_t read_pid_namespace() {
  struct stat status{};
  return ::stat("/proc/self/ns/pid", &status) == 0 ? static_cast<uint64_t>(status.st_ino) : 0;
}

// FNV-1a.
uint64_t add_to_hash(uint64_t hash, std::string_view text) {
  for (const char each : text) hash = (hash ^ static_cast<unsigned char>(each)) * 0x100000001b3;
  return hash;
}

}  // namespace

uint64_t this_host() {
  char boot[64] = {};
  const UniqueFd file(::open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC));
  const ssize_t length = file ? ::read(file.get(), boot, sizeof boot) : 0;
  struct stat status{};
  if (length <= 0 || ::stat("/proc/self/ns/net", &status) != 0) return 0;
  const uint64_t hash = add_to_hash(0xcbf29ce484222325, {boot, static_cast<size_t>(length)});
  return add_to_hash(hash, std::to_string(status.st_ino));
}

ProcessIdentity this_process() {
  ProcessIdentity self;
  self.pid = ::getpid();
  Stat stat;
  if (read_stat(self.pid, &stat) == Read::kOk) self.start_time = stat.start_time;
  self.pid_namespace = read_pid_namespace();
  return self;
}

ProcessorSet available_processors() {
  ProcessorSet result;
  cpu_set_t set;
  CPU_ZERO(&set);
  if (::sched_getaffinity(0, sizeof set, &set) != 0) return result.set();  // fails if there are more
  for (size_t i = 0; i < result.size(); ++i) result[i] = CPU_ISSET(i, &set);
  return result;
}

ProcessState state_of(const ProcessIdentity& process) {
  static const uint64_t own_namespace = read_pid_namespace();
  if (process.start_time == 0 || process.pid_namespace != own_namespace) return ProcessState::kUnknown;
  Stat stat;
  switch (read_stat(process.pid, &stat)) {
    case Read::kNoProcess: return ProcessState::kEnded;
    case Read::kFailed: return ProcessState::kUnknown;
    case Read::kOk: break;
  }
  if (stat.start_time != process.start_time || stat.state == 'X') return ProcessState::kEnded;
  // The first thread of a process may end before the others; the process has exited only with the last one.
  if (stat.state == 'Z') return stat.threads > 1 ? ProcessState::kRunning : ProcessState::kEnded;
  return stat.state == 'T' || stat.state == 't' ? ProcessState::kStopped : ProcessState::kRunning;
}

std::string describe(const ProcessIdentity& process) {
  const char* state = "";
  switch (state_of(process)) {
    case ProcessState::kStopped: state = ", stopped"; break;
    case ProcessState::kEnded: state = ", ended"; break;
    case ProcessState::kRunning:
    case ProcessState::kUnknown: break;
  }
  return sdk::text("pid %lld%s", static_cast<long long>(process.pid), state);
}

}  // namespace concord::shm
