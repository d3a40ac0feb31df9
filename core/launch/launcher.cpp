#include "core/launch/launcher.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <fmt/ranges.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/resource.h>

#include <cmath>
#include <cstdlib>
#include <memory>
#include <optional>
#include <random>

#include "core/config_error.h"
#include "core/launch/attempt.h"
#include "core/launch/failure_report.h"
#include "core/launch/master_port.h"
#include "core/launch/rank_environment.h"
#include "core/mesh/job_environment.h"

extern char** environ;

namespace concord {
namespace {

constexpr int kTorchrunPort = 29500;
constexpr const char* kLaunchId = "CONCORD_LAUNCH_ID";  // see session_guard.h
constexpr size_t kReportedLines = 20;

void check_range(const char* name, int64_t value, int64_t lowest, int64_t highest) {
  if (value >= lowest && value <= highest) return;
  throw ConfigError(fmt::format("{} is {}; must be from {} to {}", name, value, lowest, highest));
}

void check(const LaunchOptions& options, std::span<const std::string> command) {
  check_range("--nproc", options.nproc, 1, 4096);
  check_range("--nnodes", options.nnodes, 1, 1 << 15);
  check_range("--node_rank", options.node_rank, 0, options.nnodes - 1);
  check_range("--master_port", options.master_port, 0, 65535);
  check_range("--max_restarts", options.max_restarts, 0, 1'000'000);
  if (!std::isfinite(options.grace_seconds) || options.grace_seconds < 0 || options.grace_seconds > 1e6) {
    throw ConfigError(fmt::format("--grace is {}; must be >= 0 seconds", options.grace_seconds));
  }
  if (options.nnodes > 1 && options.master_addr.empty()) {
    throw ConfigError(
        fmt::format("--nnodes is {} but --master_addr is missing; on every machine, set it to the address of the one "
                    "with --node_rank 0",
                    options.nnodes));
  }
  if (command.empty() || command.front().empty()) {
    throw ConfigError("no command; give it after --, e.g. concord launch --nproc 2 -- ./program");
  }
  const bool serves = options.node_rank == 0 && options.master_port != 0 && options.nproc * int64_t{options.nnodes} > 1;
  if (serves && !port_is_free(options.master_port)) {
    throw ConfigError(fmt::format("--master_port {} is in use on this machine; choose another{}", options.master_port,
                                  options.nnodes == 1 ? ", or omit it to use a free port" : " on all machines"));
  }
}

// Each process needs two pipes and, with log_dir, a file.
void make_room_for_descriptors(int nproc) {
  const rlim_t needed = 3 * static_cast<rlim_t>(nproc) + 32;
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= needed) return;
  if (limit.rlim_max < needed) {
    throw ConfigError(fmt::format("--nproc {} needs {} open files, but the limit is {}; raise it with ulimit -n", nproc,
                                  needed, limit.rlim_max));
  }
  limit.rlim_cur = needed;
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

// If one of 0, 1, 2 is closed, the next pipe would get its number.
void open_closed_standard_streams() {
  for (int fd = 0; fd <= 2; ++fd) {
    if (::fcntl(fd, F_GETFD) < 0) static_cast<void>(::open("/dev/null", O_RDWR));
  }
}

int usable_cores() {
  cpu_set_t cores;
  return ::sched_getaffinity(0, sizeof cores, &cores) == 0 ? CPU_COUNT(&cores) : 1;
}

// During its lifetime, orphaned descendants become children of this process.
class Reaper {
 public:
  Reaper() {
    ::prctl(PR_GET_CHILD_SUBREAPER, &before_);
    ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  }
  ~Reaper() { ::prctl(PR_SET_CHILD_SUBREAPER, before_); }
  Reaper(const Reaper&) = delete;
  Reaper& operator=(const Reaper&) = delete;

 private:
  int before_ = 0;
};

int exit_code_of(const AttemptResult& result) {
  if (result.succeeded()) return 0;
  return result.stopped_as_asked() ? 128 + result.stop_signal : 1;
}

std::string random_text() {
  std::random_device random;
  return fmt::format("{:08x}{:08x}{:08x}{:08x}", random(), random(), random(), random());
}

// A job on this machine: its parts live as long as it does, across all restarts.
class Launcher {
 public:
  Launcher(const LaunchOptions& options, std::span<const std::string> command, std::string program)
      : options_(options),
        command_(command.begin(), command.end()),
        program_(std::move(program)),
        launch_id_(random_text()),
        guard_(options.nproc, launch_id_),
        relay_({options.log_dir, options.prefix}, first_rank(), options.nproc) {
    // A nested launcher appends its name: the outer guard must also find what the inner one has started.
    const char* outer = std::getenv(kLaunchId);
    environment_.push_back(fmt::format("{}={}{}{}", kLaunchId, outer ? outer : "", outer ? ":" : "", launch_id_));
    const std::string no_token = fmt::format("{}=", kJobToken);
    for (char** entry = environ; *entry; ++entry) {
      if (std::string_view(*entry).starts_with(fmt::format("{}=", kLaunchId)) || *entry == no_token) continue;
      environment_.emplace_back(*entry);
    }
    // Launchers on several machines cannot agree on one; the user may provide one.
    const char* token = std::getenv(kJobToken);
    if (options.nnodes == 1 && (token == nullptr || *token == 0)) environment_.push_back(no_token + random_text());
  }

  int run() {
    for (int restarts = 0;; ++restarts) {
      const AttemptResult result = run_once(restarts);
      report(result);
      const bool again = !result.succeeded() && result.stop_signal == 0 && result.start_error.empty() &&
                         result.unkillable.empty() && !result.output_abandoned && restarts < options_.max_restarts;
      if (again) relay_.say(fmt::format("concord launch: restart {} of {}", restarts + 1, options_.max_restarts));
      // If nobody reads the output, write only what does not block.
      OutputRelay::Deadline patience;
      if (result.output_abandoned) patience = std::chrono::steady_clock::now();
      const bool written = drain_output(&relay_, &signals_, patience);
      if (!again || !written) return exit_code_of(result);
      relay_.note_in_logs(fmt::format("--- restart {} of {}", restarts + 1, options_.max_restarts));
    }
  }

 private:
  int first_rank() const { return options_.node_rank * options_.nproc; }

  AttemptResult run_once(int restarts) {
    std::optional<HeldPort> held;
    RankPlace place{0,
                    options_.nproc,
                    options_.node_rank,
                    options_.nnodes,
                    options_.master_addr,
                    options_.master_port,
                    restarts,
                    options_.max_restarts,
                    usable_cores()};
    if (place.master_addr.empty()) place.master_addr = "127.0.0.1";
    if (place.master_port == 0) {
      place.master_port = options_.nnodes > 1 ? kTorchrunPort : held.emplace().port();
    }
    return Attempt(&signals_, &guard_, &relay_, std::chrono::duration<double>(options_.grace_seconds))
        .run(options_.nproc, [&](int index) {
          place.local_rank = index;
          return ProcessCommand{program_, command_, rank_environment(environment_, place), place.rank() == 0};
        });
  }

  void report(const AttemptResult& result) {
    std::string text;
    if (!result.succeeded()) {
      std::vector<std::string> last_lines;
      if (result.first_failure) {
        last_lines = relay_.last_error_lines(result.ends[*result.first_failure].index, kReportedLines);
      }
      text = failure_report(result, first_rank(), last_lines);
    }
    if (!result.left.empty()) {
      text += fmt::format("concord launch: killed leftover child processes: {}\n", fmt::join(result.left, ", "));
    }
    if (!text.empty()) relay_.say(text.substr(0, text.size() - 1));  // say() adds the newline
  }

  const LaunchOptions options_;
  const std::vector<std::string> command_;
  const std::string program_;
  const std::string launch_id_;
  std::vector<std::string> environment_;
  SignalQueue signals_;  // outlives the guard: writing to a dead guard must not raise SIGPIPE
  SessionGuard guard_;
  Reaper reaper_;
  OutputRelay relay_;
};

}  // namespace

int launch(const LaunchOptions& options, std::span<const std::string> command) {
  check(options, command);
  const char* path = std::getenv("PATH");
  std::string program = find_program(command.front(), path ? path : "/usr/local/bin:/usr/bin:/bin");
  make_room_for_descriptors(options.nproc);
  open_closed_standard_streams();
  return Launcher(options, command, std::move(program)).run();
}

}  // namespace concord
