#include "platform/conformance/processes/gang.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <stdexcept>

#include "platform/conformance/context.h"

namespace concord::conformance {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr size_t kLastWords = 8192;
constexpr seconds kGrace{3};  // what the other ranks get to end by themselves after the first failure

std::string describe_exit(int wait_status) {
  if (WIFSIGNALED(wait_status)) {
    const int signal = WTERMSIG(wait_status);
    return text("was killed by signal %d (%s)", signal, strsignal(signal));
  }
  return text("exited with code %d", WEXITSTATUS(wait_status));
}

std::string with_rank(std::string value, int rank) {
  for (size_t at = value.find("{rank}"); at != std::string::npos; at = value.find("{rank}")) {
    value.replace(at, 6, std::to_string(rank));
  }
  return value;
}

void put_fd(int from, int to) {
  const int high = fcntl(from, F_DUPFD, 10);  // out of the way of the numbers below; loses close-on-exec
  if (high < 0 || dup2(high, to) < 0) _exit(126);
  close(high);
}

[[noreturn]] void become_worker(const Launch& launch, int rank, int world, int channel, int error, int steps) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);  // a killed parent leaves nothing behind
  const int null = open("/dev/null", O_RDONLY);
  // Both sources first: one of them may sit on a number that is about to be taken.
  const int channel_high = fcntl(channel, F_DUPFD, 20);
  const int steps_high = fcntl(steps, F_DUPFD, 20);
  put_fd(null, 0);
  put_fd(error, 2);
  put_fd(error, 1);  // standard output belongs to the parent's report
  put_fd(channel_high, kWorkerChannelFd);
  put_fd(steps_high, kWorkerStepsFd);
  close(channel_high);
  close(steps_high);
  for (const auto& [name, value] : launch.rank_environment) setenv(name.c_str(), with_rank(value, rank).c_str(), 1);
  std::vector<std::string> arguments = launch.self;
  if (!launch.rank_program.empty()) {
    arguments.insert(arguments.begin(), {launch.rank_program, std::to_string(rank), std::to_string(world)});
  }
  for (const std::string& argument : {std::string("--worker"), std::to_string(rank), std::to_string(world),
                                      std::string(launch.quick ? "quick" : "full"), std::to_string(launch.deadline_s),
                                      launch.platform.empty() ? std::string("-") : launch.platform}) {
    arguments.push_back(argument);
  }
  std::vector<char*> pointers;
  for (std::string& argument : arguments) pointers.push_back(argument.data());
  pointers.push_back(nullptr);
  execvp(pointers[0], pointers.data());
  _exit(127);
}

}  // namespace

Gang::Gang(const Launch& launch, int world) : verbose_(launch.verbose), deadline_s_(launch.deadline_s) {
  steps_fd_ = memfd_create("concord-conform-steps", MFD_CLOEXEC);
  const size_t bytes = kStepBytes * static_cast<size_t>(world);
  if (steps_fd_ < 0 || ftruncate(steps_fd_, static_cast<off_t>(bytes)) != 0) {
    throw std::runtime_error(text("memfd_create: %s", std::strerror(errno)));
  }
  void* mapped = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, steps_fd_, 0);
  if (mapped == MAP_FAILED) throw std::runtime_error(text("mmap: %s", std::strerror(errno)));
  steps_ = static_cast<char*>(mapped);
  workers_.resize(static_cast<size_t>(world));
  try {
    for (int rank = 0; rank < world; ++rank) start(rank, launch);
    wait_for_hellos();
  } catch (...) {
    kill_all();
    throw;
  }
}

Gang::~Gang() {
  kill_all();
  munmap(steps_, kStepBytes * workers_.size());
  close(steps_fd_);
}

void Gang::start(int rank, const Launch& launch) {
  int channel[2];
  int error[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, channel) != 0 || pipe2(error, O_CLOEXEC) != 0) {
    throw std::runtime_error(text("cannot create a channel to a worker: %s", std::strerror(errno)));
  }
  const pid_t pid = fork();
  if (pid < 0) throw std::runtime_error(text("fork: %s", std::strerror(errno)));
  if (pid == 0) become_worker(launch, rank, world(), channel[1], error[1], steps_fd_);
  close(channel[1]);
  close(error[1]);
  fcntl(error[0], F_SETFL, O_NONBLOCK);
  Worker& worker = workers_[static_cast<size_t>(rank)];
  worker.pid = pid;
  worker.channel = std::make_unique<Channel>(channel[0]);
  worker.stderr_fd = error[0];
  worker.alive = true;
}

void Gang::wait_for_hellos() {
  const auto end = Clock::now() + seconds(60 * slowness());
  for (Worker& worker : workers_) worker.settled = false;
  while (!all_settled() && first_failure_.empty()) {
    if (Clock::now() > end) note_failure("a worker did not open the plugin in time");
    wait_for_input(end);
  }
  if (!first_failure_.empty()) throw std::runtime_error(first_failure_);
}

TestResult Gang::run(const std::string& table_and_name, double deadline_s) {
  const auto begin = Clock::now();
  if (deadline_s_ > 0) deadline_s = deadline_s_;
  auto end = begin + milliseconds(static_cast<int64_t>(deadline_s * 1000) * slowness());
  first_failure_.clear();
  for (size_t rank = 0; rank < workers_.size(); ++rank) {
    Worker& worker = workers_[rank];
    worker.settled = !worker.alive;
    worker.gather.reset();
    worker.result.reset();
    std::memset(steps_ + rank * kStepBytes, 0, kStepBytes);
    worker.channel->send(MessageKind::kRun, table_and_name);
  }
  bool in_grace = false;
  while (!all_settled()) {
    wait_for_input(end);
    answer_gather();
    if (!first_failure_.empty() && !in_grace) {
      in_grace = true;
      end = std::min(end, Clock::now() + kGrace * slowness());
    }
    if (Clock::now() < end) continue;
    for (int rank = 0; rank < world(); ++rank) {
      if (!workers_[static_cast<size_t>(rank)].settled)
        note_failure(text("rank %d hangs in %s", rank, step_of(rank).c_str()));
    }
    break;
  }
  TestResult result = summary();
  result.seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  if (result.status == Status::kFail) broken_ = true;
  for (const Worker& worker : workers_) broken_ = broken_ || !worker.alive;
  return result;
}

TestResult Gang::finish() {
  const auto begin = Clock::now();
  const auto end = begin + seconds(20 * slowness());
  quitting_ = true;
  first_failure_.clear();
  for (Worker& worker : workers_) {
    worker.settled = !worker.alive;
    worker.result.reset();
    if (worker.alive) worker.channel->send(MessageKind::kQuit, "");
  }
  while (!all_settled() && Clock::now() < end) wait_for_input(end);
  for (int rank = 0; rank < world(); ++rank) {
    if (!workers_[static_cast<size_t>(rank)].settled)
      note_failure(text("rank %d does not exit, it is in %s", rank, step_of(rank).c_str()));
  }
  TestResult result;
  result.status = first_failure_.empty() ? Status::kPass : Status::kFail;
  result.reason = first_failure_;
  result.seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  broken_ = true;
  return result;
}

void Gang::wait_for_input(Clock::time_point end) {
  std::vector<pollfd> waits;
  std::vector<size_t> ranks;
  for (size_t rank = 0; rank < workers_.size(); ++rank) {
    if (!workers_[rank].alive) continue;
    waits.push_back({workers_[rank].channel->fd(), POLLIN, 0});
    waits.push_back({workers_[rank].stderr_fd, POLLIN, 0});
    ranks.push_back(rank);
  }
  const auto left = std::chrono::duration_cast<milliseconds>(end - Clock::now()).count();
  poll(waits.data(), waits.size(), static_cast<int>(std::clamp<int64_t>(left + 1, 0, 1000)));
  for (size_t i = 0; i < ranks.size(); ++i) {
    if (waits[2 * i + 1].revents != 0) take_last_words(workers_[ranks[i]]);
    if (waits[2 * i].revents != 0) take_messages(static_cast<int>(ranks[i]));
  }
}

void Gang::take_messages(int rank) {
  Worker& worker = workers_[static_cast<size_t>(rank)];
  const bool open = worker.channel->pump();
  for (Message message; worker.channel->next(message);) handle(rank, message);
  if (!open) bury(rank, quitting_);
}

void Gang::handle(int rank, const Message& message) {
  Worker& worker = workers_[static_cast<size_t>(rank)];
  switch (message.kind) {
    case MessageKind::kHello:
      plugin_ = PluginInfo::from_bytes(message.body);
      worker.settled = true;
      return;
    case MessageKind::kRefused: return note_failure(message.body);
    case MessageKind::kGather: worker.gather = message.body; return;
    case MessageKind::kDying: worker.dying = true; return;
    case MessageKind::kResult: {
      worker.result = TestResult::from_bytes(message.body);
      worker.settled = true;
      if (worker.result->status == Status::kFail) {
        note_failure(world() > 1 ? text("rank %d: %s", rank, worker.result->reason.c_str()) : worker.result->reason);
      }
      return;
    }
    default: return note_failure(text("rank %d sent a message of an unknown kind", rank));
  }
}

void Gang::take_last_words(Worker& worker) {
  char block[4096];
  for (ssize_t count; (count = read(worker.stderr_fd, block, sizeof block)) > 0;) {
    if (verbose_ && write(STDERR_FILENO, block, static_cast<size_t>(count)) < 0) verbose_ = false;
    worker.last_words.append(block, static_cast<size_t>(count));
    if (worker.last_words.size() > kLastWords) worker.last_words.erase(0, worker.last_words.size() - kLastWords);
  }
}

// A round is complete when every worker that still runs the test has given its part; the others' parts are empty, and
// the first letter of a part says whether its rank is present.
void Gang::answer_gather() {
  std::vector<std::string> parts;
  bool any = false;
  for (const Worker& worker : workers_) {
    if (!worker.gather && !worker.settled) return;
    any = any || worker.gather.has_value();
    parts.push_back(worker.gather ? "+" + *worker.gather : "-");
  }
  if (!any) return;
  for (Worker& worker : workers_) {
    if (!worker.gather) continue;
    worker.gather.reset();
    worker.channel->send(MessageKind::kGathered, pack(parts));
  }
}

void Gang::bury(int rank, bool expect_clean) {
  Worker& worker = workers_[static_cast<size_t>(rank)];
  int status = 0;
  pid_t reaped = 0;
  const auto end = Clock::now() + seconds(10 * slowness());
  while ((reaped = waitpid(worker.pid, &status, WNOHANG)) == 0 && Clock::now() < end) {
    take_last_words(worker);  // a full pipe would keep it from leaving
    usleep(1000);
  }
  if (reaped == 0) {
    kill(worker.pid, SIGKILL);
    waitpid(worker.pid, &status, 0);
  }
  take_last_words(worker);
  worker.alive = false;
  worker.settled = true;
  const bool clean = WIFEXITED(status) && WEXITSTATUS(status) == 0 && reaped != 0;
  if (worker.dying || (expect_clean && clean)) return;
  std::string reason =
      text("rank %d %s", rank, reaped == 0 ? "closed its channel but did not exit" : describe_exit(status).c_str());
  if (!expect_clean) reason += ", in " + step_of(rank);
  if (!worker.last_words.empty()) reason += "; its output:\n" + worker.last_words;
  note_failure(reason);
}

void Gang::note_failure(const std::string& reason) {
  if (first_failure_.empty()) first_failure_ = reason;
}

bool Gang::all_settled() const {
  return std::all_of(workers_.begin(), workers_.end(), [](const Worker& worker) { return worker.settled; });
}

TestResult Gang::summary() const {
  TestResult all;
  if (!first_failure_.empty()) {
    all.status = Status::kFail;
    all.reason = first_failure_;
    return all;
  }
  size_t skipped = 0;
  size_t counted = 0;
  for (const Worker& worker : workers_) {
    if (!worker.result) continue;
    ++counted;
    all.share = std::max(all.share, worker.result->share);
    if (worker.result->status != Status::kSkip) continue;
    ++skipped;
    all.reason = worker.result->reason;
    all.unsupported = worker.result->unsupported;
  }
  if (skipped > 0) all.status = Status::kSkip;
  if (skipped > 0 && skipped < counted) {
    all.status = Status::kFail;
    all.reason = "some ranks skipped the test and some did not: " + all.reason;
  }
  return all;
}

std::string Gang::step_of(int rank) const {
  const char* step = steps_ + static_cast<size_t>(rank) * kStepBytes;
  return step[0] != '\0' ? std::string(step, strnlen(step, kStepBytes)) : "no step yet";
}

void Gang::kill_all() {
  for (Worker& worker : workers_) {
    if (worker.alive) kill(worker.pid, SIGKILL);
  }
  for (Worker& worker : workers_) {
    if (worker.alive) waitpid(worker.pid, nullptr, 0);
    if (worker.stderr_fd >= 0) close(worker.stderr_fd);
    worker.alive = false;
    worker.stderr_fd = -1;
  }
}

}  // namespace concord::conformance
