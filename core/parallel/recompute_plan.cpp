#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "core/base/config_error.h"
#include "core/parallel/recompute.h"

namespace concord {
namespace {

void check(const RecomputeArgs& args, int64_t layers) {
  const auto& known = known_recompute_modules();
  if (args.granularity != "" && args.granularity != "full" && args.granularity != "selective") {
    throw ConfigError(fmt::format("recompute_granularity is '{}'; must be full, selective or empty", args.granularity));
  }
  if (args.granularity == "full" && args.method != "uniform" && args.method != "block") {
    throw ConfigError(fmt::format("recompute_method is '{}'; must be uniform or block", args.method));
  }
  if (args.granularity == "full" && args.num_layers < 1) {
    throw ConfigError(
        fmt::format("recompute_num_layers is {}; must be >= 1 (a chunk has {} layers)", args.num_layers, layers));
  }
  for (const std::string& module : args.modules) {
    if (std::find(known.begin(), known.end(), module) == known.end()) {
      throw ConfigError(
          fmt::format("recompute_modules contains '{}'; must be one of {}", module, fmt::join(known, ", ")));
    }
  }
}

}  // namespace

const std::vector<std::string>& known_recompute_modules() {
  static const std::vector<std::string> names{"core_attn", "mlp", "layernorm", "mlp_act", "moe_act"};
  return names;
}

bool recomputes_module(const RecomputeArgs& args, const std::string& module) {
  if (args.granularity != "selective") return false;
  if (args.modules.empty()) return module == "core_attn";
  return std::find(args.modules.begin(), args.modules.end(), module) != args.modules.end();
}

std::vector<LayerRun> recompute_plan(const RecomputeArgs& args, int64_t layers) {
  check(args, layers);
  std::vector<LayerRun> runs;
  if (args.granularity != "full") {
    if (layers > 0) runs.push_back({0, layers, false});
    return runs;
  }
  const bool block = args.method == "block";
  const int64_t unit = block ? 1 : args.num_layers;
  const int64_t recomputed = block ? std::min(args.num_layers, layers) : layers;
  for (int64_t begin = 0; begin < recomputed; begin += unit) {
    runs.push_back({begin, std::min(begin + unit, recomputed), true});
  }
  if (recomputed < layers) runs.push_back({recomputed, layers, false});
  return runs;
}

}  // namespace concord
