#include "trainer/cli/print_error.h"

#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <thread>

#include "core/base/config_error.h"
#include "core/base/heartbeat.h"
#include "core/base/stable_hash.h"
#include "core/mesh/job_environment.h"

namespace concord {
namespace {

// A process that fails later than this may print the same error again.
constexpr std::chrono::milliseconds kPrinterStays{1000};
constexpr std::chrono::milliseconds kOthersStay{2000};
// Where the launcher kills the others as soon as one has failed, in order to start all of them again.
constexpr std::chrono::milliseconds kPrinterStaysBeforeRestart{50};
constexpr std::chrono::milliseconds kOthersStayBeforeRestart{200};  // the one to blame, which all wait for, may be one

std::optional<JobEnvironment> job_of_several() {
  try {
    const JobEnvironment environment = read_job_environment();
    return environment.local_world > 1 ? std::optional(environment) : std::nullopt;
  } catch (const ConfigError&) {  // may itself be the error to print
    return std::nullopt;
  }
}

// False if another process of |job|, started by the same launcher, has printed |text| and is still running. A socket
// name in the abstract namespace belongs to one process, needs no file, and is released when the process exits; ours
// stays open until then.
bool is_first_to_say(const std::string& text, const JobEnvironment& job) {
  const std::string message =
      fmt::format("{} {}:{} {} {}", ::getuid(), job.master_addr, job.master_port, job.node_rank.value_or(0), text);
  const std::string name = fmt::format("concord-error-{:016x}", stable_hash(message));
  const int fd = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path + 1, name.data(), name.size());  // after a 0: abstract
  const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return fd < 0 || ::bind(fd, reinterpret_cast<const sockaddr*>(&address), length) == 0 || errno != EADDRINUSE;
}

std::string last_line;

bool will_be_restarted() {
  const char* restarts = std::getenv("TORCHELASTIC_MAX_RESTARTS");
  return JobBoard::of_launcher() && restarts != nullptr && std::atoi(restarts) > 0;
}

}  // namespace

void set_last_line(const std::string& line) { last_line = line; }

void print_error(const std::string& text) {
  const std::optional<JobEnvironment> job = job_of_several();
  if (job) Heartbeat(job->local_rank).enter(RankPhase::ending);  // what follows is not a hang
  if (job && !is_first_to_say(text, *job)) {
    std::this_thread::sleep_for(will_be_restarted() ? kOthersStayBeforeRestart : kOthersStay);
    return;
  }
  std::fprintf(stderr, "concord: %s\n%s", text.c_str(), last_line.c_str());
  std::fflush(stderr);
  if (job) std::this_thread::sleep_for(will_be_restarted() ? kPrinterStaysBeforeRestart : kPrinterStays);
}

}  // namespace concord
