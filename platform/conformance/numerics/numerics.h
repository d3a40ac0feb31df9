// Numbers for the kit: the element types, and how far a correct result may be from the exact one.
//
// Nothing here uses the conversions of platform/sdk: a plugin built on those must agree with these.
//
// The bounds. Let u be the unit roundoff of the dtype (half the distance from 1 to the next number: 2^-24 for f32,
// 2^-53 for f64, 2^-8 for bf16, 2^-11 for f16), n the number of ranks, x_r their elements, gamma_k = k u / (1 - k u).
//   SUM   any order of additions, each rounded to the dtype, has |error| <= gamma_(n-1) * sum |x_r| (Higham, Accuracy
//         and Stability of Numerical Algorithms, 4.2). A wider accumulator that is rounded once stays below gamma_1 *
//         |sum|. n = 1 is therefore exact.
//   AVG   two more roundings: of 1/n and of the product, or only one, of a division: gamma_(n+1) * sum |x_r| / n; and
//         n * eta for underflow, where eta is the smallest denormal. n = 1 is exact.
//   PROD  n - 1 roundings: gamma_(n-1) * |product| + n * eta.
//   All three, for n > 1: 2^-53 * |exact| on top, because the reference itself is a double.
//   MIN, MAX, integers, bool, and everything that only moves data: exact, bit for bit (zeros of either sign are equal
//   in MIN and MAX; integer SUM and PROD wrap; integer AVG is truncated towards zero).
// NaN: where a rule of IEEE 754 or types.h makes the exact result a NaN, the result has to be one, of any payload.
// Infinity: an exact result beyond the largest number may be the infinity of its sign or, within the bound, the largest
// number. Denormals: may be flushed to zero only if the plugin says so by the capability numerics.flushes_denormals.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "platform/abi/types.h"

namespace concord::conformance {

// Not in core.h: a plugin that flushes denormals to zero in reductions lists it with 1.
inline constexpr const char* kFlushesDenormals = "numerics.flushes_denormals";

inline constexpr concord_dtype kAllDtypes[] = {
    CONCORD_DTYPE_F32, CONCORD_DTYPE_F64, CONCORD_DTYPE_BF16, CONCORD_DTYPE_F16, CONCORD_DTYPE_I8,
    CONCORD_DTYPE_I16, CONCORD_DTYPE_I32, CONCORD_DTYPE_I64,  CONCORD_DTYPE_U8,  CONCORD_DTYPE_BOOL};
inline constexpr concord_dtype kFloatDtypes[] = {CONCORD_DTYPE_F32, CONCORD_DTYPE_F64, CONCORD_DTYPE_BF16,
                                                 CONCORD_DTYPE_F16};
inline constexpr concord_reduce_op kAllReductions[] = {CONCORD_REDUCE_SUM, CONCORD_REDUCE_PROD, CONCORD_REDUCE_MIN,
                                                       CONCORD_REDUCE_MAX, CONCORD_REDUCE_AVG};

int64_t size_of(concord_dtype dtype);
bool is_float(concord_dtype dtype);
const char* name_of(concord_dtype dtype);                 // "Bf16", as in a test's name
const char* name_of_reduction(concord_reduce_op reduce);  // "Sum"

// The range and precision of a float dtype.
struct FloatFormat {
  double unit_roundoff;
  double largest;
  double smallest_normal;
  double smallest_denormal;
};
const FloatFormat& format_of(concord_dtype dtype);

// Floats to and from their bits, in bulk. encode rounds to nearest, ties to even; decode is exact.
void encode_floats(concord_dtype dtype, const double* values, int64_t count, void* out_elements);
void decode_floats(concord_dtype dtype, const void* elements, int64_t count, double* out_values);

// Integers and bool to and from their bits. encode keeps the low bits.
void encode_integers(concord_dtype dtype, const int64_t* values, int64_t count, void* out_elements);
void decode_integers(concord_dtype dtype, const void* elements, int64_t count, int64_t* out_values);

// The smallest and the largest integer of |dtype|.
int64_t lowest_integer(concord_dtype dtype);
int64_t highest_integer(concord_dtype dtype);

// The exact result of reducing one float element of each rank, and how far a plugin may be from it.
struct Bounded {
  double exact = 0;
  double bound = 0;  // 0: the bits have to be right
};
Bounded reduce_floats(concord_dtype dtype, concord_reduce_op reduce, const double* elements, int world);

// The exact result of reducing one integer (or bool) element of each rank, as decode_integers would give it.
int64_t reduce_integers(concord_dtype dtype, concord_reduce_op reduce, const int64_t* elements, int world);

// The share of |bounded|'s bound that |got| uses: 0 exact, 1 at the bound, above 1 wrong (infinity where no bound could
// allow it).
double share_of_bound(concord_dtype dtype, const Bounded& bounded, double got);

}  // namespace concord::conformance
