#include "core/launch/watch/hang_watch.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/mesh/rank_list.h"

namespace concord {
namespace {

const GroupPosition* position_in(const HangEvidence& rank, const std::string& group) {
  if (!rank.positions) return nullptr;
  const auto found = std::find_if(rank.positions->begin(), rank.positions->end(),
                                  [&](const GroupPosition& each) { return each.group == group; });
  return found == rank.positions->end() ? nullptr : &*found;
}

bool is_stopped(const HangEvidence& rank) { return rank.process_state == 'T' || rank.process_state == 't'; }

// The call that |rank| is in; null: none.
const GroupPosition* unfinished_call(const HangEvidence& rank) {
  if (!rank.positions) return nullptr;
  for (const GroupPosition& each : *rank.positions) {
    if (each.made > each.finished) return &each;
  }
  return nullptr;
}

// Returns the ranks that have not made the call that |waiting| is in, and the silent ranks: their position is unknown.
std::vector<int64_t> waits_for(const HangEvidence& waiting, const GroupPosition& call,
                               const std::vector<HangEvidence>& ranks) {
  std::vector<int64_t> found;
  for (const HangEvidence& other : ranks) {
    if (other.rank == waiting.rank) continue;
    const GroupPosition* there = position_in(other, call.group);
    const bool is_silent = !other.positions || is_stopped(other);
    // A rank without a call in that group yet may not be a member; it is taken for one if no other explains the wait.
    if (is_silent || (there != nullptr && there->made <= call.finished)) found.push_back(other.rank);
  }
  return found;
}

std::string where(const HangEvidence& rank) {
  return fmt::format("{}, {} steps done", to_string(rank.phase), rank.step);
}

}  // namespace

std::optional<TimedOutRank> HangWatch::look(const JobBoard& board, std::chrono::steady_clock::time_point now,
                                            const std::function<bool(int index)>& is_stopped) {
  const auto watched = last_ ? std::min<std::chrono::steady_clock::duration>(now - *last_, 4 * kTick)
                             : std::chrono::steady_clock::duration{};
  last_ = now;
  std::optional<TimedOutRank> worst;
  for (int i = 0; i < static_cast<int>(seen_.size()); ++i) {
    Seen& seen = seen_[static_cast<size_t>(i)];
    const RankStatus& notes = board.rank(i);
    const int64_t beats = notes.beats;
    const std::chrono::nanoseconds allowed(notes.limit.load());
    const bool has_limit = allowed > allowed.zero();
    seen.silent = beats == seen.beats ? seen.silent + watched : std::chrono::steady_clock::duration{};
    seen.beats = beats;
    const bool is_quiet = seen.silent >= 2 * kTick;  // others are not looked up twenty times a second
    seen.stopped = is_quiet && is_stopped(i) ? seen.stopped + watched : std::chrono::steady_clock::duration{};
    const bool is_stuck = has_limit && seen.silent > allowed;
    const std::chrono::nanoseconds limit = is_stuck ? allowed : kStoppedLimit;
    const std::chrono::steady_clock::duration silent = is_stuck ? seen.silent : seen.stopped;
    const double seconds = std::chrono::duration<double>(silent).count();
    if (silent <= limit || (worst && worst->silent_seconds >= seconds)) continue;
    worst = TimedOutRank{i, static_cast<RankPhase>(notes.phase.load()), seconds,
                         std::chrono::duration<double>(limit).count()};
  }
  return worst;
}

HangVerdict diagnose_hang(const std::vector<HangEvidence>& ranks) {
  HangVerdict verdict;
  std::vector<int64_t> silent;
  for (const HangEvidence& rank : ranks) {
    if (is_stopped(rank)) {
      verdict.culprits.push_back(rank.rank);
      verdict.lines.push_back(fmt::format("rank {} is stopped, by SIGSTOP or a debugger ({})", rank.rank, where(rank)));
    } else if (!rank.positions && rank.phase == RankPhase::start_up) {
      verdict.lines.push_back(fmt::format("rank {} is starting", rank.rank));  // answers only when it has started
    } else if (!rank.positions) {
      silent.push_back(rank.rank);
      verdict.lines.push_back(fmt::format("rank {} does not answer ({})", rank.rank, where(rank)));
    } else if (const GroupPosition* call = unfinished_call(rank)) {
      const std::vector<int64_t> others = waits_for(rank, *call, ranks);
      verdict.lines.push_back(fmt::format(
          "rank {} is in call {} ({}) of group {} and waits for {} ({})", rank.rank, call->finished + 1,
          call->next_call, call->group, others.empty() ? "a rank that is not known" : rank_list(others), where(rank)));
    } else {
      verdict.culprits.push_back(rank.rank);
      verdict.lines.push_back(
          fmt::format("rank {} is in no call and keeps the others waiting ({})", rank.rank, where(rank)));
    }
  }
  if (verdict.culprits.empty()) verdict.culprits = silent;
  return verdict;
}

}  // namespace concord
