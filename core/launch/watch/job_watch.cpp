#include "core/launch/watch/job_watch.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "core/base/process_list.h"
#include "core/launch/watch/native_stacks.h"

namespace concord {
namespace {

// A rank answers from its watchdog thread, within two periods.
constexpr std::chrono::milliseconds kAnswerTime{250};
constexpr std::chrono::milliseconds kStacksTime{300};
// Time for the other launchers to find a culprit, if this machine has none, before one of its ranks is blamed.
constexpr std::chrono::seconds kOthersTime{3};

// Returns the state as in /proc; Z, as for a zombie, if there is no such process.
char state_of(pid_t process) {
  ProcessEntry entry;
  const bool is_there = process > 0 && parse_process_stat(read_process_file(process, "stat"), &entry);
  return is_there ? entry.state : 'Z';
}

}  // namespace

JobWatch::JobWatch(JobBoard* board, RecoveryLog* log, Options options, Say say)
    : board_(board), log_(log), options_(options), say_(std::move(say)), watch_(board->ranks()) {}

std::vector<int> JobWatch::tick(std::span<const pid_t> processes) {
  if (!is_training_) note_training();
  const std::optional<TimedOutRank> overdue = watch_.look(*board_, Clock::now(), [&](int index) {
    const auto i = static_cast<size_t>(index);
    return i < processes.size() && state_of(processes[i]) == 'T';
  });
  if (!overdue) {
    overdue_.reset();
    is_reported_ = false;
    others_until_.reset();
    return {};
  }
  if (is_reported_ || (others_until_ && Clock::now() < *others_until_)) return {};
  if (!overdue_) {
    overdue_ = overdue;
    ask();
    return {};
  }
  if (!all_have_answered(processes) && Clock::now() - asked_ < kAnswerTime) return {};
  is_reported_ = true;
  return explain(processes);
}

void JobWatch::note_training() {
  int64_t latest = 0, step = 0;
  for (int i = 0; i < options_.ranks; ++i) {
    const RankStatus& notes = board_->rank(i);
    if (notes.last_step_at == 0) return;
    latest = std::max(latest, notes.last_step_at.load());
    step = std::max(step, notes.step.load());
  }
  is_training_ = true;
  log_->training(options_.attempt, step, latest);
}

void JobWatch::ask() {
  asked_ = Clock::now();
  for (int i = 0; i < board_->ranks(); ++i) ++board_->rank(i).asked;
}

// All that can: a stopped process does not.
bool JobWatch::all_have_answered(std::span<const pid_t> processes) const {
  for (size_t i = 0; i < processes.size(); ++i) {
    const auto index = static_cast<int>(i);
    const RankStatus& notes = board_->rank(index);
    if (notes.answered != notes.asked && evidence(index, processes[i]).process_state != 'T') return false;
  }
  return true;
}

HangEvidence JobWatch::evidence(int index, pid_t process) const {
  const RankStatus& notes = board_->rank(index);
  HangEvidence found{.rank = options_.first_rank + index,
                     .phase = static_cast<RankPhase>(notes.phase.load()),
                     .step = notes.step,
                     .process_state = state_of(process),
                     .positions = std::nullopt};
  if (notes.answered == notes.asked) {
    const size_t length = ::strnlen(notes.answer.data(), notes.answer.size());
    found.positions = unpack_positions(std::string(notes.answer.data(), length));
  }
  return found;
}

// They print them to their standard error. A stopped one cannot, and is explained.
void JobWatch::show_stacks(const std::vector<int>& indices, std::span<const pid_t> processes) {
  for (const int index : indices) {
    const pid_t process = processes[static_cast<size_t>(index)];
    if (process <= 0 || evidence(index, process).process_state == 'T') continue;
    for (const std::string& silent : request_stacks(process, kStacksTime).silent) {
      say_(fmt::format("  rank {}: {}", options_.first_rank + index, silent));
    }
  }
}

std::vector<int> JobWatch::explain(std::span<const pid_t> processes) {
  std::vector<HangEvidence> all;
  for (size_t i = 0; i < processes.size(); ++i) all.push_back(evidence(static_cast<int>(i), processes[i]));
  const HangVerdict verdict = diagnose_hang(all);
  if (options_.has_others && verdict.culprits.empty() && !others_until_) {
    others_until_ = Clock::now() + kOthersTime;
    is_reported_ = false;
    return {};
  }
  const int first = options_.first_rank;
  std::vector<int> culprits;
  for (const int64_t rank : verdict.culprits) culprits.push_back(static_cast<int>(rank) - first);
  if (culprits.empty()) culprits.push_back(overdue_->index);
  std::string text = fmt::format("concord launch: rank {} has made no progress for {:.1f} s in {} (limit {:.1f} s)",
                                 first + overdue_->index, overdue_->silent_seconds, to_string(overdue_->phase),
                                 overdue_->limit_seconds);
  for (const std::string& line : verdict.lines) text += "\n  " + line;
  say_(text);
  for (const int index : culprits) {
    log_->hung(options_.attempt, first + index, verdict.lines.at(static_cast<size_t>(index)));
  }
  show_stacks(culprits, processes);
  if (!options_.kills) return {};
  return culprits;
}

}  // namespace concord
