// FP8 options; needs no libtorch.
#pragma once

#include <cstdint>
#include <string>

namespace concord {

// Named as in Megatron, fp8_...
struct Fp8Args {
  // none, hybrid (e4m3, and e5m2 for gradients) or e4m3. Applies to the linear layers of attention and MLP; the output
  // layer, attention itself, norms, routers and experts compute in the model's type.
  std::string format = "none";
  // Where scales come from: delayed (the largest values of earlier steps), current (of each tensor, which is read
  // twice) or blockwise (of blocks of 128 and 128 x 128; e4m3 only).
  std::string recipe = "delayed";
  int64_t amax_history_len = 1;  // delayed: number of steps the maximum is taken over
  bool first_last_layers_bf16 = false;
  bool operator==(const Fp8Args&) const = default;

  bool is_on() const { return format != "none"; }
  bool remembers() const { return is_on() && recipe == "delayed"; }
};

}  // namespace concord
