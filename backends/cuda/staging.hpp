// Reductions that NCCL lacks, or defines differently, run on a different element type: the values are encoded into it,
// reduced by NCCL, and decoded. Header-only, for the kernels and for tests on the host.
//
//   min, max of floats   NCCL's ignore NaN; here any NaN makes the result NaN. The encoding is an integer in the same
//                        order, with every NaN beyond the end that wins.
//   i16                  NCCL has no such type. The encoding is the value as i32; decoding wraps.
#pragma once

#include <cstdint>

#include "platform/sdk/dtypes.hpp"

namespace concord::cuda {

// Maps the bits of a float to a signed integer of the same order: -inf < ... < -0 < +0 < ... < +inf. Its own inverse.
template <class Signed>
CONCORD_HOST_DEVICE inline Signed ordered(Signed bits) {
  constexpr Signed kMagnitude = static_cast<Signed>(~(Signed{1} << (sizeof(Signed) * 8 - 1)));
  return bits < 0 ? static_cast<Signed>(bits ^ kMagnitude) : bits;
}

// A float format: Value holds its bits, Staged is the type that NCCL reduces, kInfinity the bits of +inf.
template <class ValueType, class StagedType, ValueType infinity>
struct FloatFormat {
  using Value = ValueType;
  using Staged = StagedType;
  static constexpr Value kInfinity = infinity;
  static constexpr Value kMagnitude = static_cast<Value>(~(Value{1} << (sizeof(Value) * 8 - 1)));
  static constexpr Value kNan = static_cast<Value>(infinity | (infinity >> 1));  // the first mantissa bit: a quiet one
};

using F32Format = FloatFormat<int32_t, int32_t, 0x7f800000>;
using F64Format = FloatFormat<int64_t, int64_t, 0x7ff0000000000000>;
using Bf16Format = FloatFormat<int16_t, int32_t, 0x7f80>;
using F16Format = FloatFormat<int16_t, int32_t, 0x7c00>;

template <class Format, bool maximum>
struct FloatOrder {
  using Value = typename Format::Value;
  using Staged = typename Format::Staged;
  static constexpr Staged kLowest = static_cast<Staged>(Staged{1} << (sizeof(Staged) * 8 - 1));
  static constexpr Staged kNanCode = maximum ? static_cast<Staged>(~kLowest) : kLowest;

  CONCORD_HOST_DEVICE static Staged encode(Value bits) {
    const bool nan = static_cast<Value>(bits & Format::kMagnitude) > Format::kInfinity;
    return nan ? kNanCode : static_cast<Staged>(ordered(bits));
  }
  CONCORD_HOST_DEVICE static Value decode(Staged code) {
    return code == kNanCode ? Format::kNan : ordered(static_cast<Value>(code));
  }
};

struct WideI16 {
  using Value = int16_t;
  using Staged = int32_t;
  CONCORD_HOST_DEVICE static Staged encode(Value value) { return value; }
  CONCORD_HOST_DEVICE static Value decode(Staged code) { return static_cast<Value>(code); }
};

// Whether (dtype, reduce) runs on a different type.
inline bool is_staged(concord_dtype dtype, concord_reduce_op reduce) {
  const bool real = dtype == CONCORD_DTYPE_F32 || dtype == CONCORD_DTYPE_F64 || dtype == CONCORD_DTYPE_BF16 ||
                    dtype == CONCORD_DTYPE_F16;
  const bool order = reduce == CONCORD_REDUCE_MIN || reduce == CONCORD_REDUCE_MAX;
  return dtype == CONCORD_DTYPE_I16 || (real && order);
}

// Returns the type that NCCL then reduces.
inline concord_dtype staged_dtype(concord_dtype dtype) {
  return dtype == CONCORD_DTYPE_F64 ? CONCORD_DTYPE_I64 : CONCORD_DTYPE_I32;
}

// Calls |visitor| with the codec of (dtype, reduce), for which is_staged holds.
template <class Visitor>
auto visit_codec(concord_dtype dtype, concord_reduce_op reduce, Visitor&& visitor) {
  const bool maximum = reduce == CONCORD_REDUCE_MAX;
  switch (dtype) {
    case CONCORD_DTYPE_F32:
      return maximum ? visitor(FloatOrder<F32Format, true>()) : visitor(FloatOrder<F32Format, false>());
    case CONCORD_DTYPE_F64:
      return maximum ? visitor(FloatOrder<F64Format, true>()) : visitor(FloatOrder<F64Format, false>());
    case CONCORD_DTYPE_BF16:
      return maximum ? visitor(FloatOrder<Bf16Format, true>()) : visitor(FloatOrder<Bf16Format, false>());
    case CONCORD_DTYPE_F16:
      return maximum ? visitor(FloatOrder<F16Format, true>()) : visitor(FloatOrder<F16Format, false>());
    default: return visitor(WideI16());
  }
}

}  // namespace concord::cuda
