#include "core/launch/launcher.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <fmt/ranges.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <optional>
#include <random>

#include "core/base/config_error.h"
#include "core/base/job_board.h"
#include "core/launch/job/attempt.h"
#include "core/launch/job/job_run.h"
#include "core/launch/job/rendezvous_backend.h"
#include "core/launch/job/restart_policy.h"
#include "core/launch/processes/rank_environment.h"
#include "core/launch/processes/spare_process.h"
#include "core/launch/processes/zygote_process.h"
#include "core/launch/watch/failure_report.h"
#include "core/launch/watch/job_watch.h"
#include "core/mesh/job_environment.h"
#include "core/mesh/store/master_port.h"
#include "platform/base/sanitizer.hpp"

extern char** environ;

namespace concord {
namespace {

constexpr int kTorchrunPort = 29500;
constexpr size_t kReportedLines = 20;
constexpr const char* kWhyNoRestart =
    "concord launch: no restart: exit code 2 is wrong usage, which would be the same again";
constexpr std::chrono::milliseconds kPump{20};  // how often a launcher without ranks looks at what the others say

void check_range(const char* name, int64_t value, int64_t lowest, int64_t highest) {
  if (value >= lowest && value <= highest) return;
  throw ConfigError(fmt::format("{} is {}; must be from {} to {}", name, value, lowest, highest));
}

// Whether launchers, or ranks that may be left out, need a leader.
bool has_leader(const LaunchOptions& options) {
  return options.max_restarts > 0 && (options.nnodes > 1 || options.worlds.size() > 1);
}

void check(const LaunchOptions& options, std::span<const std::string> command) {
  check_range("--nproc", options.nproc, 1, 4096);
  check_range("--nnodes", options.nnodes, 1, 1 << 15);
  if (options.node_rank >= options.nnodes && !(has_leader(options) && options.nnodes > 1)) {
    throw ConfigError(fmt::format(
        "--node_rank is {}; must be from 0 to {}, or, with --nnodes and --max_restarts, above for a spare machine",
        options.node_rank, options.nnodes - 1));
  }
  check_range("--node_rank", options.node_rank, 0, 1 << 15);
  check_range("--master_port", options.master_port, 0, 65535);
  check_range("--max_restarts", options.max_restarts, 0, 1'000'000);
  check_range("--spares", options.spares, 0, 4096);
  check_platform_list(options.nproc * int64_t{options.nnodes}, options.spares, options.worlds.size() > 1);
  if (!std::isfinite(options.rejoin_seconds) || options.rejoin_seconds < 0 || options.rejoin_seconds > 1e6) {
    throw ConfigError(fmt::format("--rejoin_timeout is {}; must be >= 0 seconds", options.rejoin_seconds));
  }
  if (!std::isfinite(options.grace_seconds) || options.grace_seconds < 0 || options.grace_seconds > 1e6) {
    throw ConfigError(fmt::format("--grace is {}; must be >= 0 seconds", options.grace_seconds));
  }
  check(options.rendezvous, options.nnodes > 1 && options.max_restarts > 0);
  const bool uses_etcd = options.rendezvous.uses_etcd();
  if (options.nnodes > 1 && options.master_addr.empty() && !uses_etcd) {
    throw ConfigError(
        fmt::format("--nnodes is {} but --master_addr is missing; on every machine, set it to the address of the one "
                    "with --node_rank 0",
                    options.nnodes));
  }
  if (command.empty() || command.front().empty()) {
    throw ConfigError("no command; give it after --, e.g. concord launch --nproc 2 -- ./program");
  }
  const bool serves =
      options.node_rank == 0 && options.master_port != 0 && !uses_etcd && options.nproc * int64_t{options.nnodes} > 1;
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

// The folder for what ranks keep in memory, removed with it. Nothing without a name.
class MemoryFolder {
 public:
  explicit MemoryFolder(std::string path) : path_(std::move(path)) {
    if (path_.empty() || ::mkdir(path_.c_str(), 0700) == 0) return;
    const char* wanted = std::getenv(kMemoryDirVariable);
    if (wanted == nullptr || *wanted == 0) {
      path_.clear();  // a machine without /dev/shm: restarts resume from disk
    } else {
      throw ConfigError(fmt::format("cannot create {}: {}; set {} to another folder in memory (a tmpfs)", path_,
                                    std::generic_category().message(errno), kMemoryDirVariable));
    }
  }
  ~MemoryFolder() {
    std::error_code ignored;
    if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
  }
  MemoryFolder(const MemoryFolder&) = delete;
  MemoryFolder& operator=(const MemoryFolder&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

std::string memory_folder_name(const LaunchOptions& options, const std::string& launch_id) {
  if (options.max_restarts == 0) return "";
  const char* folder = std::getenv(kMemoryDirVariable);
  return fmt::format("{}/concord-{}", folder != nullptr && *folder != 0 ? folder : "/dev/shm", launch_id);
}

int exit_code_of_first_failure(const AttemptResult& result) {
  if (!result.first_failure) return 1;
  const int status = result.ends[*result.first_failure].wait_status;
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}

std::string random_text() {
  std::random_device random;
  return fmt::format("{:08x}{:08x}{:08x}{:08x}", random(), random(), random(), random());
}

// Where it saves loading something: more ranks than one, or those that are started again. Sanitizers' threads and fork
// do not go together, and a process loads one platform.
bool forks_ranks(const LaunchOptions& options) {
  const char* said = std::getenv(kRankStartVariable);
  const std::string_view how = said == nullptr || *said == 0 ? "fork" : said;
  if (how != "fork" && how != "exec") {
    throw ConfigError(fmt::format("{} is '{}'; must be fork (the default) or exec", kRankStartVariable, how));
  }
  const bool can = !CONCORD_UNDER_ASAN && !CONCORD_UNDER_TSAN && !has_several_platforms();
  return options.forks_ranks && how == "fork" && can && (options.nproc > 1 || options.max_restarts > 0);
}

// An attempt on this machine.
struct AttemptPlan {
  int attempt = 0;
  int node = 0;
  std::string master_addr = {};
  int master_port = 0;
  int world = 1;
  NodeShare share;
  std::string job = {};  // its name, where launchers have agreed on one
};

// A job on this machine: its parts live as long as it does, across all restarts.
class Launcher {
 public:
  Launcher(const LaunchOptions& options, std::span<const std::string> command, std::string program)
      : options_(options),
        command_(command.begin(), command.end()),
        program_(std::move(program)),
        launch_id_(random_text()),
        board_(options.nproc),
        memory_(memory_folder_name(options, launch_id_)),
        guard_(options.nproc + options.spares + 1, launch_id_, memory_.path()),
        spares_(options.max_restarts > 0 ? options.spares : 0, &guard_, options.nproc),
        zygote_(forks_ranks(options), &guard_, options.nproc + options.spares, &signals_),
        relay_({options.log_dir, options.prefix}, first_rank(), options.nproc) {
    // A nested launcher appends its name: the outer guard must also find what the inner one has started.
    const char* outer = std::getenv(kLaunchId);
    environment_.push_back(fmt::format("{}={}{}{}", kLaunchId, outer ? outer : "", outer ? ":" : "", launch_id_));
    const std::string no_token = fmt::format("{}=", kJobToken);
    const auto is_ours = [](std::string_view entry) {  // of an outer launcher
      return std::ranges::any_of(
          std::initializer_list<std::string_view>{kLaunchId, kBoardVariable, kMemoryFolderVariable, kJobVariable,
                                                  kSlotVariable, kFullWorldVariable, kSpareVariable, kZygoteVariable},
          [&](std::string_view name) { return entry.starts_with(fmt::format("{}=", name)); });
    };
    for (char** entry = environ; *entry; ++entry) {
      if (!is_ours(*entry) && *entry != no_token) environment_.emplace_back(*entry);
    }
    environment_.push_back(fmt::format("{}={}", kBoardVariable, board_.variable()));
    if (!memory_.path().empty()) environment_.push_back(fmt::format("{}={}", kMemoryFolderVariable, memory_.path()));
    // Launchers on several machines cannot agree on one; the user may provide one.
    const char* token = std::getenv(kJobToken);
    if (options.nnodes == 1 && (token == nullptr || *token == 0)) environment_.push_back(no_token + random_text());
  }

  int run() { return has_leader(options_) ? run_with_leader() : run_alone(); }

 private:
  int first_rank() const { return options_.node_rank * options_.nproc; }

  int run_alone() {
    RestartPolicy policy{.max_restarts = options_.max_restarts};
    for (;;) {
      const int attempt = policy.attempts;
      const AttemptResult result = run_once(whole_plan(attempt));
      board_.note_complete_checkpoints();
      report(result);
      const RestartPolicy::Next next = policy.after(end_of(result));
      const std::string again =
          fmt::format("restart {} of {} (attempt {})", policy.failures, options_.max_restarts, policy.attempts + 1);
      if (next.restart) relay_.say(fmt::format("concord launch: {}", again));
      if (next.exit_code == kExitUsage && options_.max_restarts > 0) relay_.say(kWhyNoRestart);
      const bool written = write_output(result);
      if (!next.restart || !written) {
        const int code = next.restart ? 1 : next.exit_code;
        log_.ended(attempt, code);
        return code;
      }
      relay_.note_in_logs(fmt::format("--- {}", again));
      board_.clear();
    }
  }

  int run_with_leader() {
    JobRun job(job_options(), leader_store(), [this](const std::string& line) { relay_.say(line); });
    int attempt = 0;
    for (;;) {
      std::optional<AttemptStart> start;
      while (!job.is_over() && !(start = job.take_start())) wait_for_others(&job);
      if (!start) break;
      attempt = start->attempt;
      if (attempt > 0) relay_.note_in_logs(fmt::format("--- attempt {}", attempt + 1));
      run_attempt(*start, &job);
    }
    if (job.exit_code() == kExitUsage) relay_.say(kWhyNoRestart);
    drain_output(&relay_, &signals_, {});
    log_.ended(attempt, job.exit_code());
    return job.exit_code();
  }

  // The leader knows the cause of a failure; the ranks here may have exited on its command.
  void run_attempt(const AttemptStart& start, JobRun* job) {
    bool is_told = false;
    const auto orders = [&](const AttemptResult& so_far) {
      job->progress(board_.newest(&RankStatus::saved_step), board_.newest(&RankStatus::kept_step));
      if (so_far.first_failure && !is_told) {
        is_told = true;
        const ProcessEnd& end = so_far.ends[*so_far.first_failure];
        job->rank_failed(node_end_of(so_far, start.share), start.share.first_rank + end.index,
                         describe_wait_status(end.wait_status));
      }
      job->pump();
      return job->order();
    };
    const AttemptResult result = run_once(
        {start.attempt, start.node, start.store_address, start.store_port, start.world, start.share, start.job},
        orders);
    board_.note_complete_checkpoints();
    const bool is_cause = result.succeeded() || result.first_failure || !result.start_error.empty() ||
                          result.stop_signal != 0 || !result.unkillable.empty();
    if (is_cause) report(result);
    NodeEnd end = node_end_of(result, start.share);
    end.can_start_again = write_output(result) && end.can_start_again;
    job->progress(board_.newest(&RankStatus::saved_step), board_.newest(&RankStatus::kept_step));
    board_.clear();
    job->ranks_ended(end);
  }

  void wait_for_others(JobRun* job) {
    relay_.wait(signals_.fd(), std::chrono::steady_clock::now() + kPump);
    if (const int signal = take_stop_signal()) job->asked(signal);
    job->pump();
  }

  // 0: none has come.
  int take_stop_signal() {
    for (const SignalQueue::Entry& entry : signals_.take()) {
      if (is_stop_signal(entry.signal)) return entry.signal;
    }
    return 0;
  }

  int leader_port() const { return options_.master_port != 0 ? options_.master_port : kTorchrunPort; }
  std::unique_ptr<LeaderStore> leader_store() const {
    if (options_.rendezvous.uses_etcd()) return open_etcd(options_.rendezvous, options_.rejoin_seconds);
    return std::make_unique<FixedLeader>(options_.node_rank == 0, options_.master_addr, leader_port());
  }

  JobRunOptions job_options() const {
    const char* token = std::getenv(kJobToken);
    const int all = options_.nproc * options_.nnodes;
    return {.node = options_.node_rank,
            .nnodes = options_.nnodes,
            .nproc = options_.nproc,
            .local_address = options_.rendezvous.local_addr,
            .port = options_.rendezvous.uses_etcd() ? 0 : leader_port(),
            .token = token != nullptr ? token : "",
            .job = launch_id_,
            .worlds = options_.worlds.empty() ? std::vector<int>{all} : options_.worlds,
            .colocated_ranks = options_.colocated_ranks,
            .max_restarts = options_.max_restarts,
            .kills_at_once = options_.recovers,
            .grace = std::chrono::duration<double>(options_.grace_seconds),
            .rejoin_timeout = std::chrono::duration<double>(options_.rejoin_seconds)};
  }

  // Returns false if the output is not read.
  bool write_output(const AttemptResult& result) {
    OutputRelay::Deadline patience;
    if (result.output_abandoned) patience = std::chrono::steady_clock::now();  // writes only what does not block
    return drain_output(&relay_, &signals_, patience);
  }

  // All ranks of this machine.
  AttemptPlan whole_plan(int attempt) const {
    AttemptPlan plan{.attempt = attempt,
                     .node = options_.node_rank,
                     .master_addr = options_.master_addr,
                     .master_port = options_.master_port,
                     .world = options_.nproc * options_.nnodes,
                     .share = {.first_rank = first_rank(), .slots = {}}};
    for (int slot = 0; slot < options_.nproc; ++slot) plan.share.slots.push_back(slot);
    return plan;
  }

  std::vector<std::string> environment_of(const AttemptPlan& plan) const {
    std::vector<std::string> environment = environment_;
    if (!plan.job.empty()) environment.push_back(fmt::format("{}={}", kJobVariable, plan.job));
    const int all = options_.nproc * options_.nnodes;
    if (plan.world != all) environment.push_back(fmt::format("{}={}", kFullWorldVariable, all));
    return environment;
  }

  AttemptResult run_once(const AttemptPlan& plan,
                         std::function<AttemptOrder(const AttemptResult& so_far)> orders = {}) {
    std::optional<HeldPort> held;
    const int count = static_cast<int>(plan.share.slots.size());
    RankPlace place{.local_rank = 0,
                    .nproc = count,
                    .node_rank = plan.node,
                    .nnodes = options_.nnodes,
                    .master_addr = plan.master_addr,
                    .master_port = plan.master_port,
                    .restart_count = plan.attempt,
                    .max_restarts = options_.max_restarts,
                    .cores = usable_cores(),
                    .first_rank = plan.share.first_rank,
                    .world = plan.world};
    if (place.master_addr.empty()) place.master_addr = "127.0.0.1";
    if (place.master_port == 0) {
      place.master_port = options_.nnodes > 1 ? kTorchrunPort : held.emplace().port();
    }
    const std::vector<std::string> environment = environment_of(plan);
    relay_.set_first_rank(plan.share.first_rank);
    JobWatch watch(&board_, &log_,
                   {.first_rank = plan.share.first_rank,
                    .ranks = count,
                    .attempt = plan.attempt,
                    .kills = options_.max_restarts > 0,
                    .has_others = options_.nnodes > 1},
                   [this](const std::string& line) { relay_.say(line); });
    spares_.renew();
    const auto command_of = [&](int index) {
      place.local_rank = index;
      ProcessCommand command{program_, command_, rank_environment(environment, place), place.rank() == 0};
      const int slot = plan.share.slots[static_cast<size_t>(device_index(environment, place))];
      if (slot != index) command.environment.push_back(fmt::format("{}={}", kSlotVariable, slot));
      return command;
    };
    bool is_said = plan.attempt == 0 || options_.spares == 0;
    const auto tick = [&](std::span<const pid_t> processes) {
      if (!std::exchange(is_said, true)) {
        relay_.say(fmt::format("concord launch: {} of {} ranks were spares", spares_.handed_over(), count));
      }
      const std::vector<int> overdue = watch.tick(processes);
      if (watch.is_training() && options_.spares > 0) spares_.tick(command_of(0));
      return overdue;
    };
    const auto failed = [&](const ProcessEnd& end) {
      log_.failed(plan.attempt, plan.share.first_rank + end.index, board_.newest(&RankStatus::step),
                  describe_wait_status(end.wait_status));
    };
    return Attempt(&signals_, &guard_, &relay_,
                   {.grace = std::chrono::duration<double>(options_.grace_seconds),
                    .kills_at_once = options_.recovers && options_.max_restarts > 0,
                    .tick = tick,
                    .period = HangWatch::kTick,
                    .failed = failed,
                    .orders = std::move(orders),
                    .spares = &spares_,
                    .zygote = &zygote_})
        .run(count, command_of);
  }

  // Nothing is lost then, however the ranks exit: killed by a signal that they do not handle yet, or failed.
  bool stopped_before_training(const AttemptResult& result) const {
    return options_.recovers && result.stopped_before_failing() && board_.newest(&RankStatus::step) <= 0;
  }

  AttemptEnd end_of(const AttemptResult& result) const {
    return {.succeeded = result.succeeded(),
            .stop_signal = result.stop_signal,
            .stopped_as_asked = result.stopped_as_asked() || stopped_before_training(result),
            .can_start_again = result.start_error.empty() && result.unkillable.empty() && !result.output_abandoned,
            .exit_code = exit_code_of_first_failure(result),
            .saved_step = board_.newest(&RankStatus::saved_step),
            .kept_step = board_.newest(&RankStatus::kept_step)};
  }

  NodeEnd node_end_of(const AttemptResult& result, const NodeShare& share) const {
    const AttemptEnd end = end_of(result);
    NodeEnd node{.succeeded = end.succeeded,
                 .has_failed = result.first_failure.has_value() || !result.start_error.empty(),
                 .exit_code = end.exit_code,
                 .stop_signal = end.stop_signal,
                 .stopped_as_asked = end.stopped_as_asked,
                 .can_start_again = end.can_start_again};
    if (result.first_failure) {
      node.failed_slot = share.slots[static_cast<size_t>(result.ends[*result.first_failure].index)];
    }
    return node;
  }

  void report(const AttemptResult& result) {
    std::string text;
    if (!result.succeeded()) {
      text = failure_report(result, relay_.first_rank(),
                            [this](int index) { return relay_.last_error_lines(index, kReportedLines); });
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
  JobBoard board_;
  RecoveryLog log_;
  MemoryFolder memory_;
  SignalQueue signals_;  // outlives the guard: writing to a dead guard must not raise SIGPIPE
  SessionGuard guard_;
  SparePool spares_;
  Zygote zygote_;
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
