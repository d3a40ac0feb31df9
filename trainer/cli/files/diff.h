// `concord diff A B`: compares two dumps or folders of weights, tensor by tensor. Needs neither libtorch nor a device.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "core/safetensors/compare.h"

namespace CLI {
class App;
}

namespace concord {

struct DiffReport {
  std::string a;  // paths
  std::string b;
  safetensors::Tolerance tolerance;
  std::vector<safetensors::TensorComparison> tensors;  // in natural order
  // The first tensor that does not agree; null if all do. Activations, which `probe` numbers in the order in which
  // the model computes them ("activation.<number>.<part>"), come before all others.
  const safetensors::TensorComparison* first_difference = nullptr;

  bool agrees() const { return first_difference == nullptr; }
};

// The files of the comparisons have to outlive the report.
DiffReport make_diff_report(const safetensors::Weights& a, const safetensors::Weights& b,
                            const safetensors::Tolerance& tolerance, bool any_dtype);

// Returns a summary and a table of the tensors that differ, or of every tensor if |all|.
std::string diff_text(const DiffReport& report, bool all);
// One document: {"a", "b", "rtol", "atol", "agrees", "counts": {outcome: number}, "first_difference": name or null,
// "tensors": [{"name", "outcome", "dtype_a", "dtype_b", "shape_a", "shape_b", "elements", "unequal", "beyond",
// "nan_in_one", "max_abs", "max_abs_at", "a", "b", "max_rel", "max_rel_at", "norm_ratio", "tolerance_used"}]}. Missing
// values are null; numbers that JSON cannot represent are "inf", "-inf" and "nan".
std::string diff_json(const DiffReport& report);
nlohmann::ordered_json diff_document(const DiffReport& report);

// Options of `concord diff` and `concord checkpoint diff`.
struct DiffOptions {
  std::string a, b;
  safetensors::Tolerance tolerance;
  bool any_dtype = false, all = false, json = false;
};
// All but a and b.
void add_diff_options(CLI::App* command, DiffOptions* options);
// Throws ConfigError for a negative value or NaN.
void check_tolerance(const safetensors::Tolerance& tolerance);

// Adds the subcommand to |program|. Exit code 1 if something differs; throws ConfigError for files that
// cannot be read.
void add_diff_command(CLI::App* program, int* exit_code);

}  // namespace concord
