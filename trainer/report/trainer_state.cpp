#include "trainer/report/trainer_state.h"

#include <algorithm>
#include <nlohmann/json.hpp>

namespace concord {
namespace {

using nlohmann::ordered_json;

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

// By step; an evaluation comes after the step it follows.
ordered_json log_history(const RunHistory& history) {
  ordered_json entries = ordered_json::array();
  auto eval = history.evals.begin();
  for (const LoggedStep& step : history.steps) {
    for (; eval != history.evals.end() && eval->step < step.step; ++eval) entries.push_back(entry_of(*eval));
    entries.push_back(entry_of(step));
  }
  for (; eval != history.evals.end(); ++eval) entries.push_back(entry_of(*eval));
  return entries;
}

double last_epoch(const RunHistory& history) {
  double epoch = history.steps.empty() ? 0 : history.steps.back().epoch;
  return history.evals.empty() ? epoch : std::max(epoch, history.evals.back().epoch);
}

}  // namespace

std::string trainer_state_json(const RunDescription& run, const RunHistory& history, int64_t global_step,
                               const BestResult& best) {
  const ordered_json none = nullptr;
  const ordered_json state = {
      {"best_global_step", best.metric ? ordered_json(best.step) : none},
      {"best_metric", best.metric ? ordered_json(*best.metric) : none},
      {"best_model_checkpoint", best.checkpoint.empty() ? none : ordered_json(best.checkpoint)},
      {"epoch", last_epoch(history)},
      {"eval_steps", run.eval_steps},
      {"global_step", global_step},
      {"is_hyper_param_search", false},
      {"is_local_process_zero", true},
      {"is_world_process_zero", true},
      {"log_history", log_history(history)},
      {"logging_steps", run.logging_steps},
      {"max_steps", run.max_steps},
      {"num_input_tokens_seen", history.steps.empty() ? run.first_tokens : history.steps.back().tokens},
      {"num_train_epochs", run.num_train_epochs},
      {"save_steps", run.save_steps},
      {"stateful_callbacks", ordered_json::object()},
      {"total_flos", history.steps.empty() ? 0 : history.steps.back().flops},
      {"train_batch_size", run.train_batch_size},
      {"trial_name", nullptr},
      {"trial_params", nullptr}};
  return state.dump(2, ' ', false, ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace concord
