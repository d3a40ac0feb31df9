#include "core/parallel/offload/activation_moves.h"

#include <fmt/core.h>

#include <algorithm>

#include "core/base/config_error.h"

namespace concord {

std::vector<ActivationMove> activation_moves(std::span<const LayerRun> runs, const ActivationOffloadArgs& args,
                                             bool input_stays) {
  std::vector<ActivationMove> moves;
  if (!args.is_on() || runs.empty()) return moves;
  const auto recomputed = std::count_if(runs.begin(), runs.end(), [](const LayerRun& run) { return run.recomputed; });
  if (recomputed == 0) {
    throw ConfigError(
        "cpu_offloading moves the inputs of recomputed layers, but no layer is recomputed; set recompute_granularity: "
        "full, or remove cpu_offloading and cpu_offloading_num_layers");
  }
  const int64_t layers = args.cpu_offloading_num_layers > 0 ? args.cpu_offloading_num_layers : runs.back().end;
  std::vector<int64_t> units;
  for (int64_t unit = input_stays ? 1 : 0; unit + 1 < recomputed; ++unit) {  // recomputed runs precede others
    if (runs[static_cast<size_t>(unit)].begin < layers) units.push_back(unit);
  }
  using enum ActivationMove::To;
  using enum ActivationMove::Pass;
  for (const int64_t unit : units) moves.push_back({unit, host, forward, unit});
  for (auto unit = units.rbegin(); unit != units.rend(); ++unit) moves.push_back({*unit, device, backward, *unit + 1});
  return moves;
}

int64_t offloaded_units(std::span<const ActivationMove> moves) {
  return std::count_if(moves.begin(), moves.end(),
                       [](const ActivationMove& move) { return move.to == ActivationMove::To::host; });
}

std::string text_of(const ActivationMove& move) {
  return fmt::format("{}{}: {} {}", move.pass == ActivationMove::Pass::forward ? 'F' : 'B', move.at, move.unit,
                     move.to == ActivationMove::To::host ? "out" : "in");
}

}  // namespace concord
