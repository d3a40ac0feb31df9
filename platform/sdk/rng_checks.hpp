// Argument checks of the rng table. See checks.hpp.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "platform/sdk/buffer_checks.hpp"

namespace concord::sdk {

inline bool rng_has(concord_rng_kind kind, concord_dtype dtype) {
  const bool integral = dtype == CONCORD_DTYPE_I32 || dtype == CONCORD_DTYPE_I64;
  const bool real = dtype == CONCORD_DTYPE_F32 || dtype == CONCORD_DTYPE_F64 || dtype == CONCORD_DTYPE_BF16 ||
                    dtype == CONCORD_DTYPE_F16;
  switch (kind) {
    case CONCORD_RNG_BITS:
    case CONCORD_RNG_INTEGER: return integral;
    case CONCORD_RNG_UNIFORM:
    case CONCORD_RNG_NORMAL: return real;
    default: return false;
  }
}

// |low| and |high| as the kind needs them. Comparisons are written so that a NaN fails.
inline void check_rng_range(const concord_rng_request& request) {
  constexpr double kFloatMax = 3.4028234663852886e38;
  const bool wide = request.dtype == CONCORD_DTYPE_F64 && request.kind == CONCORD_RNG_UNIFORM;
  const double limit = wide ? 1.7976931348623157e308 : kFloatMax;
  const bool finite = request.low >= -limit && request.low <= limit && request.high >= -limit && request.high <= limit;
  const double low = finite && !wide ? static_cast<double>(static_cast<float>(request.low)) : request.low;
  const double high = finite && !wide ? static_cast<double>(static_cast<float>(request.high)) : request.high;
  if (request.kind == CONCORD_RNG_UNIFORM && !(finite && low <= high && high - low <= limit)) {
    invalid(text("a uniform fill of %s from %g to %g: low, high and high - low must be finite, and low <= high",
                 dtype_name(request.dtype), request.low, request.high));
  }
  if (request.kind == CONCORD_RNG_NORMAL && !(finite && request.high >= 0)) {
    invalid(text("a normal fill with mean %g and standard deviation %g: both must be finite floats, the second >= 0",
                 request.low, request.high));
  }
  if (request.kind != CONCORD_RNG_INTEGER) return;
  const bool fits = request.dtype == CONCORD_DTYPE_I64 ||
                    (request.integer_low >= INT32_MIN && request.integer_high <= int64_t{INT32_MAX} + 1);
  if (request.integer_low >= request.integer_high || !fits) {
    invalid(text("an integer fill of %s with %lld <= x < %lld: integer_low must be below integer_high, and x must fit",
                 dtype_name(request.dtype), static_cast<long long>(request.integer_low),
                 static_cast<long long>(request.integer_high)));
  }
}

// The bytes of a request that every version has.
inline constexpr uint32_t kRngRequestBytes = offsetof(concord_rng_request, run_length);

inline void check_rng_runs(const concord_rng_request& request) {
  if (request.run_length == 0 && request.run_stride == 0) return;
  if (request.run_length <= 0 || request.run_stride < 0) {
    invalid(text("runs of length %lld with stride %lld: the length must be >= 1 (or both 0), the stride >= 0",
                 static_cast<long long>(request.run_length), static_cast<long long>(request.run_stride)));
  }
}

// A request of rng.fill as this version knows it, checked. UINT64_MAX positions exist; a request may wrap past the end
// to 0.
inline concord_rng_request read_rng_request(const concord_rng_request* request) {
  check_not_null(request, "request");
  const uint32_t size = request->struct_size;
  if (size < kRngRequestBytes) {
    invalid(text("struct_size of the request is %u; version 1.0 has %u bytes", size, kRngRequestBytes));
  }
  concord_rng_request known{};
  std::memcpy(&known, request, size < sizeof known ? size : sizeof known);
  if (!rng_has(known.kind, known.dtype)) {
    invalid(
        text("no random numbers of kind %d and dtype %s (%d); there are bits (1) and integer (4) of i32, i64, uniform "
             "(2) and normal (3) of f32, f64, bf16, f16",
             known.kind, dtype_name(known.dtype), known.dtype));
  }
  if (known.reserved != 0) invalid(text("reserved of the request is %d; it must be 0", known.reserved));
  check_elements(known.destination, known.count, known.dtype, "destination");
  check_rng_range(known);
  check_rng_runs(known);
  return known;
}

}  // namespace concord::sdk
