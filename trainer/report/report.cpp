#include "trainer/report/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>

#include "core/base/quoted.h"
#include "trainer/report/files.h"
#include "trainer/report/page/page.h"
#include "trainer/report/summary.h"
#include "trainer/report/tensorboard.h"
#include "trainer/report/tracker.h"
#include "trainer/report/trainer_state.h"

namespace concord {
namespace {

// Decay of the step time estimate, so that an evaluation or a checkpoint between two log lines changes it little.
constexpr double kNewStepWeight = 0.2;
constexpr double kRefreshSeconds = 1;  // age of the values on the terminal's line

double system_clock_seconds() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

RunDescription prepared(RunDescription run) {
  if (!run.clock) run.clock = system_clock_seconds;
  make_folder(run.output_dir);
  return run;
}

// Returns the last step that was logged before the run was resumed; removes later ones from the files.
LoggedStep last_earlier_step(const RunDescription& run) {
  if (run.first_step == 0) return {};
  RunHistory history = read_history(run.output_dir);
  forget_after(run.first_step, run.output_dir, &history);
  return history.steps.empty() ? LoggedStep() : history.steps.back();
}

void add_to(NamedValues* scalars, const std::string& group, const NamedValues& extra) {
  for (const auto& [name, value] : extra) scalars->emplace_back(group + name, value);
}

// TensorBoard's group replaces the prefix, as in HF: eval/accuracy is eval_accuracy.
void add_evaluated(NamedValues* scalars, const NamedValues& extra) {
  constexpr std::string_view kPrefix = "eval_";
  for (const auto& [name, value] : extra)
    scalars->emplace_back("eval/" + (name.starts_with(kPrefix) ? name.substr(kPrefix.size()) : name), value);
}

// Returns the values with Hugging Face's names for tracking services.
TrackedValues tracked(const LoggedStep& entry) {
  NamedValues values = {{"loss", entry.loss}, {"learning_rate", entry.learning_rate}};
  if (entry.grad_norm) values.emplace_back("grad_norm", *entry.grad_norm);
  values.insert(values.end(), {{"epoch", entry.epoch},
                               {"num_input_tokens_seen", static_cast<double>(entry.tokens)},
                               {"tokens_per_second", entry.tokens_per_second}});
  if (entry.mfu) values.emplace_back("mfu", *entry.mfu);
  if (entry.samples > 0) values.emplace_back("samples", static_cast<double>(entry.samples));
  if (entry.memory_bytes > 0) values.emplace_back("memory_bytes", static_cast<double>(entry.memory_bytes));
  add_to(&values, "", entry.extra);
  return {.step = entry.step, .time = entry.time, .values = std::move(values)};
}

TrackedValues tracked(const LoggedEval& entry) {
  NamedValues values = {{"eval_loss", entry.loss},
                        {"eval_runtime", entry.seconds},
                        {"eval_tokens_per_second", entry.tokens_per_second},
                        {"epoch", entry.epoch}};
  add_to(&values, "", entry.extra);
  return {.step = entry.step, .time = entry.time, .values = std::move(values)};
}

std::optional<double> value_of(const NamedValues& values, std::string_view name) {
  for (const auto& [each, value] : values) {
    if (each == name) return value;
  }
  return std::nullopt;
}

// Returns the text about skipped updates. |covered| steps are reported.
std::string skipped_text(const StepReport& report, int64_t covered) {
  if (report.skipped == 0) return "";
  const std::string what = covered > 1 ? fmt::format("{} of {} steps skipped", report.skipped, covered) : "skipped";
  const double untrained = value_of(report.extra, "untrained_iter").value_or(0);
  if (untrained == static_cast<double>(report.skipped))
    return what + ", nothing to train on (iterations_to_skip, or no labels)";
  if (report.next_loss_scale == 0) return what + ", gradient NaN or Inf";
  // The scale of the step, which is logged as well.
  const double scale = value_of(report.extra, "loss_scale").value_or(report.next_loss_scale);
  return fmt::format("{}, loss scale {} {:.0f}", what, report.next_loss_scale < scale ? "halved to" : "is",
                     report.next_loss_scale);
}

}  // namespace

struct TrainingReport::Parts {
  Parts(const RunDescription& description, std::vector<std::unique_ptr<Tracker>> given)
      : run(prepared(description)),
        trackers(std::move(given)),
        last(last_earlier_step(run)),
        metrics(run.output_dir + "/" + kMetricsFile, run.first_step == 0),
        eval_metrics(run.output_dir + "/" + kEvalMetricsFile, run.first_step == 0),
        rank_times(run.output_dir + "/" + kRankTimesFile, run.first_step == 0),
        display(run.terminal, run.progress),
        step(run.first_step),
        reached(run.first_step) {
    if (run.first_tokens > 0) last.tokens = run.first_tokens;
    std::error_code ignored;
    if (run.first_step == 0) std::filesystem::remove(run.output_dir + "/" + kSamplesFile, ignored);
    if (run.tensorboard) events = std::make_unique<EventFile>(run.output_dir + "/runs", run.first_step, run.clock());
    progress.max_steps = run.max_steps;
  }

  LoggedStep logged(const StepReport& report);
  void add_samples(const EvalReport& report);
  void measure(const StepReport& report);
  void set_time_left(int64_t steps, double seconds);
  void track(const TrackedValues& logged);
  void show_notes();

  RunDescription run;
  std::vector<std::unique_ptr<Tracker>> trackers;
  LoggedStep last;  // the only row in memory: the files have all of them
  AppendFile metrics;
  AppendFile eval_metrics;
  AppendFile rank_times;
  std::optional<AppendFile> samples;  // created with the first sample
  std::unique_ptr<EventFile> events;
  ProgressDisplay display;
  Progress progress;
  int64_t step;             // last logged step
  int64_t reached;          // last known step
  double step_seconds = 0;  // per step, smoothed
  double values_at = 0;     // time of |progress|; 0: it has no values yet
  BestResult best;
};

void TrainingReport::Parts::track(const TrackedValues& logged) {
  for (const auto& tracker : trackers) tracker->log(logged);
  show_notes();
}

void TrainingReport::Parts::show_notes() {
  for (const auto& tracker : trackers) {
    for (const std::string& note : tracker->take_notes())
      display.note(fmt::format("note: {}: {}", tracker->name(), note));
  }
}

void TrainingReport::Parts::add_samples(const EvalReport& report) {
  if (!samples) samples.emplace(run.output_dir + "/" + kSamplesFile, /*truncate=*/false);
  for (const auto& [prompt, text] : report.samples) {
    samples->append(metrics_line(LoggedSample{report.step, prompt, text}) + "\n");
    display.note(fmt::format("  sample: {} -> {}", one_line(prompt), one_line(text)));
  }
}

LoggedStep TrainingReport::Parts::logged(const StepReport& report) {
  LoggedStep entry{.step = report.step,
                   .epoch = report.epoch,
                   .loss = report.loss,
                   .learning_rate = report.learning_rate,
                   .grad_norm = report.grad_norm,
                   .tokens = last.tokens + report.tokens,
                   .samples = last.samples + report.samples,
                   .tokens_per_second = report.seconds > 0 ? static_cast<double>(report.tokens) / report.seconds : 0,
                   .seconds = report.seconds,
                   .memory_bytes = report.memory_bytes,
                   .time = run.clock(),
                   .extra = report.extra};
  if (!run.shape) return entry;
  const auto count = static_cast<double>(report.tokens);
  const double text = report.squared_lengths > 0 ? training_flops(*run.shape, count, report.squared_lengths)
                                                 : training_flops(*run.shape, count);
  const double now = text + tower_flops(run.tower, static_cast<double>(report.patches), report.squared_patches);
  entry.flops = now + last.flops;
  if (run.peak_flops > 0 && report.seconds > 0) {
    entry.mfu = model_flops_utilisation(now, report.seconds, run.peak_flops, run.world_size);
  }
  return entry;
}

// Estimates the remaining time from the step time; before the first log line, from |steps| that took |seconds|.
void TrainingReport::Parts::set_time_left(int64_t steps, double seconds) {
  const double each = step_seconds > 0 || steps == 0 ? step_seconds : seconds / static_cast<double>(steps);
  if (run.max_steps > 0 && each > 0)
    progress.seconds_left = each * static_cast<double>(std::max<int64_t>(0, run.max_steps - progress.step));
}

void TrainingReport::Parts::measure(const StepReport& report) {
  const int64_t covered = report.step - step;
  if (covered > 0 && report.seconds > 0) {
    const double now = report.seconds / static_cast<double>(covered);
    step_seconds = step_seconds == 0 ? now : step_seconds + kNewStepWeight * (now - step_seconds);
  }
}

TrainingReport::TrainingReport(const RunDescription& run, std::vector<std::unique_ptr<Tracker>> trackers)
    : parts_(std::make_unique<Parts>(run, std::move(trackers))) {}

TrainingReport::~TrainingReport() = default;

void TrainingReport::begin() {
  parts_->display.note(opening_text(parts_->run));
  for (const auto& tracker : parts_->trackers) tracker->begin(parts_->run);
  parts_->show_notes();
}

bool TrainingReport::on_progress(int64_t step) {
  Parts& parts = *parts_;
  parts.reached = std::max(parts.reached, step);
  Progress progress = parts.progress;
  if (progress.seconds_left && step > progress.step)
    *progress.seconds_left -= parts.step_seconds * static_cast<double>(step - progress.step);
  progress.step = step;
  parts.show_notes();  // also resends what a service did not accept before
  const bool is_stale = parts.display.is_redrawn() && parts.run.clock() - parts.values_at >= kRefreshSeconds;
  if (!is_stale) parts.display.moved(progress);  // else on_recent or on_step will
  return is_stale;
}

void TrainingReport::on_recent(const RecentSteps& recent) {
  Parts& parts = *parts_;
  parts.values_at = parts.run.clock();
  parts.progress.step = parts.reached;
  if (!std::isnan(recent.loss)) parts.progress.loss = recent.loss;
  if (recent.seconds > 0) parts.progress.tokens_per_second = static_cast<double>(recent.tokens) / recent.seconds;
  parts.set_time_left(recent.steps, recent.seconds);
  parts.display.moved(parts.progress);
}

void TrainingReport::on_step(const StepReport& report) {
  Parts& parts = *parts_;
  const LoggedStep entry = parts.logged(report);
  parts.metrics.append(metrics_line(entry) + "\n");
  if (parts.events) {
    NamedValues scalars = {{"train/loss", entry.loss}, {"train/learning_rate", entry.learning_rate}};
    if (entry.grad_norm) scalars.emplace_back("train/grad_norm", *entry.grad_norm);
    scalars.emplace_back("train/epoch", entry.epoch);
    scalars.emplace_back("train/tokens_per_second", entry.tokens_per_second);
    if (entry.mfu) scalars.emplace_back("train/mfu", *entry.mfu);
    add_to(&scalars, "train/", entry.extra);
    parts.events->add(entry.time, entry.step, scalars);
  }
  parts.track(tracked(entry));
  parts.measure(report);
  parts.values_at = entry.time;
  parts.progress.step = entry.step;
  parts.set_time_left(0, 0);
  parts.progress.loss = entry.loss;
  parts.progress.learning_rate = entry.learning_rate;
  parts.progress.grad_norm = entry.grad_norm;
  parts.progress.skipped = skipped_text(report, report.step - parts.step);
  parts.progress.tokens_per_second = entry.tokens_per_second;
  parts.progress.mfu = entry.mfu;
  parts.progress.of_pairs = pair_figures(entry.extra, "");
  parts.progress.memory_bytes = entry.memory_bytes;
  parts.display.logged(parts.progress);
  parts.step = entry.step;
  parts.reached = std::max(parts.reached, entry.step);
  parts.last = entry;
  if (report.ranks) parts.rank_times.append(metrics_line(*report.ranks) + "\n");
}

void TrainingReport::on_eval(const EvalReport& report) {
  Parts& parts = *parts_;
  const LoggedEval entry{
      .step = report.step,
      .epoch = report.epoch,
      .loss = report.loss,
      .seconds = report.seconds,
      .tokens_per_second = report.seconds > 0 ? static_cast<double>(report.tokens) / report.seconds : 0,
      .time = parts.run.clock(),
      .extra = report.extra};
  parts.eval_metrics.append(metrics_line(entry) + "\n");
  if (parts.events) {
    NamedValues scalars = {{"eval/loss", entry.loss}, {"eval/tokens_per_second", entry.tokens_per_second}};
    add_evaluated(&scalars, entry.extra);
    parts.events->add(entry.time, entry.step, scalars);
  }
  parts.track(tracked(entry));
  parts.display.note(evaluation_line(entry));
  if (!report.samples.empty()) parts.add_samples(report);
}

void TrainingReport::note(const std::string& text) { parts_->display.note(text); }

void TrainingReport::set_best(const BestResult& best) { parts_->best = best; }

std::string TrainingReport::state_json() const {
  return trainer_state_json(parts_->run, parts_->reached, parts_->best);
}

void TrainingReport::finish(const FinishReport& report) {
  Parts& parts = *parts_;
  parts.display.end();
  parts.metrics.check_there();
  parts.eval_metrics.check_there();
  parts.rank_times.check_there();
  replace_file(parts.run.output_dir + "/" + kTrainerStateFile, state_json());
  const RunHistory history = read_history(parts.run.output_dir);
  if (parts.run.html) replace_file(parts.run.output_dir + "/report.html", report_page(parts.run, history, report));
  FinishReport summary = report;
  for (const auto& tracker : parts.trackers) {
    if (std::string text = tracker->finish(); !text.empty()) summary.files.emplace_back(tracker->name(), text);
  }
  parts.show_notes();
  parts.display.note(summary_text(parts.run, history, summary));
}

}  // namespace concord
