#include "trainer/cli/files/checkpoint_diff.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "core/base/config_error.h"
#include "core/base/parse_json.h"
#include "core/base/quoted.h"
#include "core/models/adapters/adapter_config.h"
#include "trainer/checkpoint/training_state.h"
#include "trainer/cli/files/diff.h"

namespace concord {
namespace {

using nlohmann::ordered_json;
using safetensors::Weights;

struct FieldDifference {
  std::string field;  // "optimizer.lr_counter"
  ordered_json a, b;  // null: it has none
};

// Tensors of one stem in both folders. A folder may have none: it is then not compared, or only in one.
struct TensorSet {
  std::string name;
  std::unique_ptr<Weights> a, b;
  std::optional<DiffReport> report;

  bool agrees() const { return report ? report->agrees() : a == nullptr && b == nullptr; }
};

std::unique_ptr<Weights> open_weights(const std::string& folder) {
  return std::make_unique<Weights>(folder, weights_stem(folder));
}

std::unique_ptr<Weights> open_optimizer(const std::string& folder) {
  for (const std::string& name :
       {safetensors::single_file(safetensors::kOptimizerStem), safetensors::index_file(safetensors::kOptimizerStem)}) {
    std::error_code ignored;
    if (std::filesystem::exists(folder + "/" + name, ignored))
      return std::make_unique<Weights>(folder, safetensors::kOptimizerStem);
  }
  return nullptr;
}

// |open| returns the tensors of a folder, or nullptr if it has none. A is opened first, so that an error names A if
// both are unreadable: elements of a braced list are evaluated in order, arguments of a call in any order.
TensorSet compare(std::string name, std::unique_ptr<Weights> (*open)(const std::string&), const DiffOptions& options) {
  TensorSet set{.name = std::move(name), .a = open(options.a), .b = open(options.b), .report = {}};
  if (set.a && set.b) set.report = make_diff_report(*set.a, *set.b, options.tolerance, options.any_dtype);
  return set;
}

void compare_values(const std::string& field, const ordered_json& a, const ordered_json& b,
                    std::vector<FieldDifference>* found) {
  if (a == b) return;
  if (!a.is_object() || !b.is_object()) {
    found->push_back({field, a, b});
    return;
  }
  for (const auto& [key, value] : a.items()) {
    compare_values(field + "." + key, value, b.contains(key) ? b[key] : ordered_json(), found);
  }
  for (const auto& [key, value] : b.items()) {
    if (!a.contains(key)) found->push_back({field + "." + key, nullptr, value});
  }
}

// What decides how a run continues. Not the losses, which belong to the log; not the layout and the arguments, which
// may be others; generators only where both have the same ranks.
std::vector<FieldDifference> compare_metadata(const std::string& a, const std::string& b) {
  const bool has_a = can_resume_from(a), has_b = can_resume_from(b);
  if (!has_a && !has_b) return {};
  const auto presence = [](bool has) { return has ? ordered_json("present") : ordered_json(); };
  if (has_a != has_b) return {{kMetadataFile, presence(has_a), presence(has_b)}};
  const TrainingState state_a = read_training_state(a), state_b = read_training_state(b);
  const auto json_a = parse_json<ordered_json>(to_json(state_a), a),
             json_b = parse_json<ordered_json>(to_json(state_b), b);
  std::vector<FieldDifference> found;
  for (const char* field : {"step", "tokens", "epoch", "steps_in_epoch", "data", "optimizer"}) {
    compare_values(field, json_a.at(field), json_b.at(field), &found);
  }
  if (state_a.layout.has_same_ranks(state_b.layout)) compare_values("rng", json_a.at("rng"), json_b.at("rng"), &found);
  return found;
}

std::string short_text(const ordered_json& value) {
  constexpr size_t kMaxLength = 60;
  return value.is_null() ? "none" : one_line(value.dump(), kMaxLength);
}

void print_text(const std::vector<FieldDifference>& metadata, const std::vector<TensorSet>& sets, bool all) {
  for (const FieldDifference& each : metadata) {
    fmt::print("metadata  {}: {} vs {}\n", one_line(each.field), short_text(each.a), short_text(each.b));
  }
  if (metadata.empty()) fmt::print("metadata  identical\n");
  for (const TensorSet& set : sets) {
    fmt::print("\n{}\n", set.name);
    if (set.report) {
      fmt::print("{}", diff_text(*set.report, all));
    } else {
      fmt::print("{}\n", set.a ? "only in A" : set.b ? "only in B" : "in neither");
    }
  }
}

void print_json(const std::vector<FieldDifference>& metadata, const std::vector<TensorSet>& sets, bool agrees) {
  ordered_json fields = ordered_json::array();
  for (const FieldDifference& each : metadata) fields.push_back({{"field", each.field}, {"a", each.a}, {"b", each.b}});
  ordered_json json = {{"agrees", agrees}, {"metadata", std::move(fields)}};
  for (const TensorSet& set : sets) {
    json[set.name] = set.report ? diff_document(*set.report)
                     : set.a    ? ordered_json("only in A")
                     : set.b    ? ordered_json("only in B")
                                : ordered_json();
  }
  fmt::print("{}\n", json.dump(1));
}

int compare_checkpoints(const DiffOptions& options) {
  check_tolerance(options.tolerance);
  const std::vector<FieldDifference> metadata = compare_metadata(options.a, options.b);
  std::vector<TensorSet> sets;
  sets.push_back(compare("weights", open_weights, options));
  sets.push_back(compare("optimizer", open_optimizer, options));
  bool agrees = metadata.empty();
  for (const TensorSet& set : sets) agrees = agrees && set.agrees();
  options.json ? print_json(metadata, sets, agrees) : print_text(metadata, sets, options.all);
  return agrees ? 0 : 1;
}

}  // namespace

void add_checkpoint_diff_command(CLI::App* checkpoint, int* exit_code) {
  CLI::App* diff =
      checkpoint->add_subcommand("diff", "compare weights, optimizer state and metadata of two checkpoints");
  const auto options = std::make_shared<DiffOptions>();
  diff->add_option("A", options->a, "folder of a checkpoint")->required();
  diff->add_option("B", options->b, "folder of the reference; --rtol is relative to it")->required();
  add_diff_options(diff, options.get());
  diff->footer(
      "The layouts that wrote them do not matter. Exit codes: 0 all of it matches, 1 something differs, 2 a file "
      "cannot be read.");
  diff->callback([options, exit_code] { *exit_code = compare_checkpoints(*options); });
}

}  // namespace concord
