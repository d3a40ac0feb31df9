// A rank's part of a weight that is held in 4 bits (core/ops/precision/nf4.h), with the values that the part has in the
// whole weight: blocks of 256 absmax and their mean are those of all ranks together. 0.516 bytes per element.
// Threads: any, at the same time.
#pragma once

#include <vector>

#include "core/ops/precision/nf4.h"
#include "core/parallel/shard_spec.h"

namespace concord {

class Nf4Weight {
 public:
  // Of some blocks, how their absmax was quantised in the global tensor that they are of.
  struct Part {
    ShardRun blocks;    // of the rank's blocks, and their numbers in the global tensor
    at::Tensor scales;  // on the device
    double mean;
  };

  Nf4Weight(at::Tensor codes, at::Tensor absmax_codes, std::vector<Part> parts);

  // [rows, columns] in |type|; computed on each call.
  at::Tensor dequantised(c10::ScalarType type) const;
  int64_t bytes() const;

 private:
  at::Tensor absmax() const;

  at::Tensor codes_, absmax_codes_, map_;
  std::vector<Part> parts_;
};

}  // namespace concord
