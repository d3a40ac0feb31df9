// What NVIDIA states for its devices: dense matrix products, FLOP/s, a multiply and add as two. The runtime does not
// tell it, so it is a table of the data sheets' numbers by the device's name. Pure.
#pragma once

#include <string_view>

namespace concord::cuda {

struct PeakFlops {
  double f32 = 0;  // without TF32
  double bf16 = 0;
  double f16 = 0;
};

// |name| as cudaGetDeviceProperties gives it ("NVIDIA H100 80GB HBM3"). Zeros for a device that is not in the table,
// and for a slice of one (MIG).
PeakFlops peak_flops_of(std::string_view name);

}  // namespace concord::cuda
