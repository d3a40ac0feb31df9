// A rank's shard of an NF4 weight (core/ops/precision/nf4.h). Its values are those of the whole weight: the blocks of
// 256 absmax and their mean span all ranks. 0.516 bytes per element. Threads: any, concurrently.
#pragma once

#include <vector>

#include "core/ops/precision/nf4.h"
#include "core/parallel/shard_spec.h"

namespace concord {

class Nf4Weight {
 public:
  // Quantisation of the absmax of some blocks in their global tensor.
  struct Part {
    ShardRun blocks;    // indices of the rank's blocks, here and in the global tensor
    at::Tensor scales;  // on the device
    double mean;
  };

  Nf4Weight(at::Tensor codes, at::Tensor absmax_codes, std::vector<Part> parts);

  // Returns the weight [rows, columns] in |type|; computed on each call.
  at::Tensor dequantised(c10::ScalarType type) const;
  int64_t bytes() const;

 private:
  at::Tensor absmax() const;

  at::Tensor codes_, absmax_codes_, map_;
  std::vector<Part> parts_;
};

}  // namespace concord
