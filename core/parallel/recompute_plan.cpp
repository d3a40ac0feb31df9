#include <fmt/core.h>

#include <algorithm>

#include "core/base/config_error.h"
#include "core/parallel/recompute.h"

namespace concord {
namespace {

void check(const RecomputeArgs& args, int64_t layers) {
  if (args.granularity != RecomputeGranularity::full || args.num_layers >= 1) return;
  throw ConfigError(
      fmt::format("recompute_num_layers is {}; must be >= 1 (a chunk has {} layers)", args.num_layers, layers));
}

}  // namespace

bool recomputes_module(const RecomputeArgs& args, RecomputeModule module) {
  if (args.granularity != RecomputeGranularity::selective) return false;
  if (args.modules.empty()) return module == RecomputeModule::core_attn;
  return std::find(args.modules.begin(), args.modules.end(), module) != args.modules.end();
}

std::vector<LayerRun> recompute_plan(const RecomputeArgs& args, int64_t layers) {
  check(args, layers);
  std::vector<LayerRun> runs;
  if (args.granularity != RecomputeGranularity::full) {
    if (layers > 0) runs.push_back({0, layers, false});
    return runs;
  }
  const bool block = args.method == RecomputeMethod::block;
  const int64_t unit = block ? 1 : args.num_layers;
  const int64_t recomputed = block ? std::min(args.num_layers, layers) : layers;
  for (int64_t begin = 0; begin < recomputed; begin += unit) {
    runs.push_back({begin, std::min(begin + unit, recomputed), true});
  }
  if (recomputed < layers) runs.push_back({recomputed, layers, false});
  return runs;
}

}  // namespace concord
