// Needs no libtorch.
#pragma once

#include <string_view>

#include "core/base/enum_names.h"

namespace concord {

// The tokens that an expert beyond its capacity keeps: those with the largest weights (ties: the earlier), or the first
// ones. Megatron's moe_token_drop_policy.
enum class DropPolicy { probs, position };
template <>
inline constexpr std::string_view kEnumNames<DropPolicy>[] = {"probs", "position"};

}  // namespace concord
