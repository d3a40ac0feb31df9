// Which layers of a model chunk are recomputed together (core/parallel/recompute.h); needs no libtorch.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace concord {

// Names and meaning are Megatron's and ROLL's.
struct RecomputeArgs {
  std::string granularity = "";           // recompute_granularity: empty, "full" or "selective"
  std::string method = "uniform";         // recompute_method, of "full": "uniform" or "block"
  int64_t num_layers = 1;                 // recompute_num_layers: of a unit (uniform), or how many at all (block)
  std::vector<std::string> modules = {};  // recompute_modules, of "selective"; none: core_attn
  bool operator==(const RecomputeArgs&) const = default;
};

}  // namespace concord
