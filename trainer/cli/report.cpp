#include "trainer/cli/report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>

#include "core/base/config_error.h"
#include "core/base/files/output_check.h"
#include "trainer/arguments/table.h"
#include "trainer/cli/serve_report.h"
#include "trainer/report/curves_svg.h"
#include "trainer/report/files.h"
#include "trainer/report/page/page.h"
#include "trainer/report/progress.h"

namespace concord {
namespace {

using nlohmann::ordered_json;

struct ReportOptions {
  std::vector<std::string> folders;
  std::vector<std::string> names;
  std::string metric = "loss";
  std::string over = "step";
  std::string title;
  std::string svg;
  std::string html;
  double floor = NAN;
  bool overwrite = false;
  bool json = false;
  bool serve = false;
  int port = 0;
};

void check_report_options(const ReportOptions& given) {
  if (!given.names.empty() && given.names.size() != given.folders.size())
    throw ConfigError(
        fmt::format("got {} names for {} runs; give one name per run", given.names.size(), given.folders.size()));
  if (!given.html.empty() && given.folders.size() != 1)
    throw ConfigError(fmt::format("--html writes the page of one run; got {} runs", given.folders.size()));
  if (given.serve && (given.folders.size() != 1 || given.json || !given.html.empty() || !given.svg.empty()))
    throw ConfigError("--serve shows one run, and cannot be combined with --html, --svg or --json");
  if (!given.serve && given.port != 0) throw ConfigError("--port is for --serve");
  if (given.json && given.svg == "-")
    throw ConfigError("--json and another document cannot both use standard output; write one to a file");
}

void check_outputs(const ReportOptions& given) {
  OutputRules rules{.overwrite = given.overwrite};
  for (const std::string& folder : given.folders) {
    for (const char* const name : {kMetricsFile, kEvalMetricsFile, kSamplesFile, kRankTimesFile})
      rules.inputs.push_back(folder + "/" + name);
  }
  check_output_files({{"--html", given.html}, {"--svg", given.svg}}, rules);
}

std::vector<ComparedRun> read_runs(const ReportOptions& given) {
  std::vector<ComparedRun> runs;
  for (size_t i = 0; i < given.folders.size(); ++i) {
    const std::string& folder = given.folders[i];
    if (!std::filesystem::exists(folder + "/" + kMetricsFile))
      throw ConfigError(fmt::format("{} contains no {}; give the output_dir of a run", folder, kMetricsFile));
    runs.push_back({given.names.empty() ? folder : given.names[i], read_history(folder)});
    if (runs.back().history.steps.empty()) throw ConfigError(fmt::format("{}: no step has been logged yet", folder));
  }
  return runs;
}

// Metrics of a step and of an evaluation, by the names used in their files.
NamedValues metrics_of(const LoggedStep& step) {
  NamedValues values = {
      {"loss", step.loss}, {"learning_rate", step.learning_rate}, {"tokens_per_second", step.tokens_per_second}};
  if (step.grad_norm) values.emplace_back("grad_norm", *step.grad_norm);
  if (step.mfu) values.emplace_back("mfu", *step.mfu);
  values.insert(values.end(), step.extra.begin(), step.extra.end());
  return values;
}
NamedValues metrics_of(const LoggedEval& eval) {
  NamedValues values = {
      {"eval_loss", eval.loss}, {"eval_runtime", eval.seconds}, {"eval_tokens_per_second", eval.tokens_per_second}};
  values.insert(values.end(), eval.extra.begin(), eval.extra.end());
  return values;
}

// Tokens seen by the end of |step|, as far as logged.
int64_t tokens_at(int64_t step, const RunHistory& history) {
  const auto logged =
      std::find_if(history.steps.begin(), history.steps.end(), [&](const LoggedStep& one) { return one.step >= step; });
  return logged == history.steps.end() ? history.steps.back().tokens : logged->tokens;
}

Curve curve_of(const ComparedRun& run, const ReportOptions& given) {
  Curve curve{.name = run.name, .x = {}, .y = {}};
  std::set<std::string> names;
  const auto add = [&](int64_t step, const NamedValues& values) {
    for (const auto& [name, value] : values) {
      names.insert(name);
      if (name != given.metric) continue;
      curve.x.push_back(static_cast<double>(given.over == "tokens" ? tokens_at(step, run.history) : step));
      curve.y.push_back(value);
    }
  };
  for (const LoggedStep& step : run.history.steps) add(step.step, metrics_of(step));
  for (const LoggedEval& eval : run.history.evals) add(eval.step, metrics_of(eval));
  if (names.contains(given.metric)) return curve;
  throw ConfigError(fmt::format("{} has no metric {}; available: {}", run.name, given.metric, fmt::join(names, ", ")));
}

std::string picture_of(const std::vector<ComparedRun>& runs, const ReportOptions& given) {
  CurvesPicture picture{.title = given.title, .x_label = given.over, .y_label = given.metric};
  for (const ComparedRun& run : runs) picture.curves.push_back(curve_of(run, given));
  if (std::isfinite(given.floor)) picture.levels.emplace_back("floor", given.floor);
  picture.from_zero = given.metric == "tokens_per_second" || given.metric == "mfu";
  return draw_curves(picture);
}

double lowest_loss(const RunHistory& history) {
  double lowest = NAN;
  for (const LoggedStep& step : history.steps) {
    if (std::isfinite(step.loss) && !(step.loss >= lowest)) lowest = step.loss;
  }
  return lowest;
}

double tokens_per_second(const RunHistory& history) {
  double seconds = 0;
  for (const LoggedStep& step : history.steps) seconds += step.seconds;
  return seconds > 0 ? static_cast<double>(history.steps.back().tokens) / seconds : 0;
}

// Describes the only run.
RunDescription description_of(const ReportOptions& given) {
  const std::string& name = given.names.empty() ? given.folders[0] : given.names[0];
  RunDescription run{.output_dir = given.folders[0], .title = given.title.empty() ? name : given.title};
  if (std::isfinite(given.floor)) run.loss_floor = given.floor;
  const std::string file = given.folders[0] + "/training_args.yaml";
  try {
    TrainingArguments arguments;
    if (read_yaml(read_if_there(file), file, &arguments).empty()) return run;
    run.configuration = printed_arguments(arguments);
    run.changed = changed_arguments(arguments, 0);
  } catch (const ConfigError&) {  // of a program with its own arguments, or another version
  }
  return run;
}

void run_report(const ReportOptions& given) {
  check_report_options(given);
  check_outputs(given);
  if (given.serve) return serve_report(description_of(given), given.port);
  const std::vector<ComparedRun> runs = read_runs(given);
  if (!given.html.empty()) {
    replace_file(given.html, report_page(description_of(given), runs[0].history, {.reason = "from its metrics"}));
  }
  if (given.svg == "-") {
    std::fputs(picture_of(runs, given).c_str(), stdout);
    return;
  }
  if (!given.svg.empty()) replace_file(given.svg, picture_of(runs, given));
  std::fputs((given.json ? compared_json(runs) + "\n" : compared_text(runs)).c_str(), stdout);
}

}  // namespace

LossDifference loss_difference(const RunHistory& reference, const RunHistory& other) {
  std::map<int64_t, double> losses;
  for (const LoggedStep& step : reference.steps) losses[step.step] = step.loss;
  LossDifference difference;
  for (const LoggedStep& step : other.steps) {
    const auto found = losses.find(step.step);
    if (found == losses.end()) continue;
    const bool both_nan = std::isnan(step.loss) && std::isnan(found->second);
    const double here = both_nan ? 0 : std::abs(step.loss - found->second);
    // A NaN compared with a number counts as the largest difference.
    if (difference.steps++ == 0 || here > difference.absolute || (std::isnan(here) && !std::isnan(difference.absolute)))
      difference = {difference.steps, step.step, here};
  }
  return difference;
}

std::string compared_text(const std::vector<ComparedRun>& runs) {
  size_t widest = 3;
  for (const ComparedRun& run : runs) widest = std::max(widest, run.name.size());
  std::string text = fmt::format("{:<{}}{:>9}{:>12}{:>12}{:>12}  {}\n", "run", widest, "steps", "last loss", "lowest",
                                 "tokens/s", runs.size() > 1 ? "largest difference from the first run" : "");
  for (size_t i = 0; i < runs.size(); ++i) {
    const RunHistory& history = runs[i].history;
    text += fmt::format("{:<{}}{:>9}{:>12.5f}{:>12.5f}{:>12}", runs[i].name, widest, history.steps.back().step,
                        history.steps.back().loss, lowest_loss(history), count_text(tokens_per_second(history)));
    if (i > 0) {
      const LossDifference difference = loss_difference(runs[0].history, history);
      text += difference.steps == 0 ? "  no step in common"
                                    : fmt::format("  {:.2e} at step {}", difference.absolute, difference.step);
    }
    text += "\n";
  }
  return text;
}

std::string compared_json(const std::vector<ComparedRun>& runs) {
  ordered_json document = {{"runs", ordered_json::array()}};
  for (const ComparedRun& run : runs) {
    const LossDifference difference = loss_difference(runs[0].history, run.history);
    document["runs"].push_back({{"name", run.name},
                                {"steps", run.history.steps.back().step},
                                {"loss", run.history.steps.back().loss},
                                {"lowest_loss", lowest_loss(run.history)},
                                {"tokens_per_second", tokens_per_second(run.history)},
                                {"steps_in_common", difference.steps},
                                {"largest_loss_difference", difference.absolute}});
  }
  return document.dump();
}

void add_report_command(CLI::App* program) {
  const auto given = std::make_shared<ReportOptions>();
  CLI::App* report = program->add_subcommand("report", "compare training runs: table, plot or HTML page");
  report->add_option("runs", given->folders, "output_dir of each run; the others are compared with the first")
      ->required();
  report->add_option("--names", given->names, "names of the runs, separated by commas")->delimiter(',');
  report
      ->add_option("--metric", given->metric,
                   "metric to plot: loss, eval_loss, learning_rate, grad_norm, tokens_per_second, mfu or another")
      ->capture_default_str();
  report->add_option("--over", given->over, "x axis: step or tokens")
      ->check(CLI::IsMember({"step", "tokens"}))
      ->capture_default_str();
  report->add_option("--title", given->title, "title of the plot and the page");
  report->add_option("--floor", given->floor, "loss to draw as a horizontal line");
  report->add_option("--svg", given->svg, "write a plot to this file; - is standard output");
  report->add_option("--html", given->html, "write the HTML page of one run to this file");
  report->add_flag("--overwrite", given->overwrite, "replace existing files");
  report->add_flag("--serve", given->serve,
                   "show the page of one run, live, to browsers on this machine, until Ctrl-C");
  report->add_option("--port", given->port, "port of --serve; 0: any free one")
      ->check(CLI::Range(0, 65535))
      ->capture_default_str();
  report->add_flag("--json", given->json, "one JSON document on standard output");
  report->callback([given] { run_report(*given); });
}

}  // namespace concord
