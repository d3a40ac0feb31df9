// Random numbers that are the same on every vendor (platform/abi/rng.h). A generator is three integers.
#pragma once

#include <algorithm>
#include <cstdint>

#include "platform/cpp/stream.hpp"
#include "platform/cpp/types.hpp"

namespace concord {

// A value; copying it forks the sequence. Threads: one at a time per generator.
class Generator {
 public:
  struct State {
    uint64_t key;
    uint64_t subsequence;
    uint64_t offset;  // position of the next element
    friend bool operator==(const State&, const State&) = default;
  };

  explicit Generator(uint64_t key, uint64_t subsequence = 0, uint64_t offset = 0) : state_{key, subsequence, offset} {}

  const State& state() const { return state_; }
  void restore(const State& state) { state_ = state; }

  // Each enqueues on |stream| and advances by |count|. A fill that fails leaves the state as it was.
  void bits(const Stream& stream, void* destination, int64_t count, DType dtype) {
    fill(stream, request(CONCORD_RNG_BITS, destination, count, dtype));
  }
  void uniform(const Stream& stream, void* destination, int64_t count, DType dtype, double low = 0, double high = 1) {
    concord_rng_request wanted = request(CONCORD_RNG_UNIFORM, destination, count, dtype);
    wanted.low = low;
    wanted.high = high;
    fill(stream, wanted);
  }
  void normal(const Stream& stream, void* destination, int64_t count, DType dtype, double mean = 0,
              double deviation = 1) {
    concord_rng_request wanted = request(CONCORD_RNG_NORMAL, destination, count, dtype);
    wanted.low = mean;
    wanted.high = deviation;
    fill(stream, wanted);
  }
  // low <= x < high
  void integers(const Stream& stream, void* destination, int64_t count, DType dtype, int64_t low, int64_t high) {
    concord_rng_request wanted = request(CONCORD_RNG_INTEGER, destination, count, dtype);
    wanted.integer_low = low;
    wanted.integer_high = high;
    fill(stream, wanted);
  }

 private:
  concord_rng_request request(concord_rng_kind kind, void* destination, int64_t count, DType dtype) const {
    concord_rng_request wanted{};
    wanted.struct_size = sizeof wanted;
    wanted.kind = kind;
    wanted.dtype = abi(dtype);
    wanted.destination = destination;
    wanted.count = count;
    wanted.key = state_.key;
    wanted.subsequence = state_.subsequence;
    wanted.offset = state_.offset;
    return wanted;
  }

  void fill(const Stream& stream, const concord_rng_request& wanted) {
    stream.platform().call<&concord_rng_table::fill>(&wanted, stream.native());
    state_.offset += static_cast<uint64_t>(wanted.count);
  }

  State state_;
};

// The rows of a block inside a larger sequence: element i has position offset + (i / length) * stride + i % length.
struct Runs {
  int64_t length;
  int64_t stride;
};

// Enqueues |count| values at the positions of |runs|, beginning at |from|: CONCORD_RNG_NORMAL with the mean |low| and
// the deviation |high|, CONCORD_RNG_UNIFORM between the two, or CONCORD_RNG_BITS, without numbers. A plugin of version
// 1.0 does not support runs and is called for each one separately.
inline void fill_runs(concord_rng_kind kind, const Stream& stream, void* destination, int64_t count, DType dtype,
                      const Generator::State& from, Runs runs, double low, double high) {
  concord_rng_request wanted{};
  wanted.struct_size = sizeof wanted;
  wanted.kind = kind;
  wanted.dtype = abi(dtype);
  wanted.destination = destination;
  wanted.count = count;
  wanted.key = from.key;
  wanted.subsequence = from.subsequence;
  wanted.offset = from.offset;
  wanted.low = low;
  wanted.high = high;
  const Platform& platform = stream.platform();
  if (platform.abi_version().minor >= 1 || runs.length >= count) {
    if (runs.length < count) {
      wanted.run_length = runs.length;
      wanted.run_stride = runs.stride;
    }
    platform.call<&concord_rng_table::fill>(&wanted, stream.native());
    return;
  }
  for (int64_t done = 0; done < count; done += runs.length) {
    wanted.destination = static_cast<char*>(destination) + done * size_of(dtype);
    wanted.count = std::min(runs.length, count - done);
    platform.call<&concord_rng_table::fill>(&wanted, stream.native());
    wanted.offset += static_cast<uint64_t>(runs.stride);
  }
}

}  // namespace concord
