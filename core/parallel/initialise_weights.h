// Layout-independent initialisation: the value of an element depends only on the seed, the name of its global tensor
// and its index there (core/parallel/shard_spec.h). TP 1 and TP 4, any pipeline or expert split, cuda and ascend start
// from bitwise identical weights.
//
// The value is the normal or uniform number of platform/abi/rng.h at key = seed, subsequence = stable_hash(tensor
// name), offset = index. For bf16 and fp16 it is the fp32 value rounded to nearest.
#pragma once

#include <cstdint>

#include "core/parallel/shard_spec.h"
#include "platform/cpp/device.hpp"

namespace at {
class Tensor;
}

namespace concord {

struct WeightInit {
  enum class Kind { normal, uniform, log_uniform, constant };
  Kind kind;
  double value;    // the standard deviation, the upper bound or the constant
  double low = 0;  // the lower bound of uniform numbers, also of those whose logarithm is taken
};

inline WeightInit normal_init(double sigma) { return {WeightInit::Kind::normal, sigma}; }
inline WeightInit uniform_init(double bound) { return {WeightInit::Kind::uniform, bound, -bound}; }
inline WeightInit log_uniform_init(double low, double high) { return {WeightInit::Kind::log_uniform, high, low}; }
inline WeightInit constant_init(double value) { return {WeightInit::Kind::constant, value}; }

// Fills |shard|, this rank's part of the parameter, on the current stream; padding becomes 0. |shard| is contiguous, on
// |device|, of local_shape(spec, place), in f32, f64, bf16 or f16. Throws ConfigError otherwise, or if |seed| is not
// positive.
void initialise_weights(const at::Tensor& shard, const ShardSpec& spec, const ShardPlace& place, const WeightInit& init,
                        int64_t seed, const Device& device);

// Zeroes the padding of |shard|: all elements beyond the global size of a dimension.
void clear_padding(const at::Tensor& shard, const ShardSpec& spec, const ShardPlace& place);

}  // namespace concord
