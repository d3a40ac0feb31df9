#include "platform/conformance/numerics/numerics.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <stdexcept>

namespace concord::conformance {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Rounds |value| to a float of |precision| bits whose smallest denormal is 2^|denormal_exponent|, nearest, ties to
// even. Works by scaling so that the unit in the last place is 1, where nearbyint does the rounding; all steps are
// exact.
double round_to_format(double value, int precision, int denormal_exponent, double largest) {
  if (value == 0 || !std::isfinite(value)) return value;
  int exponent = 0;
  std::frexp(value, &exponent);
  const int last_place = std::max(exponent - precision, denormal_exponent);
  const double rounded = std::ldexp(std::nearbyint(std::ldexp(value, -last_place)), last_place);
  return std::fabs(rounded) > largest ? std::copysign(kInfinity, value) : rounded;
}

uint16_t to_bf16(double value) {
  if (std::isnan(value)) return 0x7fc0;
  const double rounded = round_to_format(value, 8, -133, format_of(CONCORD_DTYPE_BF16).largest);
  return static_cast<uint16_t>(std::bit_cast<uint32_t>(static_cast<float>(rounded)) >> 16);
}

double from_bf16(uint16_t bits) { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }

uint16_t to_f16(double value) {
  const uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  if (std::isnan(value)) return 0x7e00;
  const double rounded = std::fabs(round_to_format(value, 11, -24, format_of(CONCORD_DTYPE_F16).largest));
  if (std::isinf(rounded)) return static_cast<uint16_t>(sign | 0x7c00);
  if (rounded < 0x1p-14) return static_cast<uint16_t>(sign | static_cast<uint16_t>(rounded * 0x1p24));
  int exponent = 0;
  const double fraction = std::frexp(rounded, &exponent);  // in [0.5, 1)
  const auto mantissa = static_cast<uint16_t>(std::ldexp(fraction, 11));
  return static_cast<uint16_t>(sign | ((exponent + 14) << 10) | (mantissa & 0x3ff));
}

double from_f16(uint16_t bits) {
  const double sign = (bits & 0x8000) != 0 ? -1 : 1;
  const int exponent = (bits >> 10) & 0x1f;
  const int mantissa = bits & 0x3ff;
  if (exponent == 0x1f) return mantissa != 0 ? std::nan("") : sign * kInfinity;
  if (exponent == 0) return sign * std::ldexp(mantissa, -24);
  return sign * std::ldexp(mantissa + 0x400, exponent - 25);
}

template <class Element, class Value, class Convert>
void convert(const void* from, int64_t count, Value* to, Convert one) {
  const auto* bytes = static_cast<const char*>(from);
  for (int64_t i = 0; i < count; ++i) {
    Element element;
    std::memcpy(&element, bytes + i * static_cast<int64_t>(sizeof element), sizeof element);
    to[i] = one(element);
  }
}

template <class Element, class Value, class Convert>
void store(const Value* from, int64_t count, void* to, Convert one) {
  auto* bytes = static_cast<char*>(to);
  for (int64_t i = 0; i < count; ++i) {
    const Element element = one(from[i]);
    std::memcpy(bytes + i * static_cast<int64_t>(sizeof element), &element, sizeof element);
  }
}

[[noreturn]] void wrong_dtype(concord_dtype dtype) {
  throw std::logic_error("the kit was asked about dtype " + std::to_string(dtype));
}

double gamma(int k, double unit_roundoff) { return k * unit_roundoff / (1 - k * unit_roundoff); }

// fp64 sums of f64 inputs need more than fp64 to be a reference: Neumaier's compensated sum.
double exact_sum(const double* elements, int world) {
  double sum = 0;
  double lost = 0;
  for (int r = 0; r < world; ++r) {
    const double next = sum + elements[r];
    if (std::isfinite(next)) {
      lost += std::fabs(sum) >= std::fabs(elements[r]) ? (sum - next) + elements[r] : (elements[r] - next) + sum;
    }
    sum = next;
  }
  return std::isfinite(sum) ? sum + lost : sum;
}

double exact_product(const double* elements, int world) {
  long double product = 1;
  for (int r = 0; r < world; ++r) product *= elements[r];
  return static_cast<double>(product);
}

double exact_extreme(const double* elements, int world, bool want_min) {
  double result = elements[0];
  for (int r = 0; r < world; ++r) {
    if (std::isnan(elements[r])) return elements[r];
    result = want_min ? std::min(result, elements[r]) : std::max(result, elements[r]);
  }
  return result;
}

}  // namespace

int64_t size_of(concord_dtype dtype) {
  switch (dtype) {
    case CONCORD_DTYPE_F64:
    case CONCORD_DTYPE_I64: return 8;
    case CONCORD_DTYPE_F32:
    case CONCORD_DTYPE_I32: return 4;
    case CONCORD_DTYPE_BF16:
    case CONCORD_DTYPE_F16:
    case CONCORD_DTYPE_I16: return 2;
    case CONCORD_DTYPE_I8:
    case CONCORD_DTYPE_U8:
    case CONCORD_DTYPE_BOOL: return 1;
    default: wrong_dtype(dtype);
  }
}

bool is_float(concord_dtype dtype) { return dtype >= CONCORD_DTYPE_F32 && dtype <= CONCORD_DTYPE_F16; }

const char* name_of(concord_dtype dtype) {
  static const char* const names[] = {"", "F32", "F64", "Bf16", "F16", "I8", "I16", "I32", "I64", "U8", "Bool"};
  if (dtype < CONCORD_DTYPE_F32 || dtype > CONCORD_DTYPE_BOOL) wrong_dtype(dtype);
  return names[dtype];
}

const char* name_of_reduction(concord_reduce_op reduce) {
  static const char* const names[] = {"", "Sum", "Prod", "Min", "Max", "Avg"};
  if (reduce < CONCORD_REDUCE_SUM || reduce > CONCORD_REDUCE_AVG) throw std::logic_error("unknown reduction");
  return names[reduce];
}

const FloatFormat& format_of(concord_dtype dtype) {
  static const FloatFormat f32 = {0x1p-24, std::numeric_limits<float>::max(), 0x1p-126, 0x1p-149};
  static const FloatFormat f64 = {0x1p-53, std::numeric_limits<double>::max(), 0x1p-1022, 0x1p-1074};
  static const FloatFormat bf16 = {0x1p-8, 0x1.fep127, 0x1p-126, 0x1p-133};
  static const FloatFormat f16 = {0x1p-11, 65504, 0x1p-14, 0x1p-24};
  switch (dtype) {
    case CONCORD_DTYPE_F32: return f32;
    case CONCORD_DTYPE_F64: return f64;
    case CONCORD_DTYPE_BF16: return bf16;
    case CONCORD_DTYPE_F16: return f16;
    default: wrong_dtype(dtype);
  }
}

void encode_floats(concord_dtype dtype, const double* values, int64_t count, void* out_elements) {
  switch (dtype) {
    case CONCORD_DTYPE_F32:
      return store<float>(values, count, out_elements, [](double v) { return static_cast<float>(v); });
    case CONCORD_DTYPE_F64: return store<double>(values, count, out_elements, [](double v) { return v; });
    case CONCORD_DTYPE_BF16: return store<uint16_t>(values, count, out_elements, to_bf16);
    case CONCORD_DTYPE_F16: return store<uint16_t>(values, count, out_elements, to_f16);
    default: wrong_dtype(dtype);
  }
}

void decode_floats(concord_dtype dtype, const void* elements, int64_t count, double* out_values) {
  switch (dtype) {
    case CONCORD_DTYPE_F32: return convert<float>(elements, count, out_values, [](float v) { return double{v}; });
    case CONCORD_DTYPE_F64: return convert<double>(elements, count, out_values, [](double v) { return v; });
    case CONCORD_DTYPE_BF16: return convert<uint16_t>(elements, count, out_values, from_bf16);
    case CONCORD_DTYPE_F16: return convert<uint16_t>(elements, count, out_values, from_f16);
    default: wrong_dtype(dtype);
  }
}

void encode_integers(concord_dtype dtype, const int64_t* values, int64_t count, void* out_elements) {
  switch (size_of(dtype)) {
    case 1: return store<uint8_t>(values, count, out_elements, [](int64_t v) { return static_cast<uint8_t>(v); });
    case 2: return store<uint16_t>(values, count, out_elements, [](int64_t v) { return static_cast<uint16_t>(v); });
    case 4: return store<uint32_t>(values, count, out_elements, [](int64_t v) { return static_cast<uint32_t>(v); });
    default: return store<int64_t>(values, count, out_elements, [](int64_t v) { return v; });
  }
}

void decode_integers(concord_dtype dtype, const void* elements, int64_t count, int64_t* out_values) {
  const auto widen = [](auto v) { return static_cast<int64_t>(v); };
  switch (dtype) {
    case CONCORD_DTYPE_I8: return convert<int8_t>(elements, count, out_values, widen);
    case CONCORD_DTYPE_I16: return convert<int16_t>(elements, count, out_values, widen);
    case CONCORD_DTYPE_I32: return convert<int32_t>(elements, count, out_values, widen);
    case CONCORD_DTYPE_I64: return convert<int64_t>(elements, count, out_values, widen);
    case CONCORD_DTYPE_U8:
    case CONCORD_DTYPE_BOOL: return convert<uint8_t>(elements, count, out_values, widen);
    default: wrong_dtype(dtype);
  }
}

int64_t lowest_integer(concord_dtype dtype) {
  if (dtype == CONCORD_DTYPE_U8 || dtype == CONCORD_DTYPE_BOOL) return 0;
  return std::numeric_limits<int64_t>::min() >> (64 - 8 * size_of(dtype));
}

int64_t highest_integer(concord_dtype dtype) {
  if (dtype == CONCORD_DTYPE_BOOL) return 1;
  if (dtype == CONCORD_DTYPE_U8) return 255;
  return std::numeric_limits<int64_t>::max() >> (64 - 8 * size_of(dtype));
}

Bounded reduce_floats(concord_dtype dtype, concord_reduce_op reduce, const double* elements, int world) {
  const FloatFormat& format = format_of(dtype);
  double magnitude = 0;
  for (int r = 0; r < world; ++r) magnitude += std::fabs(elements[r]);
  const double underflow = world > 1 ? world * format.smallest_denormal : 0;
  const auto bounded = [&](double exact, double bound) {
    return Bounded{exact, world > 1 && std::isfinite(exact) ? bound + 0x1p-53 * std::fabs(exact) : 0};
  };
  switch (reduce) {
    case CONCORD_REDUCE_MIN: return {exact_extreme(elements, world, true), 0};
    case CONCORD_REDUCE_MAX: return {exact_extreme(elements, world, false), 0};
    case CONCORD_REDUCE_SUM:
      return bounded(exact_sum(elements, world), gamma(world - 1, format.unit_roundoff) * magnitude);
    case CONCORD_REDUCE_AVG: {
      const double rounding = gamma(world + 1, format.unit_roundoff) * magnitude / world;
      return bounded(exact_sum(elements, world) / world, rounding + underflow);
    }
    case CONCORD_REDUCE_PROD: {
      const double product = exact_product(elements, world);
      return bounded(product, gamma(world - 1, format.unit_roundoff) * std::fabs(product) + underflow);
    }
    default: throw std::logic_error("unknown reduction");
  }
}

int64_t reduce_integers(concord_dtype dtype, concord_reduce_op reduce, const int64_t* elements, int world) {
  uint64_t sum = 0;
  uint64_t product = 1;
  int64_t least = elements[0];
  int64_t most = elements[0];
  for (int r = 0; r < world; ++r) {
    sum += static_cast<uint64_t>(elements[r]);
    product *= static_cast<uint64_t>(elements[r]);
    least = std::min(least, elements[r]);
    most = std::max(most, elements[r]);
  }
  if (dtype == CONCORD_DTYPE_BOOL) return reduce == CONCORD_REDUCE_SUM || reduce == CONCORD_REDUCE_MAX ? most : least;
  int64_t result = 0;
  switch (reduce) {
    case CONCORD_REDUCE_SUM: result = static_cast<int64_t>(sum); break;
    case CONCORD_REDUCE_PROD: result = static_cast<int64_t>(product); break;
    case CONCORD_REDUCE_MIN: return least;
    case CONCORD_REDUCE_MAX: return most;
    case CONCORD_REDUCE_AVG: return static_cast<int64_t>(sum) / world;
    default: throw std::logic_error("unknown reduction");
  }
  int64_t wrapped = 0;
  char element[8];
  encode_integers(dtype, &result, 1, element);
  decode_integers(dtype, element, 1, &wrapped);
  return wrapped;
}

double share_of_bound(concord_dtype dtype, const Bounded& bounded, double got) {
  if (std::isnan(bounded.exact)) return std::isnan(got) ? 0 : kInfinity;
  if (std::isnan(got)) return kInfinity;
  if (got == bounded.exact) return 0;
  const double largest = format_of(dtype).largest;
  if (std::isinf(bounded.exact)) return kInfinity;  // got differs from it
  if (std::isinf(got)) {
    // Correct if the exact result, moved by the bound, is beyond the midpoint between the largest number and the next.
    const double reach = std::fabs(bounded.exact) + bounded.bound;
    const bool overflows = reach >= largest * (1 + format_of(dtype).unit_roundoff / 2);
    return overflows && std::signbit(got) == std::signbit(bounded.exact) ? 1 : kInfinity;
  }
  const double error = std::fabs(got - bounded.exact);
  return bounded.bound > 0 ? error / bounded.bound : kInfinity;
}

}  // namespace concord::conformance
