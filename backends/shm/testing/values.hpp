// Inputs that every rank can compute for every other, and what a reduction of them has to give.
//
// Floats are checked twice: against a reference in double (f64: long double), within a bound that follows from the type
// and the number of ranks, and bit by bit against the same arithmetic done in rank order. Integers, bool, MIN and MAX
// are exact.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "platform/sdk/dtypes.hpp"

namespace concord::shm::testing {

using Buffer = std::vector<std::byte>;

inline constexpr concord_dtype kAllTypes[] = {
    CONCORD_DTYPE_F32, CONCORD_DTYPE_F64, CONCORD_DTYPE_BF16, CONCORD_DTYPE_F16, CONCORD_DTYPE_I8,
    CONCORD_DTYPE_I16, CONCORD_DTYPE_I32, CONCORD_DTYPE_I64,  CONCORD_DTYPE_U8,  CONCORD_DTYPE_BOOL};
inline constexpr concord_reduce_op kAllReductions[] = {CONCORD_REDUCE_SUM, CONCORD_REDUCE_PROD, CONCORD_REDUCE_MIN,
                                                       CONCORD_REDUCE_MAX, CONCORD_REDUCE_AVG};

inline uint64_t mix(uint64_t value) {  // splitmix64
  value += 0x9e3779b97f4a7c15ull;
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9ull;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebull;
  return value ^ (value >> 31);
}

// Bytes [first, first + bytes) of an endless row of random ones that belongs to |rank| and |seed|.
Buffer raw_input(int rank, int64_t bytes, uint64_t seed, int64_t first = 0);

// The input of |rank|: |count| elements that depend on the rank, the position and |seed| only. Integers use all bits.
Buffer input(int rank, int64_t count, concord_dtype dtype, uint64_t seed, int64_t first = 0);

// Describes the first element of |result| that is not the reduction of |inputs| (one per rank); empty if all are.
std::string find_wrong(const std::vector<Buffer>& inputs, const std::byte* result, int64_t count, concord_dtype dtype,
                       concord_reduce_op op);

// Returns a hash by which ranks compare bytes.
uint64_t hash_of(const std::byte* data, int64_t bytes);

}  // namespace concord::shm::testing
