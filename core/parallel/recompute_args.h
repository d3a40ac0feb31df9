// Options of activation recomputation (core/parallel/recompute.h); independent of libtorch.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace concord {

// Named as in Megatron and ROLL, with the same meaning.
struct RecomputeArgs {
  std::string granularity = "";    // recompute_granularity: empty, "full" or "selective"
  std::string method = "uniform";  // recompute_method, for "full": "uniform" or "block"
  int64_t num_layers = 1;          // recompute_num_layers: layers per unit (uniform), or recomputed layers (block)
  std::vector<std::string> modules = {};  // recompute_modules, for "selective"; empty: core_attn
  bool operator==(const RecomputeArgs&) const = default;
};

}  // namespace concord
