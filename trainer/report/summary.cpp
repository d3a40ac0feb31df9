#include "trainer/report/summary.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>

#include "core/base/bytes_text.h"
#include "trainer/report/progress.h"

namespace concord {
namespace {

double seconds_of(const RunHistory& history) {
  double seconds = 0;
  for (const LoggedStep& step : history.steps) seconds += step.seconds;
  return seconds;
}

// The history of a resumed run includes its first steps, and so does the token count.
double mean_tokens_per_second(const RunHistory& history) {
  const double seconds = seconds_of(history);
  return seconds > 0 ? static_cast<double>(history.steps.back().tokens) / seconds : 0;
}

std::optional<double> mean_mfu(const RunHistory& history) {
  double weighted = 0;
  double seconds = 0;
  for (const LoggedStep& step : history.steps) {
    if (!step.mfu) continue;
    weighted += *step.mfu * step.seconds;
    seconds += step.seconds;
  }
  return seconds > 0 ? std::optional(weighted / seconds) : std::nullopt;
}

const LoggedStep* lowest_loss(const RunHistory& history) {
  const LoggedStep* lowest = nullptr;
  for (const LoggedStep& step : history.steps) {
    if (std::isfinite(step.loss) && (lowest == nullptr || step.loss < lowest->loss)) lowest = &step;
  }
  return lowest;
}

// Counts steps whose loss is not finite, except steps without trained tokens, which have no loss.
int64_t not_finite(const RunHistory& history) {
  const auto is_untrained = [](const auto& value) { return value.first == "untrained_iter"; };
  return std::ranges::count_if(history.steps, [&](const LoggedStep& step) {
    return !std::isfinite(step.loss) && std::ranges::none_of(step.extra, is_untrained);
  });
}

std::string logged_losses(const RunDescription& run, const RunHistory& history) {
  if (history.steps.empty()) return fmt::format("none logged yet: logging_steps is {}", run.logging_steps);
  const LoggedStep &first = history.steps.front(), &last = history.steps.back();
  if (history.steps.size() == 1)
    return fmt::format("loss {:.4f} at step {}, the only one logged: logging_steps is {}", first.loss, first.step,
                       run.logging_steps);
  std::string text = fmt::format("loss {:.4f} -> {:.4f}", first.loss, last.loss);
  if (const LoggedStep* lowest = lowest_loss(history))
    text += fmt::format(", lowest {:.4f} at step {}", lowest->loss, lowest->step);
  return text;
}

// |steps| have been done.
std::string losses_line(const RunDescription& run, const RunHistory& history, const RecentSteps& unlogged,
                        int64_t steps) {
  std::string text = logged_losses(run, history);
  if (unlogged.steps > 0 && !std::isnan(unlogged.loss))
    text += fmt::format("; {:.4f} at step {}", unlogged.loss, steps);
  if (!history.evals.empty()) text += fmt::format("; evaluation {:.4f}", history.evals.back().loss);
  if (run.loss_floor) text += fmt::format("; floor {:.4f}", *run.loss_floor);
  if (const int64_t count = not_finite(history); count > 0) text += fmt::format("; {} not finite", count);
  return text;
}

// "  name   text" lines with aligned texts.
std::string rows_text(const NamedTexts& rows) {
  size_t widest = 0;
  for (const auto& [name, text] : rows) widest = std::max(widest, name.size());
  std::string lines;
  for (const auto& [name, text] : rows) lines += fmt::format("  {:<{}}  {}\n", name, widest, text);
  return lines;
}

std::string files_text(const RunDescription& run, const FinishReport& end) {
  NamedTexts files = {{"metrics", run.output_dir + "/" + kMetricsFile},
                      {"state", run.output_dir + "/trainer_state.json"}};
  if (run.tensorboard) files.emplace_back("TensorBoard", "tensorboard --logdir " + run.output_dir + "/runs");
  if (run.html) files.emplace_back("report", run.output_dir + "/report.html");
  files.insert(files.end(), end.files.begin(), end.files.end());
  return rows_text(files);
}

NamedTexts step_figures(const RunDescription& run, const RunHistory& history) {
  if (history.steps.empty()) return {{"steps", "none logged"}};
  const LoggedStep& last = history.steps.back();
  NamedTexts figures = {{"last loss", fmt::format("{:.4f}", last.loss)}};
  if (const LoggedStep* lowest = lowest_loss(history))
    figures.emplace_back(fmt::format("lowest loss, step {}", lowest->step), fmt::format("{:.4f}", lowest->loss));
  if (!history.evals.empty()) {
    const LoggedEval& eval = history.evals.back();
    figures.emplace_back("evaluation loss", fmt::format("{:.4f}", eval.loss));
    for (const auto& [name, value] : pair_figures(eval.extra, "eval_"))
      figures.emplace_back("evaluation " + name, fmt::format("{:.4f}", value));
  }
  if (run.loss_floor) figures.emplace_back("loss floor", fmt::format("{:.4f}", *run.loss_floor));
  figures.emplace_back(
      "steps", run.max_steps > 0 ? fmt::format("{} of {}", last.step, run.max_steps) : std::to_string(last.step));
  figures.emplace_back("tokens", count_text(static_cast<double>(last.tokens)));
  figures.emplace_back("tokens/s", count_text(mean_tokens_per_second(history)));
  if (const std::optional<double> mfu = mean_mfu(history))
    figures.emplace_back("MFU", fmt::format("{:.1f} %", 100 * *mfu));
  if (last.samples > 0) figures.emplace_back("samples", count_text(static_cast<double>(last.samples)));
  if (last.memory_bytes > 0) figures.emplace_back("memory of a rank", bytes_text(last.memory_bytes));
  figures.emplace_back("training time", duration_text(seconds_of(history)));
  return figures;
}

}  // namespace

NamedTexts headline_figures(const RunDescription& run, const RunHistory& history) {
  NamedTexts size;
  if (run.parameters > 0) {
    size = {{"parameters", count_text(static_cast<double>(run.parameters))},
            {"trained parameters", count_text(static_cast<double>(run.trained_parameters))}};
  }
  NamedTexts figures = step_figures(run, history);
  figures.insert(figures.end(), size.begin(), size.end());
  return figures;
}

NamedValues pair_figures(const NamedValues& extra, const std::string& prefix) {
  // Those of stage dpo, with TRL's names, and of reward models. An accuracy of tokens is shown too.
  constexpr std::array<std::array<std::string_view, 2>, 4> kShown = {{{"rewards/accuracies", "accuracy"},
                                                                      {"accuracy", "accuracy"},
                                                                      {"rewards/margins", "margin"},
                                                                      {"margin", "margin"}}};
  NamedValues figures;
  for (const auto& [logged, shown] : kShown) {
    for (const auto& [name, value] : extra) {
      if (name == prefix + std::string(logged)) figures.emplace_back(shown, value);
    }
  }
  return figures;
}

std::string opening_text(const RunDescription& run) { return fmt::format("{}\n{}", run.title, rows_text(run.opening)); }

std::string evaluation_line(const LoggedEval& eval) {
  std::string text = fmt::format("step {}: evaluation loss {:.4f}", eval.step, eval.loss);
  for (const auto& [name, value] : pair_figures(eval.extra, "eval_")) text += fmt::format(", {} {:.4f}", name, value);
  return text + fmt::format(" in {:.1f} s", eval.seconds);
}

std::string summary_text(const RunDescription& run, const RunHistory& history, const FinishReport& end) {
  std::string text = fmt::format("\n{}", end.reason);
  const LoggedStep last = history.steps.empty() ? LoggedStep() : history.steps.back();
  const int64_t steps = last.step + end.unlogged.steps;
  const auto tokens = static_cast<double>(last.tokens + end.unlogged.tokens);
  const double seconds = seconds_of(history) + (end.unlogged.steps > 0 ? end.unlogged.seconds : 0);
  if (steps == 0) {
    text += ": no step was done\n";
  } else {
    text += fmt::format(": {} step{}, {} tokens in {}", steps, steps == 1 ? "" : "s", count_text(tokens), duration_text(seconds));
    if (seconds > 0) text += fmt::format(", {} tokens/s", count_text(tokens / seconds));
    if (const std::optional<double> mfu = mean_mfu(history)) text += fmt::format(", MFU {:.1f} %", 100 * *mfu);
    text += fmt::format("\n{}\n", losses_line(run, history, end.unlogged, steps));
  }
  text += files_text(run, end);
  for (const std::string& line : end.next) text += fmt::format("  next: {}\n", line);
  return text;
}

}  // namespace concord
