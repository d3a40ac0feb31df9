// The rng table: random numbers. The contract of each method is in platform/abi/rng.h.
#pragma once

#include "platform/abi/rng.h"

namespace concord::null {

class Rng {
 public:
  void fill(const concord_rng_request* request, concord_stream stream);
};

}  // namespace concord::null
