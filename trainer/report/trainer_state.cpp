#include "trainer/report/trainer_state.h"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>

namespace concord {
namespace {

using nlohmann::ordered_json;

std::string state_text(const ordered_json& value, int indent) {
  return value.dump(indent, ' ', false, ordered_json::error_handler_t::replace);
}

ordered_json entry_of(const LoggedStep& step) {
  ordered_json entry = {{"epoch", step.epoch}};
  if (step.grad_norm) entry["grad_norm"] = *step.grad_norm;
  entry["learning_rate"] = step.learning_rate;
  entry["loss"] = step.loss;
  entry["num_input_tokens_seen"] = step.tokens;
  entry["tokens_per_second"] = step.tokens_per_second;
  for (const auto& [name, value] : step.extra) entry[name] = value;
  entry["step"] = step.step;
  return entry;
}

ordered_json entry_of(const LoggedEval& eval) {
  ordered_json entry = {{"epoch", eval.epoch}, {"eval_loss", eval.loss}, {"eval_runtime", eval.seconds}};
  for (const auto& [name, value] : eval.extra) entry[name] = value;
  entry["step"] = eval.step;
  return entry;
}

// The rows of log_history, and the values that the state takes from the last of them.
struct LogRows {
  explicit LogRows(const RunDescription& run);

  std::string text;  // without the brackets
  double epoch = 0;
  int64_t tokens;
  double flops = 0;

 private:
  void add(const ordered_json& entry, double epoch_of_entry) {
    text.append(text.empty() ? "\n    " : ",\n    ").append(state_text(entry, -1));
    epoch = std::max(epoch, epoch_of_entry);
  }
};

// Sorted by step; an evaluation comes after its step.
LogRows::LogRows(const RunDescription& run) : tokens(run.first_tokens) {
  HistoryReader reader(run.output_dir);
  std::optional<LoggedEval> eval = reader.next_eval();
  const auto add_evals = [&](int64_t before) {
    for (; eval && eval->step < before; eval = reader.next_eval()) add(entry_of(*eval), eval->epoch);
  };
  while (const std::optional<LoggedStep> step = reader.next_step()) {
    add_evals(step->step);
    add(entry_of(*step), step->epoch);
    tokens = step->tokens;
    flops = step->flops;
  }
  add_evals(std::numeric_limits<int64_t>::max());
}

}  // namespace

std::string trainer_state_json(const RunDescription& run, int64_t global_step, const BestResult& best) {
  LogRows rows(run);
  const ordered_json none = nullptr;
  const ordered_json state = {{"best_global_step", best.metric ? ordered_json(best.step) : none},
                              {"best_metric", best.metric ? ordered_json(*best.metric) : none},
                              {"best_model_checkpoint", best.checkpoint.empty() ? none : ordered_json(best.checkpoint)},
                              {"epoch", rows.epoch},
                              {"eval_steps", run.eval_steps},
                              {"global_step", global_step},
                              {"is_hyper_param_search", false},
                              {"is_local_process_zero", true},
                              {"is_world_process_zero", true},
                              {"log_history", ordered_json::array()},
                              {"logging_steps", run.logging_steps},
                              {"max_steps", run.max_steps},
                              {"num_input_tokens_seen", rows.tokens},
                              {"num_train_epochs", run.num_train_epochs},
                              {"save_steps", run.save_steps},
                              {"stateful_callbacks", ordered_json::object()},
                              {"total_flos", rows.flops},
                              {"train_batch_size", run.train_batch_size},
                              {"trial_name", nullptr},
                              {"trial_params", nullptr}};
  std::string text = state_text(state, 2) + "\n";
  if (rows.text.empty()) return text;
  // No string contains this: its quotes would be escaped.
  constexpr std::string_view kNoRows = "\"log_history\": [";
  return text.insert(text.find(kNoRows) + kNoRows.size(), std::move(rows.text) + "\n  ");
}

}  // namespace concord
