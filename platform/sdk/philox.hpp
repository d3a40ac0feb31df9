// The definition of Concord's random numbers: the value at a position of a stream of them, bit for bit, on every
// vendor. Header-only, for hosts and for device code (nvcc). The contract is platform/abi/rng.h.
//
// Words. Philox 4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011) turns a counter of four
// words and a key of two into a block of four random words. counter = {lo(block), hi(block), lo(subsequence),
// hi(subsequence)}, key = {lo(key), hi(key)}. A kind that takes one word per position finds position p in word p % 4 of
// block p / 4; one that takes two finds them, the low one first, in words 2 * (p % 2) and the next of block p / 2.
//
// Values. A generator below turns the word or words of a position into a value; visit_rng picks the one for a request.
// They use integers and IEEE float +, -, *, / and sqrt alone, each rounded to nearest and never fused, because that is
// what all hardware agrees on, and no library function. Who compiles this: nvcc needs no flag, the __f*_rn intrinsics
// see to it. g++ (12 or later) and clang need none for single values; a file with loops over them gets
// -ffp-contract=off, since g++ drops fenced() where it vectorises.
#pragma once

#include <cstdint>
#include <cstring>
#include <utility>

#include "platform/sdk/dtypes.hpp"

namespace concord::sdk {

// ---------------------------------------------------------------------------------------------------------- arithmetic

// A value that g++ does not look through to fuse a product with a sum (outside of vectorised loops, see above).
template <class Real>
CONCORD_HOST_DEVICE inline Real fenced(Real value) {
#if defined(__GNUC__) && !defined(__clang__) && !defined(__CUDACC__) && __GNUC__ >= 12
  return __builtin_assoc_barrier(value);
#else
  return value;
#endif
}

#if defined(__CUDA_ARCH__)
__device__ inline float add(float a, float b) { return __fadd_rn(a, b); }
__device__ inline float mul(float a, float b) { return __fmul_rn(a, b); }
__device__ inline float div(float a, float b) { return __fdiv_rn(a, b); }
__device__ inline float square_root(float a) { return __fsqrt_rn(a); }
__device__ inline double add(double a, double b) { return __dadd_rn(a, b); }
__device__ inline double mul(double a, double b) { return __dmul_rn(a, b); }
#else
CONCORD_HOST_DEVICE inline float add(float a, float b) { return fenced(a + b); }
CONCORD_HOST_DEVICE inline float mul(float a, float b) { return fenced(a * b); }
CONCORD_HOST_DEVICE inline float div(float a, float b) { return a / b; }
CONCORD_HOST_DEVICE inline float square_root(float a) { return __builtin_sqrtf(a); }
CONCORD_HOST_DEVICE inline double add(double a, double b) { return fenced(a + b); }
CONCORD_HOST_DEVICE inline double mul(double a, double b) { return fenced(a * b); }
#endif

// a + b * x, rounded twice: one step of Horner's rule.
CONCORD_HOST_DEVICE inline float step(float a, float b, float x) { return add(a, mul(b, x)); }

// --------------------------------------------------------------------------------------------------------------- words

struct PhiloxBlock {
  uint32_t word[4];
};

inline constexpr uint32_t kPhiloxM0 = 0xd2511f53u;
inline constexpr uint32_t kPhiloxM1 = 0xcd9e8d57u;
inline constexpr uint32_t kPhiloxW0 = 0x9e3779b9u;
inline constexpr uint32_t kPhiloxW1 = 0xbb67ae85u;
inline constexpr int kPhiloxRounds = 10;

CONCORD_HOST_DEVICE inline void philox_round(uint32_t& c0, uint32_t& c1, uint32_t& c2, uint32_t& c3, uint32_t k0,
                                             uint32_t k1) {
  const uint64_t p0 = static_cast<uint64_t>(kPhiloxM0) * c0;
  const uint64_t p1 = static_cast<uint64_t>(kPhiloxM1) * c2;
  c0 = static_cast<uint32_t>(p1 >> 32) ^ c1 ^ k0;
  c1 = static_cast<uint32_t>(p1);
  c2 = static_cast<uint32_t>(p0 >> 32) ^ c3 ^ k1;
  c3 = static_cast<uint32_t>(p0);
}

// All rounds, written out (a loop inside would keep a loop around it from being vectorised).
template <int... kRound>
CONCORD_HOST_DEVICE inline PhiloxBlock philox_rounds(PhiloxBlock c, uint32_t k0, uint32_t k1,
                                                     std::integer_sequence<int, kRound...>) {
  (philox_round(c.word[0], c.word[1], c.word[2], c.word[3], k0 + kRound * kPhiloxW0, k1 + kRound * kPhiloxW1), ...);
  return c;
}

CONCORD_HOST_DEVICE inline PhiloxBlock philox(PhiloxBlock counter, uint32_t k0, uint32_t k1) {
  return philox_rounds(counter, k0, k1, std::make_integer_sequence<int, kPhiloxRounds>());
}

// Block |block| of the stream (key, subsequence).
CONCORD_HOST_DEVICE inline PhiloxBlock philox_block(uint64_t key, uint64_t subsequence, uint64_t block) {
  const PhiloxBlock counter = {{static_cast<uint32_t>(block), static_cast<uint32_t>(block >> 32),
                                static_cast<uint32_t>(subsequence), static_cast<uint32_t>(subsequence >> 32)}};
  return philox(counter, static_cast<uint32_t>(key), static_cast<uint32_t>(key >> 32));
}

// ------------------------------------------------------------------------------------------------- the normal quantile

// ln(x) of a normal float x in (0, 1]. The polynomial is that of logf in Cephes (Moshier), good to about an ulp.
CONCORD_HOST_DEVICE inline float natural_log(float x) {
  const uint32_t bits = float_bits(x) + (0x3f800000u - 0x3f3504f3u);  // split at sqrt(1/2): mantissa in [0.707, 1.414)
  const float exponent = static_cast<float>(static_cast<int32_t>(bits >> 23) - 127);
  const float f = add(float_from_bits((bits & 0x007fffffu) + 0x3f3504f3u), -1.0f);
  const float f2 = mul(f, f);
  float tail = step(-1.1514610310e-1f, 7.0376836292e-2f, f);
  tail = step(1.1676998740e-1f, tail, f);
  tail = step(-1.2420140846e-1f, tail, f);
  tail = step(1.4249322787e-1f, tail, f);
  tail = step(-1.6668057665e-1f, tail, f);
  tail = step(2.0000714765e-1f, tail, f);
  tail = step(-2.4999993993e-1f, tail, f);
  tail = step(3.3333331174e-1f, tail, f);
  tail = mul(mul(tail, f), f2);
  tail = step(tail, exponent, -2.12194440e-4f);  // ln 2 in two parts, the first of which multiplies exactly
  tail = step(tail, -0.5f, f2);
  return step(add(f, tail), exponent, 0.693359375f);
}

// The |z| whose upper tail has probability |tail|, in (0, 1/2]; |centre| is 1/2 - tail, given apart because it keeps
// its precision near 0. Wichura's AS 241, PPND7 ("The percentage points of the normal distribution", Applied Statistics
// 37, 1988); in these roundings at most 5e-7 relative off the exact quantile of |tail|. All three branches are computed
// and one is taken, so that a loop vectorises.
CONCORD_HOST_DEVICE inline float normal_quantile(float tail, float centre) {
  const float c = step(0.180625f, -centre, centre);
  const float centre_over =
      mul(centre, step(3.3871327179e+0f, step(5.0434271938e+1f, step(1.5929113202e+2f, 5.9109374720e+1f, c), c), c));
  const float centre_under = step(1.0f, step(1.7895169469e+1f, step(7.8757757664e+1f, 6.7187563600e+1f, c), c), c);
  const float depth = square_root(-natural_log(tail));
  const float n = add(depth, -1.6f);
  const float near_over =
      step(1.4234372777e+0f, step(2.7568153900e+0f, step(1.3067284816e+0f, 1.7023821103e-1f, n), n), n);
  const float near_under = step(1.0f, step(7.3700164250e-1f, 1.2021132975e-1f, n), n);
  const float f = add(depth, -5.0f);
  const float far_over =
      step(6.6579051150e+0f, step(3.0812263860e+0f, step(4.2868294337e-1f, 1.7337203997e-2f, f), f), f);
  const float far_under = step(1.0f, step(2.4197894225e-1f, 1.2258202635e-2f, f), f);
  const float tail_over = depth <= 5.0f ? near_over : far_over;
  const float tail_under = depth <= 5.0f ? near_under : far_under;
  return div(centre <= 0.425f ? centre_over : tail_over, centre <= 0.425f ? centre_under : tail_under);
}

// A standard normal value. The top bit of |high| is the sign. The 62 bits m below it (31 of high, 31 of low) give the
// tail (m + 1/2) / 2^63, so |z| reaches 9.1 and is fine-grained around 0 as well as far out.
CONCORD_HOST_DEVICE inline float standard_normal(uint32_t low, uint32_t high) {
  const auto a = static_cast<int32_t>(high & 0x7fffffffu);
  const auto b = static_cast<int32_t>(low >> 1);
  const float tail = add(mul(static_cast<float>(a), 0x1p-32f), mul(add(static_cast<float>(b), 0.5f), 0x1p-63f));
  const float centre = add(mul(static_cast<float>(0x7fffffff - a), 0x1p-32f),
                           mul(add(static_cast<float>(0x7fffffff - b), 0.5f), 0x1p-63f));
  return float_from_bits(float_bits(normal_quantile(tail, centre)) | (high & 0x80000000u));
}

// ---------------------------------------------------------------------------------------------------------- generators

// Each has: Out, the element; kWords, the words of a position (1 or 2); at(words), the value from them.

struct BitsI32 {
  using Out = int32_t;
  static constexpr int kWords = 1;
  CONCORD_HOST_DEVICE Out at(const uint32_t* words) const { return static_cast<int32_t>(words[0]); }
};

struct BitsI64 {
  using Out = int64_t;
  static constexpr int kWords = 2;
  CONCORD_HOST_DEVICE Out at(const uint32_t* words) const {
    return static_cast<int64_t>(words[0] | (static_cast<uint64_t>(words[1]) << 32));
  }
};

// low + u * (high - low) with u = (word >> 8) / 2^24. Rounding can carry the sum up to high: then it is |top|, the
// largest float below high. low == high gives low.
struct UniformF32 {
  using Out = float;
  static constexpr int kWords = 1;
  float low, span, high, top;

  UniformF32(double from, double to)
      : low(static_cast<float>(from)),
        span(static_cast<float>(to) - low),
        high(static_cast<float>(to)),
        top(low < high ? __builtin_nextafterf(high, low) : low) {}
  CONCORD_HOST_DEVICE Out at(const uint32_t* words) const {
    const float value = step(low, mul(static_cast<float>(static_cast<int32_t>(words[0] >> 8)), 0x1p-24f), span);
    return value < high ? value : top;
  }
};

// As UniformF32 in double, with u = (the upper 53 bits) / 2^53.
struct UniformF64 {
  using Out = double;
  static constexpr int kWords = 2;
  double low, span, high, top;

  UniformF64(double from, double to)
      : low(from), span(to - from), high(to), top(low < high ? __builtin_nextafter(high, low) : low) {}
  CONCORD_HOST_DEVICE Out at(const uint32_t* words) const {
    const uint64_t bits = words[0] | (static_cast<uint64_t>(words[1]) << 32);
    const double value = add(low, mul(mul(static_cast<double>(static_cast<int64_t>(bits >> 11)), 0x1p-53), span));
    return value < high ? value : top;
  }
};

struct NormalF32 {
  using Out = float;
  static constexpr int kWords = 2;
  float mean, deviation;

  NormalF32(double centre, double spread) : mean(static_cast<float>(centre)), deviation(static_cast<float>(spread)) {}
  CONCORD_HOST_DEVICE Out at(const uint32_t* words) const {
    return step(mean, deviation, standard_normal(words[0], words[1]));
  }
};

// low + the upper 64 bits of (the 64-bit word) * (high - low). Some values come up more often than others by at most
// one in 2^64 / (high - low): not to be seen for ranges below 2^48.
template <class Integer>
struct IntegerIn {
  using Out = Integer;
  static constexpr int kWords = 2;
  uint64_t low, range;

  IntegerIn(int64_t from, int64_t to)
      : low(static_cast<uint64_t>(from)), range(static_cast<uint64_t>(to) - static_cast<uint64_t>(from)) {}
  CONCORD_HOST_DEVICE Out at(const uint32_t* words) const {
    const uint64_t r0 = static_cast<uint32_t>(range), r1 = range >> 32;
    const uint64_t p00 = r0 * words[0], p01 = r1 * words[0], p10 = r0 * words[1], p11 = r1 * words[1];
    const uint64_t middle = (p00 >> 32) + static_cast<uint32_t>(p01) + static_cast<uint32_t>(p10);
    return static_cast<Integer>(low + p11 + (p01 >> 32) + (p10 >> 32) + (middle >> 32));
  }
};

// The F32 value, converted: exactly to F64, to nearest even in 16 bits. A 16-bit uniform value may thereby reach high.
template <class Source, class Converted, Converted (*kConvert)(float)>
struct ConvertedFrom : Source {
  using Source::Source;
  using Out = Converted;
  CONCORD_HOST_DEVICE float value(const uint32_t* words) const { return Source::at(words); }
  CONCORD_HOST_DEVICE static Out convert(float value) { return kConvert(value); }
  CONCORD_HOST_DEVICE Out at(const uint32_t* words) const { return convert(value(words)); }
};

CONCORD_HOST_DEVICE inline double float_to_double(float value) { return static_cast<double>(value); }

template <class Source>
using AsF64 = ConvertedFrom<Source, double, &float_to_double>;
template <class Source>
using AsBf16 = ConvertedFrom<Source, uint16_t, &float_to_bf16>;
template <class Source>
using AsF16 = ConvertedFrom<Source, uint16_t, &float_to_f16>;

// Calls |visitor| with the generator of |request|, which read_rng_request has accepted. On the host.
template <class Visitor>
void visit_rng(const concord_rng_request& request, Visitor&& visitor) {
  const auto choice = [](concord_rng_kind kind, concord_dtype dtype) { return kind * 100 + dtype; };
  const double low = request.low, high = request.high;
  switch (choice(request.kind, request.dtype)) {
    case choice(CONCORD_RNG_BITS, CONCORD_DTYPE_I32): return visitor(BitsI32());
    case choice(CONCORD_RNG_BITS, CONCORD_DTYPE_I64): return visitor(BitsI64());
    case choice(CONCORD_RNG_UNIFORM, CONCORD_DTYPE_F32): return visitor(UniformF32(low, high));
    case choice(CONCORD_RNG_UNIFORM, CONCORD_DTYPE_F64): return visitor(UniformF64(low, high));
    case choice(CONCORD_RNG_UNIFORM, CONCORD_DTYPE_BF16): return visitor(AsBf16<UniformF32>(low, high));
    case choice(CONCORD_RNG_UNIFORM, CONCORD_DTYPE_F16): return visitor(AsF16<UniformF32>(low, high));
    case choice(CONCORD_RNG_NORMAL, CONCORD_DTYPE_F32): return visitor(NormalF32(low, high));
    case choice(CONCORD_RNG_NORMAL, CONCORD_DTYPE_F64): return visitor(AsF64<NormalF32>(low, high));
    case choice(CONCORD_RNG_NORMAL, CONCORD_DTYPE_BF16): return visitor(AsBf16<NormalF32>(low, high));
    case choice(CONCORD_RNG_NORMAL, CONCORD_DTYPE_F16): return visitor(AsF16<NormalF32>(low, high));
    case choice(CONCORD_RNG_INTEGER, CONCORD_DTYPE_I32):
      return visitor(IntegerIn<int32_t>(request.integer_low, request.integer_high));
    case choice(CONCORD_RNG_INTEGER, CONCORD_DTYPE_I64):
      return visitor(IntegerIn<int64_t>(request.integer_low, request.integer_high));
    default: invalid(text("no random numbers of kind %d and dtype %d", request.kind, request.dtype));
  }
}

// ----------------------------------------------------------------------------------------------------------- positions

// The block that holds |position|, and where in it the words begin. Positions are taken modulo 2^64.
template <class Generator>
CONCORD_HOST_DEVICE inline uint64_t block_of(uint64_t position) {
  return position / (4 / Generator::kWords);
}

template <class Generator>
CONCORD_HOST_DEVICE inline int word_of(uint64_t position) {
  return static_cast<int>(position % (4 / Generator::kWords)) * Generator::kWords;
}

// The position of element |index| of |request|.
CONCORD_HOST_DEVICE inline uint64_t position_of(const concord_rng_request& request, int64_t index) {
  if (request.run_length == 0) return request.offset + static_cast<uint64_t>(index);
  const uint64_t run = static_cast<uint64_t>(index / request.run_length);
  return request.offset + run * static_cast<uint64_t>(request.run_stride) +
         static_cast<uint64_t>(index % request.run_length);
}

// The value at one position: the definition in one line. A fill computes a block once for all its positions.
template <class Generator>
CONCORD_HOST_DEVICE inline typename Generator::Out value_at(const Generator& generator, uint64_t key,
                                                            uint64_t subsequence, uint64_t position) {
  const PhiloxBlock block = philox_block(key, subsequence, block_of<Generator>(position));
  return generator.at(block.word + word_of<Generator>(position));
}

}  // namespace concord::sdk
