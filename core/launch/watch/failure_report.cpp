#include "core/launch/watch/failure_report.h"

#include <fmt/core.h>
#include <fmt/ranges.h>
#include <sys/wait.h>

#include <algorithm>
#include <cstring>
#include <map>

namespace concord {
namespace {

// 0,1,2,5 -> "0-2,5"
std::string join_ranges(std::vector<int> ranks) {
  std::sort(ranks.begin(), ranks.end());
  std::string text;
  for (size_t i = 0; i < ranks.size();) {
    size_t last = i;
    while (last + 1 < ranks.size() && ranks[last + 1] == ranks[last] + 1) ++last;
    text += fmt::format("{}{}", text.empty() ? "" : ",", ranks[i]);
    if (last > i) text += fmt::format("{}{}", last == i + 1 ? ',' : '-', ranks[last]);
    i = last + 1;
  }
  return text;
}

// "rank 2 is stopped (pid 4711, by SIGSTOP or a debugger); " or nothing.
std::string stopped_text(const AttemptResult& result, int first_rank) {
  if (result.stopped.empty()) return "";
  std::vector<int> ranks, pids;
  for (const ProcessEnd& each : result.stopped) {
    ranks.push_back(first_rank + each.index);
    pids.push_back(each.pid);
  }
  return fmt::format("rank{} {} stopped (pid {}, by SIGSTOP or a debugger); ", ranks.size() == 1 ? "" : "s",
                     join_ranges(ranks) + (ranks.size() == 1 ? " is" : " are"), fmt::join(pids, ", "));
}

using LinesOf = std::function<std::vector<std::string>(int index)>;

// Returns the last lines of the process that failed first or, if it wrote nothing, of another one; those that exited in
// the same way come first.
std::string error_lines_text(const AttemptResult& result, int first_rank, const LinesOf& last_lines_of) {
  const ProcessEnd& first = result.ends[*result.first_failure];
  const auto quote = [](std::string text, const std::vector<std::string>& lines) {
    for (const std::string& line : lines) text += fmt::format("    | {}\n", line);
    return text;
  };
  const std::vector<std::string> own = last_lines_of(first.index);
  if (!own.empty()) return quote("  last lines of its standard error:\n", own);
  for (const bool is_alike : {true, false}) {
    if (!WIFEXITED(first.wait_status)) break;
    for (const ProcessEnd& end : result.ends) {
      if ((end.wait_status == first.wait_status) != is_alike) continue;
      const std::vector<std::string> lines = last_lines_of(end.index);
      if (lines.empty()) continue;
      return quote(fmt::format("  it wrote nothing to standard error; last lines of rank {}, which {}:\n",
                               first_rank + end.index, is_alike ? "ended in the same way" : "did"),
                   lines);
    }
  }
  return "  nothing was written to standard error\n";
}

std::string first_failure_text(const AttemptResult& result, int first_rank, const LinesOf& last_lines_of) {
  const ProcessEnd& end = result.ends[*result.first_failure];
  std::string text =
      fmt::format("concord launch: {}rank {} failed first: {}\n  pid {}, local rank {}, {:.1f} s after the start\n",
                  stopped_text(result, first_rank), first_rank + end.index, describe_wait_status(end.wait_status),
                  end.pid, end.index, end.seconds);
  const bool was_hung = std::any_of(result.hung.begin(), result.hung.end(),
                                    [&](const ProcessEnd& each) { return each.index == end.index; });
  if (was_hung) text += "  the launcher killed it because it made no progress, see above\n";
  if (!was_hung && WIFSIGNALED(end.wait_status) && WTERMSIG(end.wait_status) == SIGKILL) {
    text += "  the launcher did not send SIGKILL; often the kernel does when memory runs out (see dmesg)\n";
  }
  return text + error_lines_text(result, first_rank, last_lines_of);
}

// The other processes; those with the same exit status share a line.
std::string others_text(const AttemptResult& result, int first_rank) {
  std::vector<std::string> order;
  std::map<std::string, std::vector<int>> ranks_by_text;
  for (size_t i = 0; i < result.ends.size(); ++i) {
    const ProcessEnd& end = result.ends[i];
    if (i == result.first_failure) continue;
    const std::string when = end.was_asked ? " (told to stop)" : "";
    const std::string text = describe_wait_status(end.wait_status) + when;
    if (ranks_by_text[text].empty()) order.push_back(text);
    ranks_by_text[text].push_back(first_rank + end.index);
  }
  std::string lines;
  for (const std::string& text : order) {
    const std::vector<int>& ranks = ranks_by_text[text];
    lines += fmt::format("  rank{} {}: {}\n", ranks.size() == 1 ? "" : "s", join_ranges(ranks), text);
  }
  return lines;
}

}  // namespace

std::string signal_name(int signal) {
  const char* name = ::sigabbrev_np(signal);
  return name ? fmt::format("SIG{}", name) : fmt::format("signal {}", signal);
}

std::string describe_wait_status(int status) {
  if (WIFEXITED(status)) return fmt::format("exit code {}", WEXITSTATUS(status));
  const int signal = WTERMSIG(status);
  const char* message = ::sigdescr_np(signal);
  return fmt::format("killed by {} ({}{})", signal_name(signal), message ? message : "no description",
                     WCOREDUMP(status) ? ", core dumped" : "");
}

std::string failure_report(const AttemptResult& result, int first_rank, const LinesOf& last_lines_of) {
  std::string text;
  if (!result.start_error.empty()) text += fmt::format("concord launch: {}\n", result.start_error);
  if (result.first_failure) text += first_failure_text(result, first_rank, last_lines_of);
  if (result.stop_signal) text += fmt::format("concord launch: stopped by {}\n", signal_name(result.stop_signal));
  text += others_text(result, first_rank);
  if (!result.unkillable.empty()) {
    text += fmt::format("  still running after SIGKILL, stuck in the kernel: {}\n", fmt::join(result.unkillable, ", "));
  }
  return text;
}

}  // namespace concord
