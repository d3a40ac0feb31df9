// The rng table: the numbers that platform/sdk/philox.hpp defines, computed on the device.
#pragma once

#include "backends/cuda/device.h"

namespace concord::cuda {

class Rng {
 public:
  explicit Rng(Devices& devices) : devices_(devices) {}

  void fill(const concord_rng_request* request, concord_stream stream);

 private:
  Devices& devices_;
};

}  // namespace concord::cuda
