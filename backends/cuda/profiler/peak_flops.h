// Peak FLOP/s of dense matrix products according to NVIDIA's data sheets; a multiply and add count as two. The runtime
// does not report them, so they are in a table by device name. Pure.
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
