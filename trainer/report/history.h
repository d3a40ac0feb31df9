// The logged values of a run, and their format on disk: one JSON object per line, metrics.jsonl for steps,
// eval_metrics.jsonl for evaluations, samples.jsonl for generated texts, and rank_times.jsonl for the times of each
// rank. An unknown number is null; so is NaN or Inf, which JSON cannot represent, with its kind in "non_finite":
// {"loss": "nan"}.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "trainer/report/files.h"
#include "trainer/report/rank_times.h"

namespace concord {

using NamedValues = std::vector<std::pair<std::string, double>>;

struct LoggedStep {
  int64_t step = 0;
  double epoch = 0;
  double loss = 0;
  double learning_rate = 0;
  std::optional<double> grad_norm = std::nullopt;
  int64_t tokens = 0;   // since the start of training, over all ranks
  int64_t samples = 0;  // likewise; 0: not counted
  double tokens_per_second = 0;
  double seconds = 0;  // since the last logged step
  std::optional<double> mfu = std::nullopt;
  double flops = 0;  // since the start, over all ranks; 0: unknown
  int64_t memory_bytes = 0;
  double time = 0;  // seconds since 1970
  NamedValues extra = {};
};

struct LoggedEval {
  int64_t step = 0;
  double epoch = 0;
  double loss = 0;
  double seconds = 0;
  double tokens_per_second = 0;
  double time = 0;
  NamedValues extra = {};
};

// A text that the model generated for a prompt at an evaluation.
struct LoggedSample {
  int64_t step = 0;
  std::string prompt;
  std::string text;
};

struct RunHistory {
  std::vector<LoggedStep> steps;
  std::vector<LoggedEval> evals;
  std::vector<LoggedSample> samples;
  std::vector<RankTable> ranks;  // after resuming with a different layout their number of ranks may differ
};

// Return a line without line break.
std::string metrics_line(const LoggedStep& step);
std::string metrics_line(const LoggedEval& eval);
std::string metrics_line(const LoggedSample& sample);
std::string metrics_line(const RankTable& table);  // in integer microseconds

inline constexpr const char* kMetricsFile = "metrics.jsonl";
inline constexpr const char* kEvalMetricsFile = "eval_metrics.jsonl";
inline constexpr const char* kSamplesFile = "samples.jsonl";
inline constexpr const char* kRankTimesFile = "rank_times.jsonl";

// Reads the files in |folder|; missing files are empty. Skips an incomplete last line (a power failure); throws
// std::runtime_error with the line number for any other invalid line.
RunHistory read_history(const std::string& folder);

// Reads the same steps and evaluations one at a time, in order. Threads: one at a time.
class HistoryReader {
 public:
  explicit HistoryReader(const std::string& folder);
  std::optional<LoggedStep> next_step();
  std::optional<LoggedEval> next_eval();

 private:
  LineReader steps_, evals_;
};

// Drops everything after |last_step|, from the value and from the files, for a run that resumes there.
void forget_after(int64_t last_step, const std::string& folder, RunHistory* history);

}  // namespace concord
