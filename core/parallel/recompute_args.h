// Options of activation recomputation (core/parallel/recompute.h); independent of libtorch.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "core/base/enum_names.h"

namespace concord {

enum class RecomputeGranularity { none, full, selective };
template <>
inline constexpr std::string_view kEnumNames<RecomputeGranularity>[] = {"", "full", "selective"};

enum class RecomputeMethod { uniform, block };
template <>
inline constexpr std::string_view kEnumNames<RecomputeMethod>[] = {"uniform", "block"};

enum class RecomputeModule { core_attn, mlp, layernorm, mlp_act, moe_act };
template <>
inline constexpr std::string_view kEnumNames<RecomputeModule>[] = {"core_attn", "mlp", "layernorm", "mlp_act",
                                                                   "moe_act"};

// Named as in Megatron and ROLL, with the same meaning.
struct RecomputeArgs {
  RecomputeGranularity granularity = RecomputeGranularity::none;
  RecomputeMethod method = RecomputeMethod::uniform;  // for full
  int64_t num_layers = 1;  // recompute_num_layers: layers per unit (uniform), or recomputed layers (block)
  std::vector<RecomputeModule> modules = {};  // for selective; empty: core_attn
  bool operator==(const RecomputeArgs&) const = default;
};

}  // namespace concord
