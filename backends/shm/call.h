// The call that a rank was asked to do, in two words of shared memory, so that ranks can compare their calls before
// they touch each other's data and messages can name them.
#pragma once

#include <cstdint>
#include <string>

#include "platform/abi/comm.h"

namespace concord::shm {

// Internal operations, in addition to those of comm.h.
inline constexpr concord_comm_op kSetUp = 100;
inline constexpr concord_comm_op kSplit = 101;

struct Call {
  concord_comm_op operation = 0;
  concord_dtype dtype = 0;
  concord_reduce_op reduce = 0;
  int32_t root = -1;  // -1: the operation has none
  int64_t count = 0;

  uint64_t head() const;  // everything but the count; never 0
  uint64_t tail() const { return static_cast<uint64_t>(count); }
  static Call unpack(uint64_t head, uint64_t tail);
};

// "all_reduce(f32 x 100, sum)", "broadcast(i8 x 3, root 2)", "barrier".
std::string describe(const Call& call);

}  // namespace concord::shm
