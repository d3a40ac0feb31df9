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
// what all hardware agrees on, and no library function. nvcc needs no flag, because it has the __f*_rn intrinsics. g++
// (12 or later) and clang need none for single values; a file with loops over them needs -ffp-contract=off, since g++
// drops fenced() in vectorised loops.
#pragma once

#include <cstdint>
#include <cstring>

#include "platform/sdk/dtypes.hpp"
#include "platform/sdk/normal_quantile.hpp"
#include "platform/sdk/philox_block.hpp"

namespace concord::sdk {

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

// The F32 value, converted: exactly to F64, to nearest even in bf16 and f16. A 16-bit uniform value may thereby reach
// high.
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
