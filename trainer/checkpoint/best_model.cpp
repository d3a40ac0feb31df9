#include "trainer/checkpoint/best_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <filesystem>
#include <limits>

#include "core/mesh/agreement.h"
#include "platform/loader/host.h"
#include "trainer/checkpoint/output_folder.h"

namespace concord {
namespace {

namespace fs = std::filesystem;

// Returns the |value| of rank 0 on all ranks.
int64_t of_first_rank(ParallelContext& job, int64_t value) {
  return all_reduce_scalar(job, job.rank() == 0 ? value : std::numeric_limits<int64_t>::min(), ReduceOp::kMax);
}

}  // namespace

BestModel::BestModel(const TrainingPlan& plan, ParallelContext& job)
    : job_(job),
      output_dir_(plan.arguments.output.dir),
      on_each_machine_(plan.writers.has_value()),
      metric_(plan.arguments.best_model.metric),
      greater_is_better_(is_on(plan.arguments.best_model.greater_is_better, metric_.ends_with("accuracy"))),
      patience_(plan.arguments.best_model.patience),
      threshold_(plan.arguments.best_model.threshold) {
  if (!metric_.empty() && !metric_.starts_with("eval_")) metric_ = "eval_" + metric_;
}

bool BestModel::is_better(double metric) const {
  if (!result_.metric) return metric == metric;  // a NaN is never the best
  return greater_is_better_ ? metric > *result_.metric : metric < *result_.metric;
}

void BestModel::evaluated(int64_t step, const NamedValues& metrics) {
  const auto found =
      std::find_if(metrics.begin(), metrics.end(), [&](const auto& each) { return each.first == metric_; });
  if (metric_.empty() || found == metrics.end()) return;
  const auto metric = std::bit_cast<double>(of_first_rank(job_, std::bit_cast<int64_t>(found->second)));
  // As HF's EarlyStoppingCallback: compared with the best before this evaluation.
  const bool counts = is_better(metric) && (!result_.metric || std::abs(metric - *result_.metric) > threshold_);
  waited_ = counts ? 0 : waited_ + 1;
  if (!is_better(metric)) return;
  result_.metric = metric;
  result_.step = step;
}

void BestModel::saved(int64_t step) {
  if (result_.metric && result_.step == step) result_.checkpoint = checkpoint_folder(output_dir_, step).string();
}

void BestModel::save(TrainingState* state) const {
  state->early_stopping_waited = waited_;
  if (!result_.metric) return;
  const fs::path checkpoint = result_.checkpoint;
  const bool is_own = checkpoint.parent_path() == fs::path(output_dir_);
  state->best = {
      .metric = *result_.metric,
      .step = result_.step,
      .checkpoint = is_own || checkpoint.empty() ? checkpoint.filename().string() : fs::absolute(checkpoint).string()};
}

void BestModel::restore(const TrainingState& state, const std::string& folder) {
  if (metric_.empty()) return;
  waited_ = state.early_stopping_waited;
  if (!state.best) return;
  result_.metric = state.best->metric;
  result_.step = state.best->step;
  if (state.best->checkpoint.empty()) return;
  const fs::path checkpoint = fs::path(folder).parent_path() / state.best->checkpoint;
  std::error_code ignored;
  const int64_t is_there = fs::is_directory(checkpoint, ignored) ? 1 : 0;
  if ((on_each_machine_ ? all_reduce_scalar(job_, is_there, ReduceOp::kMin) : of_first_rank(job_, is_there)) != 0) {
    result_.checkpoint = checkpoint.string();
  } else if (job_.rank() == 0) {
    loader::log(CONCORD_LOG_WARN, "train",
                fmt::format("{}, the best checkpoint according to {}, no longer exists", checkpoint.string(), folder));
  }
}

}  // namespace concord
