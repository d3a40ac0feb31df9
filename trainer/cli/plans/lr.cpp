#include "trainer/cli/plans/lr.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "core/base/config_error.h"
#include "core/base/files/output_check.h"
#include "core/base/quoted.h"
#include "trainer/arguments/table.h"
#include "trainer/report/curves_svg.h"
#include "trainer/report/files.h"

namespace concord {
namespace {

constexpr int64_t kMaxUpdates = 10'000'000;
constexpr size_t kRows = 20;
constexpr double kBar = 40;
constexpr size_t kMaxDrawn = 2000;

struct LrOptions {
  std::string csv;
  std::string svg;
  bool overwrite = false;
  bool json = false;
};

void write_out(const std::string& path, const std::string& text) {
  if (path == "-")
    std::fputs(text.c_str(), stdout);
  else
    replace_file(path, text);
}

void run_lr(const LrOptions& given, const TrainingArguments& settings) {
  if (static_cast<int>(given.json) + (given.csv == "-" ? 1 : 0) + (given.svg == "-" ? 1 : 0) > 1)
    throw ConfigError("only one document can be written to standard output; use files for the others");
  check_output_files({{"--csv", given.csv}, {"--svg", given.svg}}, {.overwrite = given.overwrite});
  LrArguments lr = settings.lr;
  lr.max_steps = settings.steps.max_steps;
  lr.global_batch_size = std::max<int64_t>(1, settings.steps.global_batch_size);
  const std::vector<LrPoint> points = lr_points(lr);
  if (!given.csv.empty()) write_out(given.csv, lr_csv(points));
  if (!given.svg.empty()) write_out(given.svg, lr_svg(lr, points));
  if (given.csv == "-" || given.svg == "-") return;
  std::fputs((given.json ? lr_json(points) + "\n" : lr_text(points)).c_str(), stdout);
}

// The arguments that change the result.
std::string footer() {
  std::string text =
      "Arguments of train, from --config FILE and the command line. Required: --max_steps. Others that change the "
      "rates:\n";
  for (const char* name :
       {"lr_scheduler_type", "lr_scheduler_kwargs", "learning_rate", "min_lr", "warmup_steps", "warmup_samples",
        "warmup_ratio", "lr_warmup_init", "lr_decay_steps", "lr_decay_samples", "lr_wsd_decay_steps",
        "lr_wsd_decay_samples", "global_batch_size", "lr_step_offset", "lr_wsd_decay_style", "weight_decay",
        "start_weight_decay", "end_weight_decay", "weight_decay_incr_style"}) {
    text += fmt::format("  --{:<24} {}\n", name, argument_help(*find_argument(name)));
  }
  return text;
}

}  // namespace

std::vector<LrPoint> lr_points(const LrArguments& arguments) {
  if (arguments.max_steps < 1 || arguments.max_steps > kMaxUpdates)
    throw ConfigError(fmt::format("--max_steps is {}; must be from 1 to {}", arguments.max_steps, kMaxUpdates));
  LrSchedule schedule(arguments);
  std::vector<LrPoint> points;
  for (int64_t update = 1; update <= arguments.max_steps; ++update, schedule.step())
    points.push_back({update, schedule.lr(), schedule.weight_decay()});
  return points;
}

std::string lr_csv(const std::vector<LrPoint>& points) {
  std::string text = "step,learning_rate,weight_decay\n";
  for (const LrPoint& point : points)
    text += fmt::format("{},{},{}\n", point.update, point.learning_rate, point.weight_decay);
  return text;
}

std::string lr_json(const std::vector<LrPoint>& points) {
  nlohmann::ordered_json document = {{"learning_rate", nlohmann::ordered_json::array()},
                                     {"weight_decay", nlohmann::ordered_json::array()}};
  for (const LrPoint& point : points) {
    document["learning_rate"].push_back(point.learning_rate);
    document["weight_decay"].push_back(point.weight_decay);
  }
  return document.dump();
}

std::string lr_text(const std::vector<LrPoint>& points) {
  double highest = 0;
  for (const LrPoint& point : points) highest = std::max(highest, point.learning_rate);
  std::string text = fmt::format("{:>10}  {:<12}{:<13}\n", "step", "lr", "weight decay");
  const size_t rows = std::min(kRows, points.size());
  for (size_t row = 0; row < rows; ++row) {
    // The first and the last are always included.
    const LrPoint& point = points[rows == 1 ? 0 : row * (points.size() - 1) / (rows - 1)];
    const double share = highest > 0 ? point.learning_rate / highest : 0;
    text += fmt::format("{:>10}  {:<12.4e}{:<13.6g} {}\n", point.update, point.learning_rate, point.weight_decay,
                        std::string(static_cast<size_t>(std::lround(share * kBar)), '='));
  }
  return text;
}

std::string lr_svg(const LrArguments& arguments, const std::vector<LrPoint>& points) {
  CurvesPicture picture{.title = fmt::format("{}, {} steps", arguments.lr_scheduler_type, arguments.max_steps),
                        .x_label = "step",
                        .y_label = "learning rate",
                        .from_zero = true};
  Curve curve{.name = "learning rate", .x = {}, .y = {}};
  const size_t stride = (points.size() + kMaxDrawn - 1) / kMaxDrawn;
  for (size_t i = 0; i < points.size(); ++i) {
    if (i % stride != 0 && i + 1 != points.size()) continue;
    curve.x.push_back(static_cast<double>(points[i].update));
    curve.y.push_back(points[i].learning_rate);
  }
  picture.curves.push_back(std::move(curve));
  return draw_curves(picture);
}

void add_lr_command(CLI::App* program) {
  const auto given = std::make_shared<LrOptions>();
  CLI::App* lr = program->add_subcommand("lr", "print and plot the learning rates of a run; arguments as for train");
  lr->footer(footer());
  lr->allow_extras();  // arguments of train
  lr->add_option("--csv", given->csv, "write every step to this file; - is standard output");
  lr->add_option("--svg", given->svg, "write a plot to this file; - is standard output");
  lr->add_flag("--overwrite", given->overwrite, "replace existing files");
  lr->add_flag("--json", given->json, "one JSON document on standard output");
  lr->callback([given, lr] { run_lr(*given, parse_command_line(lr->remaining()).arguments); });
}

}  // namespace concord
