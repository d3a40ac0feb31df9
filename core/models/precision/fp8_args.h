// FP8 options; needs no libtorch.
#pragma once

#include <cstdint>
#include <string_view>

#include "core/base/enum_names.h"

namespace concord {

// hybrid: e4m3, and e5m2 for gradients.
enum class Fp8Formats { none, hybrid, e4m3 };
template <>
inline constexpr std::string_view kEnumNames<Fp8Formats>[] = {"none", "hybrid", "e4m3"};

// Where scales come from: delayed (the largest values of earlier steps), current (of each tensor, which is read twice)
// or blockwise (of blocks of 128 and 128 x 128; e4m3 only).
enum class Fp8Recipe { delayed, current, blockwise };
template <>
inline constexpr std::string_view kEnumNames<Fp8Recipe>[] = {"delayed", "current", "blockwise"};

// Named as in Megatron, fp8_...
struct Fp8Args {
  // Applies to the linear layers of attention and MLP; the output layer, attention itself, norms, routers and experts
  // compute in the model's type.
  Fp8Formats format = Fp8Formats::none;
  Fp8Recipe recipe = Fp8Recipe::delayed;
  int64_t amax_history_len = 1;  // delayed: number of steps the maximum is taken over
  bool first_last_layers_bf16 = false;
  bool operator==(const Fp8Args&) const = default;

  bool is_on() const { return format != Fp8Formats::none; }
  bool remembers() const { return is_on() && recipe == Fp8Recipe::delayed; }
};

}  // namespace concord
