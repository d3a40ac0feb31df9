// Options of moving activations to the host's memory (core/parallel/offload/activation_offload.h); independent of
// libtorch.
#pragma once

#include <cstdint>

namespace concord {

// Named as in Megatron.
struct ActivationOffloadArgs {
  bool cpu_offloading = false;
  int64_t cpu_offloading_num_layers = 0;  // layers of each chunk, from its first one; 0: all

  bool is_on() const { return cpu_offloading || cpu_offloading_num_layers > 0; }
  bool operator==(const ActivationOffloadArgs&) const = default;
};

}  // namespace concord
