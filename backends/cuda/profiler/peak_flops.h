// Peak FLOP/s of dense matrix products according to NVIDIA's data sheets; a multiply-add counts as two. The runtime
// does not report them, so they are looked up by device name. Pure.
#pragma once

#include <string_view>

namespace concord::cuda {

struct PeakFlops {
  double f32 = 0;  // without TF32
  double bf16 = 0;
  double f16 = 0;
};

// |name| is that of cudaGetDeviceProperties ("NVIDIA H100 80GB HBM3"). Returns zeros for an unknown device and for a
// part of one (MIG).
PeakFlops peak_flops_of(std::string_view name);

}  // namespace concord::cuda
