// The sum of one slice that goes from host to host. It has the bits of backends/shm's reductions: sums that these keep
// in a wider type within one call travel in that type.
#pragma once

#include <cstdint>

#include "platform/abi/types.h"

namespace concord::net {

class SliceSum {
 public:
  SliceSum(concord_dtype dtype, concord_reduce_op op, int32_t world);

  // Whether the reduction can be continued on another host: all reductions except averages of integers.
  static bool works(concord_dtype dtype, concord_reduce_op op);

  concord_dtype travels_as() const { return wide_; }  // f32 for bf16 and f16
  int64_t travel_bytes(int64_t elements) const;

  // Converts |elements| from the stored type to the travelling type.
  void widen(void* out, const void* in, int64_t elements) const;
  // out = the reduction of |sources|, in order, all in the travelling type; |out| may be one of them.
  void add(void* out, const void* const* sources, int32_t source_count, int64_t elements) const;
  // Called on the host of the last rank: divides averages (in place, in |sum|) and writes |out| in the stored type.
  void finish(void* out, void* sum, int64_t elements) const;

 private:
  concord_dtype dtype_;
  concord_dtype wide_;
  concord_reduce_op op_;  // operation on the travelling sum; an average travels as a sum
  bool average_;
  int32_t world_;
};

}  // namespace concord::net
