#include "trainer/cli/files/diff.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <cmath>
#include <cstdio>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>

#include "core/base/config_error.h"
#include "core/base/quoted.h"

namespace concord {
namespace {

using nlohmann::ordered_json;
using safetensors::Difference;
using safetensors::index_of;
using safetensors::TensorComparison;
using safetensors::TensorInfo;
using safetensors::Weights;

bool is_activation(const TensorComparison& tensor) { return tensor.name.starts_with("activation."); }

const TensorComparison* find_first(const std::vector<TensorComparison>& tensors) {
  const TensorComparison* first = nullptr;
  for (const TensorComparison& tensor : tensors) {
    if (tensor.agrees()) continue;
    if (is_activation(tensor)) return &tensor;
    if (first == nullptr) first = &tensor;
  }
  return first;
}

std::map<std::string, int64_t> counts_of(const DiffReport& report) {
  std::map<std::string, int64_t> counts;
  for (const TensorComparison& tensor : report.tensors) ++counts[to_string(tensor.outcome)];
  return counts;
}

ordered_json number_json(double value) {
  if (std::isfinite(value)) return value;
  return std::isnan(value) ? "nan" : value > 0 ? "inf" : "-inf";
}

ordered_json difference_json(const TensorComparison& tensor) {
  ordered_json json;
  if (!tensor.difference) {
    for (const char* name : {"elements", "unequal", "beyond", "nan_in_one", "max_abs", "max_abs_at", "a", "b",
                             "max_rel", "max_rel_at", "norm_ratio", "tolerance_used"})
      json[name] = nullptr;
    return json;
  }
  const Difference& d = *tensor.difference;
  return {
      {"elements", d.elements},
      {"unequal", d.unequal},
      {"beyond", d.beyond},
      {"nan_in_one", d.nan_in_one},
      {"max_abs", number_json(d.largest_absolute.value)},
      {"max_abs_at", d.identical() ? ordered_json() : ordered_json(index_of(d.largest_absolute.at, tensor.a->shape))},
      {"a", d.identical() ? ordered_json() : number_json(d.largest_absolute.a)},
      {"b", d.identical() ? ordered_json() : number_json(d.largest_absolute.b)},
      {"max_rel", number_json(d.largest_relative.value)},
      {"max_rel_at",
       d.largest_relative.value == 0 ? ordered_json() : ordered_json(index_of(d.largest_relative.at, tensor.a->shape))},
      {"norm_ratio", number_json(d.norm_ratio)},
      {"tolerance_used", number_json(d.tolerance_used)}};
}

ordered_json tensor_json(const TensorComparison& tensor) {
  const auto dtype = [](const TensorInfo* info) {
    return info ? ordered_json(to_string(info->dtype)) : ordered_json();
  };
  const auto shape = [](const TensorInfo* info) { return info ? ordered_json(info->shape) : ordered_json(); };
  ordered_json json = {{"name", tensor.name},        {"outcome", to_string(tensor.outcome)},
                       {"dtype_a", dtype(tensor.a)}, {"dtype_b", dtype(tensor.b)},
                       {"shape_a", shape(tensor.a)}, {"shape_b", shape(tensor.b)}};
  json.update(difference_json(tensor));
  return json;
}

using Line = std::vector<std::string>;

std::string number_text(double value) { return fmt::format("{:.3g}", value); }

// Types and shapes of both sides, where values cannot be compared.
std::string sides_text(const TensorComparison& tensor) {
  const auto side = [](const TensorInfo* info) {
    return info ? fmt::format("{} {}", to_string(info->dtype), safetensors::shape_text(info->shape))
                : std::string("none");
  };
  return fmt::format("{}: {} vs {}", to_string(tensor.outcome), side(tensor.a), side(tensor.b));
}

Line line_of(const TensorComparison& tensor) {
  Line line = {one_line(tensor.name)};
  if (!tensor.difference) {
    line.resize(8);
    line.push_back(sides_text(tensor));
    return line;
  }
  const Difference& d = *tensor.difference;
  if (d.identical()) {
    line.insert(line.end(), {"0", "", "", "", "0", "0", "0"});
  } else {
    line.insert(line.end(),
                {number_text(d.largest_absolute.value),
                 safetensors::shape_text(index_of(d.largest_absolute.at, tensor.a->shape)),
                 fmt::format("{:.6g}", d.largest_absolute.a), fmt::format("{:.6g}", d.largest_absolute.b),
                 number_text(d.largest_relative.value), number_text(d.norm_ratio), number_text(d.tolerance_used)});
  }
  std::string value =
      tensor.outcome == TensorComparison::Outcome::other_type ? sides_text(tensor) : to_string(tensor.outcome);
  if (d.beyond > 0) value += fmt::format(" in {} of {}", d.beyond, d.elements);
  if (d.nan_in_one > 0) value += fmt::format(", {} NaN on one side", d.nan_in_one);
  line.push_back(value);
  return line;
}

std::string table_text(const std::vector<Line>& lines) {
  std::vector<size_t> widths(lines.front().size());
  for (const Line& line : lines) {
    for (size_t i = 0; i < line.size(); ++i) widths[i] = std::max(widths[i], line[i].size());
  }
  std::string text;
  for (const Line& line : lines) {
    std::string row;
    for (size_t i = 0; i < line.size(); ++i) row += fmt::format("{:<{}}  ", line[i], widths[i]);
    row.erase(row.find_last_not_of(' ') + 1);
    text += row + "\n";
  }
  return text;
}

std::string first_text(const TensorComparison& first) {
  if (!is_activation(first)) return fmt::format("first difference: {}\n", one_line(first.name));
  const std::string rest = one_line(first.name).substr(std::string("activation.").size());
  const size_t dot = rest.find('.');
  return fmt::format("first differing layer: {} (output {} of the model)\n",
                     dot == std::string::npos ? rest : rest.substr(dot + 1), rest.substr(0, dot));
}

int run_diff(const DiffOptions& options) {
  check_tolerance(options.tolerance);
  const Weights a(options.a), b(options.b);
  const DiffReport report = make_diff_report(a, b, options.tolerance, options.any_dtype);
  std::fputs((options.json ? diff_json(report) : diff_text(report, options.all)).c_str(), stdout);
  return report.agrees() ? 0 : 1;
}

}  // namespace

DiffReport make_diff_report(const Weights& a, const Weights& b, const safetensors::Tolerance& tolerance,
                            bool any_dtype) {
  DiffReport report{
      .a = a.path(), .b = b.path(), .tolerance = tolerance, .tensors = compare_weights(a, b, tolerance, any_dtype)};
  report.first_difference = find_first(report.tensors);
  return report;
}

std::string diff_text(const DiffReport& report, bool all) {
  std::vector<Line> lines = {{"tensor", "|a-b|", "at", "a", "b", "|a-b|/|b|", "norm", "tolerance used", ""}};
  for (const TensorComparison& tensor : report.tensors) {
    if (all || tensor.outcome != TensorComparison::Outcome::identical) lines.push_back(line_of(tensor));
  }
  std::string text = lines.size() > 1 ? table_text(lines) + "\n" : "";
  std::vector<std::string> counts;
  for (const auto& [outcome, count] : counts_of(report)) counts.push_back(fmt::format("{} {}", count, outcome));
  text += fmt::format("A {}\nB {}\n{} tensors: {} (rtol {}, atol {})\n", report.a, report.b, report.tensors.size(),
                      counts.empty() ? "none" : fmt::format("{}", fmt::join(counts, ", ")), report.tolerance.relative,
                      report.tolerance.absolute);
  return report.agrees() ? text : text + first_text(*report.first_difference);
}

nlohmann::ordered_json diff_document(const DiffReport& report) {
  ordered_json tensors = ordered_json::array();
  for (const TensorComparison& tensor : report.tensors) tensors.push_back(tensor_json(tensor));
  return {{"a", report.a},
          {"b", report.b},
          {"rtol", report.tolerance.relative},
          {"atol", report.tolerance.absolute},
          {"agrees", report.agrees()},
          {"counts", counts_of(report)},
          {"first_difference", report.agrees() ? ordered_json() : ordered_json(report.first_difference->name)},
          {"tensors", std::move(tensors)}};
}

std::string diff_json(const DiffReport& report) { return diff_document(report).dump(1) + "\n"; }

void check_tolerance(const safetensors::Tolerance& tolerance) {
  for (const double value : {tolerance.relative, tolerance.absolute}) {
    if (!(value >= 0)) throw ConfigError(fmt::format("invalid tolerance {}: must be >= 0", value));
  }
}

void add_diff_options(CLI::App* command, DiffOptions* options) {
  command->add_option("--rtol", options->tolerance.relative, "a matches b if |a-b| <= atol + rtol*|b|; default: 0");
  command->add_option("--atol", options->tolerance.absolute, "see --rtol; default: 0");
  command->add_flag("--any_dtype", options->any_dtype, "compare values only and ignore dtypes");
  command->add_flag("--all", options->all, "also list identical tensors");
  command->add_flag("--json", options->json, "print one JSON document");
}

void add_diff_command(CLI::App* program, int* exit_code) {
  CLI::App* command = program->add_subcommand("diff", "compare two dumps or weight folders, tensor by tensor");
  auto options = std::make_shared<DiffOptions>();
  command->add_option("A", options->a, "a safetensors file, or a folder with model.safetensors or its index")
      ->required();
  command->add_option("B", options->b, "the reference, in the same formats; --rtol is relative to it")->required();
  add_diff_options(command, options.get());
  command->footer("Exit codes: 0 all tensors match, 1 some differ, 2 a file cannot be read.");
  command->callback([options, exit_code] { *exit_code = run_diff(*options); });
}

}  // namespace concord
