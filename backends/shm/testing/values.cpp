#include "backends/shm/testing/values.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace concord::shm::testing {
namespace {

bool is_float(concord_dtype dtype) { return dtype >= CONCORD_DTYPE_F32 && dtype <= CONCORD_DTYPE_F16; }

template <class Type>
Type load(const std::byte* at) {
  Type value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

template <class Type>
void store(std::byte* at, Type value) {
  std::memcpy(at, &value, sizeof value);
}

double float_at(const std::byte* at, concord_dtype dtype) {
  switch (dtype) {
    case CONCORD_DTYPE_F32: return load<float>(at);
    case CONCORD_DTYPE_F64: return load<double>(at);
    case CONCORD_DTYPE_BF16: return sdk::bf16_to_float(load<uint16_t>(at));
    default: return sdk::f16_to_float(load<uint16_t>(at));
  }
}

int64_t integer_at(const std::byte* at, concord_dtype dtype) {
  switch (dtype) {
    case CONCORD_DTYPE_I8: return load<int8_t>(at);
    case CONCORD_DTYPE_I16: return load<int16_t>(at);
    case CONCORD_DTYPE_I32: return load<int32_t>(at);
    case CONCORD_DTYPE_I64: return load<int64_t>(at);
    default: return load<uint8_t>(at);
  }
}

// Between 0.5 and 2 in magnitude, with both signs: products of 8 stay in the range of f16.
void store_float(std::byte* at, concord_dtype dtype, uint64_t random) {
  const auto value = static_cast<float>((0.5 + static_cast<double>(random % 1000003) / 1000003 * 1.5) *
                                        ((random >> 40) % 2 == 0 ? 1 : -1));
  switch (dtype) {
    case CONCORD_DTYPE_F32: return store(at, value);
    case CONCORD_DTYPE_F64: return store(at, static_cast<double>(value) / 3);
    case CONCORD_DTYPE_BF16: return store(at, sdk::float_to_bf16(value));
    default: return store(at, sdk::float_to_f16(value));
  }
}

// ---------------------------------------------------------------------------------------------------------- references

// The result and how far from it is still right. Wide is double, and long double for f64.
template <class Wide>
struct Expected {
  Wide value = 0;
  Wide bound = 0;
};

double unit_roundoff(concord_dtype dtype) {
  switch (dtype) {
    case CONCORD_DTYPE_F32: return 0x1p-24;
    case CONCORD_DTYPE_F64: return 0x1p-53;
    case CONCORD_DTYPE_BF16: return 0x1p-8;
    default: return 0x1p-11;
  }
}

// n-1 additions (or multiplications) and a division in the type that is computed in, each off by at most its unit
// roundoff, and one rounding to the stored type. 1.01 covers the products of those errors.
template <class Wide>
Expected<Wide> expected_float(const std::vector<double>& values, concord_dtype dtype, concord_reduce_op op) {
  const auto n = static_cast<Wide>(values.size());
  const Wide computed = unit_roundoff(dtype == CONCORD_DTYPE_F64 ? dtype : CONCORD_DTYPE_F32);
  Expected<Wide> result{values[0], 0};
  Wide magnitude = std::fabs(values[0]);
  for (size_t i = 1; i < values.size(); ++i) {
    const Wide next = values[i];
    switch (op) {
      case CONCORD_REDUCE_PROD: result.value *= next; break;
      case CONCORD_REDUCE_MIN: result.value = std::min(result.value, next); break;
      case CONCORD_REDUCE_MAX: result.value = std::max(result.value, next); break;
      default: result.value += next; break;
    }
    magnitude += std::fabs(next);
  }
  if (op == CONCORD_REDUCE_MIN || op == CONCORD_REDUCE_MAX) return result;
  if (op == CONCORD_REDUCE_PROD) magnitude = std::fabs(result.value);
  if (op == CONCORD_REDUCE_AVG) {
    result.value /= n;
    magnitude /= n;
  }
  result.bound = Wide{1.01} * (n * computed * magnitude + unit_roundoff(dtype) * std::fabs(result.value));
  return result;
}

// The same arithmetic in rank order, bit by bit: float for the 16-bit types, rounded once.
template <class Type>
Type in_rank_order(const std::vector<double>& values, concord_reduce_op op) {
  auto result = static_cast<Type>(values[0]);
  for (size_t i = 1; i < values.size(); ++i) {
    const auto next = static_cast<Type>(values[i]);
    switch (op) {
      case CONCORD_REDUCE_PROD: result = result * next; break;
      case CONCORD_REDUCE_MIN: result = next < result ? next : result; break;
      case CONCORD_REDUCE_MAX: result = next > result ? next : result; break;
      default: result = result + next; break;
    }
  }
  return op == CONCORD_REDUCE_AVG ? result / static_cast<Type>(values.size()) : result;
}

double float_in_rank_order(const std::vector<double>& values, concord_dtype dtype, concord_reduce_op op) {
  switch (dtype) {
    case CONCORD_DTYPE_F32: return in_rank_order<float>(values, op);
    case CONCORD_DTYPE_F64: return in_rank_order<double>(values, op);
    case CONCORD_DTYPE_BF16: return sdk::bf16_to_float(sdk::float_to_bf16(in_rank_order<float>(values, op)));
    default: return sdk::f16_to_float(sdk::float_to_f16(in_rank_order<float>(values, op)));
  }
}

template <class Wide>
std::string find_wrong_float(const std::vector<double>& values, double got, concord_dtype dtype, concord_reduce_op op) {
  const auto wanted = expected_float<Wide>(values, dtype, op);
  const double ordered = float_in_rank_order(values, dtype, op);
  if (std::fabs(got - wanted.value) <= wanted.bound && got == ordered) return {};
  return sdk::text("%.17g, not %.17g +- %g (in rank order %.17g)", got, static_cast<double>(wanted.value),
                   static_cast<double>(wanted.bound), ordered);
}

int64_t cut_to(concord_dtype dtype, uint64_t bits) {
  std::byte stored[8];
  std::memcpy(stored, &bits, sizeof bits);  // both machines that matter are little-endian
  return integer_at(stored, dtype);
}

int64_t expected_integer(const std::vector<int64_t>& values, concord_dtype dtype, concord_reduce_op op) {
  __extension__ __int128 exact = 0;
  uint64_t sum = 0;
  uint64_t product = 1;
  int64_t least = values[0];
  int64_t most = values[0];
  for (const int64_t value : values) {
    exact += value;
    sum += static_cast<uint64_t>(value);
    product *= static_cast<uint64_t>(value);
    least = value < least ? value : least;
    most = value > most ? value : most;
  }
  if (dtype == CONCORD_DTYPE_BOOL) return op == CONCORD_REDUCE_SUM || op == CONCORD_REDUCE_MAX ? most : least;
  switch (op) {
    case CONCORD_REDUCE_SUM: return cut_to(dtype, sum);
    case CONCORD_REDUCE_PROD: return cut_to(dtype, product);
    case CONCORD_REDUCE_MIN: return least;
    case CONCORD_REDUCE_MAX: return most;
    default: return static_cast<int64_t>(exact / static_cast<int64_t>(values.size()));
  }
}

std::string find_wrong_integer(const std::vector<int64_t>& values, int64_t got, concord_dtype dtype,
                               concord_reduce_op op) {
  const int64_t wanted = expected_integer(values, dtype, op);
  if (got == wanted) return {};
  return sdk::text("%lld, not %lld", static_cast<long long>(got), static_cast<long long>(wanted));
}

}  // namespace

Buffer raw_input(int rank, int64_t bytes, uint64_t seed, int64_t first) {
  const uint64_t start = mix(seed * 1000 + static_cast<uint64_t>(rank));
  const int64_t skipped = first % 8;
  Buffer row(static_cast<size_t>((skipped + bytes + 7) / 8 * 8));
  for (size_t i = 0; i < row.size(); i += 8) {
    const uint64_t word = (start + (static_cast<uint64_t>(first - skipped) + i)) * 0x9e3779b97f4a7c15ull;
    store(row.data() + i, word ^ (word >> 29));
  }
  row.erase(row.begin(), row.begin() + skipped);
  row.resize(static_cast<size_t>(bytes));
  return row;
}

Buffer input(int rank, int64_t count, concord_dtype dtype, uint64_t seed, int64_t first) {
  const int64_t size = sdk::dtype_size(dtype);
  if (!is_float(dtype) && dtype != CONCORD_DTYPE_BOOL) return raw_input(rank, count * size, seed, first * size);
  const uint64_t start = mix(seed * 1000 + static_cast<uint64_t>(rank));
  Buffer buffer(static_cast<size_t>(count * size));
  for (int64_t i = 0; i < count; ++i) {
    const uint64_t random = mix(start + static_cast<uint64_t>(first + i));
    std::byte* at = buffer.data() + i * size;
    if (is_float(dtype)) store_float(at, dtype, random);
    if (!is_float(dtype)) store(at, static_cast<uint8_t>(random % 4 == 0 ? 0 : 1));
  }
  return buffer;
}

std::string find_wrong(const std::vector<Buffer>& inputs, const std::byte* result, int64_t count, concord_dtype dtype,
                       concord_reduce_op op) {
  const int64_t size = sdk::dtype_size(dtype);
  std::vector<double> floats(inputs.size());
  std::vector<int64_t> integers(inputs.size());
  for (int64_t i = 0; i < count; ++i) {
    const std::byte* at = result + i * size;
    for (size_t r = 0; r < inputs.size(); ++r) {
      if (is_float(dtype)) floats[r] = float_at(inputs[r].data() + i * size, dtype);
      if (!is_float(dtype)) integers[r] = integer_at(inputs[r].data() + i * size, dtype);
    }
    std::string wrong;
    if (dtype == CONCORD_DTYPE_F64) {
      wrong = find_wrong_float<long double>(floats, float_at(at, dtype), dtype, op);
    } else if (is_float(dtype)) {
      wrong = find_wrong_float<double>(floats, float_at(at, dtype), dtype, op);
    } else {
      wrong = find_wrong_integer(integers, integer_at(at, dtype), dtype, op);
    }
    if (!wrong.empty()) return sdk::text("element %lld is ", static_cast<long long>(i)) + wrong;
  }
  return {};
}

uint64_t hash_of(const std::byte* data, int64_t bytes) {
  uint64_t hash = 0;
  for (int64_t i = 0; i < bytes; i += 8) {
    uint64_t word = 0;
    std::memcpy(&word, data + i, static_cast<size_t>(std::min<int64_t>(8, bytes - i)));
    hash = mix(hash ^ word);
  }
  return hash;
}

}  // namespace concord::shm::testing
