#include "backends/shm/reduce.h"

#include <type_traits>

#include "backends/shm/halves.h"
#include "platform/base/target_clones.hpp"
#include "platform/sdk/dtypes.hpp"

namespace concord::shm {
namespace {

// How an element is stored and what it is computed in. widen() and narrow() lead from one to the other and back.
template <class Type>
struct Plain {
  using Stored = Type;
  using Computed = Type;
  static Computed widen(Stored value) { return value; }
  static Stored narrow(Computed value) { return value; }
};

struct Bf16 {
  using Stored = uint16_t;
  using Computed = float;
  static Computed widen(Stored value) { return sdk::bf16_to_float(value); }
  static Stored narrow(Computed value) { return sdk::float_to_bf16(value); }
};

// Compilers do not vectorise conversions of halves; these are done in blocks.
struct F16 {
  using Stored = uint16_t;
  using Computed = float;
};

// Any byte that is not 0 counts as true; the result is 0 or 1.
struct Bool {
  using Stored = uint8_t;
  using Computed = uint8_t;
  static Computed widen(Stored value) { return value != 0 ? 1 : 0; }
  static Stored narrow(Computed value) { return value; }
};

// An integer in a wider type, so that a sum is exact before it is divided.
template <class Type, class Wide>
struct Widened {
  using Stored = Type;
  using Computed = Wide;
  static Computed widen(Stored value) { return value; }
  static Stored narrow(Computed value) { return static_cast<Stored>(value); }
};

// Signed overflow is undefined, unsigned wraps, and types below int are promoted to it: so compute in an unsigned type
// that is never promoted.
template <class Type, class Combine>
Type wrapping(Type a, Type b, Combine combine) {
  if constexpr (std::is_integral_v<Type>) {
    using Wrapping = std::conditional_t<sizeof(Type) < sizeof(uint32_t), uint32_t, std::make_unsigned_t<Type>>;
    return static_cast<Type>(combine(static_cast<Wrapping>(a), static_cast<Wrapping>(b)));
  } else {
    return combine(a, b);
  }
}

struct Sum {
  template <class Type>
  static Type combine(Type a, Type b) {
    return wrapping(a, b, [](auto x, auto y) { return x + y; });
  }
  template <class Type>
  static Type finish(Type value, int32_t) {
    return value;
  }
};

struct Prod {
  template <class Type>
  static Type combine(Type a, Type b) {
    return wrapping(a, b, [](auto x, auto y) { return x * y; });
  }
  template <class Type>
  static Type finish(Type value, int32_t) {
    return value;
  }
};

template <class Type>
bool is_nan(Type value) {
  if constexpr (std::is_floating_point_v<Type>) return value != value;
  return false;
}

// A NaN in |a| stays because no comparison with it is true.
struct Min {
  template <class Type>
  static Type combine(Type a, Type b) {
    return b < a || is_nan(b) ? b : a;
  }
  template <class Type>
  static Type finish(Type value, int32_t) {
    return value;
  }
};

struct Max {
  template <class Type>
  static Type combine(Type a, Type b) {
    return b > a || is_nan(b) ? b : a;
  }
  template <class Type>
  static Type finish(Type value, int32_t) {
    return value;
  }
};

struct Avg {
  template <class Type>
  static Type combine(Type a, Type b) {
    return a + b;
  }
  template <class Type>
  static Type finish(Type value, int32_t ranks) {
    return value / static_cast<Type>(ranks);
  }
};

// No value is carried from one element to the next, even if |out| is one of the sources; the pragma asserts that to the
// compiler.
#if defined(__clang__)
#define CONCORD_SHM_INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#else
#define CONCORD_SHM_INDEPENDENT _Pragma("GCC ivdep")
#endif

// Two and three sources, the most frequent cases, in one pass.
template <class Element, class Op>
[[gnu::always_inline]] inline void reduce_two(typename Element::Stored* out, const typename Element::Stored* first,
                                              const typename Element::Stored* second, int64_t elements) {
  CONCORD_SHM_INDEPENDENT
  for (int64_t i = 0; i < elements; ++i) {
    out[i] = Element::narrow(Op::finish(Op::combine(Element::widen(first[i]), Element::widen(second[i])), 2));
  }
}

template <class Element, class Op>
[[gnu::always_inline]] inline void reduce_three(typename Element::Stored* out, const typename Element::Stored* first,
                                                const typename Element::Stored* second,
                                                const typename Element::Stored* third, int64_t elements) {
  CONCORD_SHM_INDEPENDENT
  for (int64_t i = 0; i < elements; ++i) {
    const auto two = Op::combine(Element::widen(first[i]), Element::widen(second[i]));
    out[i] = Element::narrow(Op::finish(Op::combine(two, Element::widen(third[i])), 3));
  }
}

// Any number of sources: block by block through accumulators that stay in the first-level cache.
template <class Element, class Op>
[[gnu::always_inline]] inline void reduce_many(typename Element::Stored* out, const void* const* sources,
                                               int32_t source_count, int64_t elements) {
  using Stored = typename Element::Stored;
  using Computed = typename Element::Computed;
  constexpr int64_t kBlock = 1024;
  Computed sums[kBlock];
  for (int64_t start = 0; start < elements; start += kBlock) {
    const int64_t length = elements - start < kBlock ? elements - start : kBlock;
    const auto* first = static_cast<const Stored*>(sources[0]) + start;
    const auto* second = static_cast<const Stored*>(sources[1]) + start;
    for (int64_t i = 0; i < length; ++i) sums[i] = Op::combine(Element::widen(first[i]), Element::widen(second[i]));
    for (int32_t s = 2; s < source_count; ++s) {
      const auto* source = static_cast<const Stored*>(sources[s]) + start;
      for (int64_t i = 0; i < length; ++i) sums[i] = Op::combine(sums[i], Element::widen(source[i]));
    }
    Stored* result = out + start;
    for (int64_t i = 0; i < length; ++i) result[i] = Element::narrow(Op::finish(sums[i], source_count));
  }
}

// Halves: as reduce_many, but each source is converted to floats first.
template <class Op>
[[gnu::always_inline]] inline void reduce_halves(uint16_t* out, const void* const* sources, int32_t source_count,
                                                 int64_t elements) {
  constexpr int64_t kBlock = 1024;
  float sums[kBlock];
  float next[kBlock];
  for (int64_t start = 0; start < elements; start += kBlock) {
    const int64_t length = elements - start < kBlock ? elements - start : kBlock;
    halves_to_floats(sums, static_cast<const uint16_t*>(sources[0]) + start, length);
    for (int32_t s = 1; s < source_count; ++s) {
      halves_to_floats(next, static_cast<const uint16_t*>(sources[s]) + start, length);
      for (int64_t i = 0; i < length; ++i) sums[i] = Op::combine(sums[i], next[i]);
    }
    for (int64_t i = 0; i < length; ++i) sums[i] = Op::finish(sums[i], source_count);
    floats_to_halves(out + start, sums, length);
  }
}

template <class Element, class Op>
[[gnu::always_inline]] inline void reduce(void* out, const void* const* sources, int32_t source_count,
                                          int64_t elements) {
  using Stored = typename Element::Stored;
  if constexpr (std::is_same_v<Element, F16>) {
    reduce_halves<Op>(static_cast<Stored*>(out), sources, source_count, elements);
  } else if (source_count == 2) {
    reduce_two<Element, Op>(static_cast<Stored*>(out), static_cast<const Stored*>(sources[0]),
                            static_cast<const Stored*>(sources[1]), elements);
  } else if (source_count == 3) {
    reduce_three<Element, Op>(static_cast<Stored*>(out), static_cast<const Stored*>(sources[0]),
                              static_cast<const Stored*>(sources[1]), static_cast<const Stored*>(sources[2]), elements);
  } else {
    reduce_many<Element, Op>(static_cast<Stored*>(out), sources, source_count, elements);
  }
}

__extension__ using Int128 = __int128;

using F32 = Plain<float>;
using F64 = Plain<double>;
using I8 = Plain<int8_t>;
using I16 = Plain<int16_t>;
using I32 = Plain<int32_t>;
using I64 = Plain<int64_t>;
using U8 = Plain<uint8_t>;
using WideI8 = Widened<int8_t, int32_t>;
using WideI16 = Widened<int16_t, int32_t>;
using WideI32 = Widened<int32_t, int64_t>;
using WideI64 = Widened<int64_t, Int128>;
using WideU8 = Widened<uint8_t, int32_t>;

// Functions with names, because clones of a template cannot be made.
#define CONCORD_SHM_LOOP(name, Element, Op)                                                                        \
  CONCORD_TARGET_CLONES void name(void* out, const void* const* sources, int32_t source_count, int64_t elements) { \
    reduce<Element, Op>(out, sources, source_count, elements);                                                     \
  }
#define CONCORD_SHM_LOOPS(name, Element, AvgElement) \
  CONCORD_SHM_LOOP(name##_sum, Element, Sum)         \
  CONCORD_SHM_LOOP(name##_prod, Element, Prod)       \
  CONCORD_SHM_LOOP(name##_min, Element, Min)         \
  CONCORD_SHM_LOOP(name##_max, Element, Max)         \
  CONCORD_SHM_LOOP(name##_avg, AvgElement, Avg)      \
  constexpr Reduction name##_loops[] = {name##_sum, name##_prod, name##_min, name##_max, name##_avg};

CONCORD_SHM_LOOPS(f32, F32, F32)
CONCORD_SHM_LOOPS(f64, F64, F64)
CONCORD_SHM_LOOPS(bf16, Bf16, Bf16)
CONCORD_SHM_LOOPS(f16, F16, F16)
CONCORD_SHM_LOOPS(i8, I8, WideI8)
CONCORD_SHM_LOOPS(i16, I16, WideI16)
CONCORD_SHM_LOOPS(i32, I32, WideI32)
CONCORD_SHM_LOOPS(i64, I64, WideI64)
CONCORD_SHM_LOOPS(u8, U8, WideU8)
CONCORD_SHM_LOOP(bool_and, Bool, Min)
CONCORD_SHM_LOOP(bool_or, Bool, Max)
constexpr Reduction bool_loops[] = {bool_or, bool_and, bool_and, bool_or, nullptr};

}  // namespace

Reduction find_reduction(concord_dtype dtype, concord_reduce_op op) {
  if (op < CONCORD_REDUCE_SUM || op > CONCORD_REDUCE_AVG) return nullptr;
  const int32_t index = op - CONCORD_REDUCE_SUM;
  switch (dtype) {
    case CONCORD_DTYPE_F32: return f32_loops[index];
    case CONCORD_DTYPE_F64: return f64_loops[index];
    case CONCORD_DTYPE_BF16: return bf16_loops[index];
    case CONCORD_DTYPE_F16: return f16_loops[index];
    case CONCORD_DTYPE_I8: return i8_loops[index];
    case CONCORD_DTYPE_I16: return i16_loops[index];
    case CONCORD_DTYPE_I32: return i32_loops[index];
    case CONCORD_DTYPE_I64: return i64_loops[index];
    case CONCORD_DTYPE_U8: return u8_loops[index];
    case CONCORD_DTYPE_BOOL: return bool_loops[index];
    default: return nullptr;
  }
}

}  // namespace concord::shm
