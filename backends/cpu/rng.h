// The rng table.
#pragma once

#include "platform/abi/rng.h"

namespace concord::cpu {

class Streams;

class Rng {
 public:
  explicit Rng(Streams& streams) : streams_(streams) {}

  void fill(const concord_rng_request* request, concord_stream stream);

 private:
  Streams& streams_;
};

}  // namespace concord::cpu
