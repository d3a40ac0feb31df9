#include "trainer/torch_module/operators_rank.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "core/ops/comparison.h"
#include "platform/cpp/concord.hpp"
#include "trainer/report/files.h"

namespace concord {
namespace {

using nlohmann::ordered_json;
using ops::OperatorComparison;

// JSON has no NaN.
ordered_json number(double value) {
  return std::isfinite(value) ? ordered_json(value) : ordered_json(fmt::format("{}", value));
}

ordered_json row_of(const OperatorComparison& each) {
  ordered_json used = ordered_json::array();
  for (const double share : each.bound_used) used.push_back(number(share));
  ordered_json row = {{"operator", each.op},
                      {"kernel", each.kernel},
                      {"type", each.type},
                      {"arguments", each.arguments},
                      {"error_bound_used", std::move(used)},
                      {"verdict", each.is_right() ? "pass" : "fail"}};
  if (!each.choices.empty()) row["choices"] = each.choices;
  if (!each.error.empty()) row["error"] = each.error;
  return row;
}

void print_row(const OperatorComparison& each) {
  double most = 0;
  for (const double share : each.bound_used) most = std::isnan(share) ? share : std::max(most, share);
  fmt::print("{}  {:>7.1f} %  {:<9} {:<8}  {}{}\n", each.is_right() ? "pass" : "FAIL", most * 100, each.kernel,
             each.type, each.op, each.arguments);
  if (!each.error.empty()) fmt::print("      {}\n", each.error);
  std::fflush(stdout);
}

}  // namespace

int compare_operators(const OperatorsArguments& given) {
  ordered_json rows = ordered_json::array();
  int64_t wrong = 0;
  const std::vector<std::string> without = ops::compare_operators(
      {.filter = given.filter, .all_sizes = given.all_sizes}, [&](const OperatorComparison& each) {
        print_row(each);
        wrong += each.is_right() ? 0 : 1;
        rows.push_back(row_of(each));
      });
  const int64_t count = static_cast<int64_t>(rows.size());
  const std::string verdict = count == 0 ? "nothing ran" : wrong > 0 ? "not equal" : "equal within the bounds";
  fmt::print("\n{} comparisons on {}, {} wrong: {}\n", count, current_platform().label(), wrong, verdict);
  if (!without.empty()) fmt::print("without samples of real sizes: {}\n", fmt::join(without, ", "));
  const ordered_json document = {
      {"device", current_platform().label()}, {"reference", "the host in fp64"},
      {"comparisons", std::move(rows)},       {"counts", {{"pass", count - wrong}, {"fail", wrong}}},
      {"without_samples", without},           {"verdict", verdict}};
  if (!given.out.empty()) {
    replace_file(given.out, document.dump(1, ' ', false, ordered_json::error_handler_t::replace) + "\n");
  }
  return count > 0 && wrong == 0 ? 0 : 1;
}

}  // namespace concord
