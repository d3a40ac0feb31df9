// concord::dropout with the platform's counter-based random numbers: the same elements are dropped on every vendor's
// device and by a replayed generator. The derivative draws the same numbers again, so no mask is saved.
#pragma once

#include "platform/cpp/rng.hpp"

namespace at {
class Tensor;
}

namespace concord {

// Element i, in row-major order, becomes 0 if the uniform fp32 number at the generator's position + i is below |p|,
// otherwise x / (1 - p). Advances |generator| by the number of elements; with p = 0 it draws nothing and returns x.
// Throws ConfigError unless |p| is in [0, 1).
at::Tensor dropout(const at::Tensor& x, double p, Generator& generator);

// Fills |numbers|, fp32 and contiguous, with the uniform numbers at the positions of |runs|, starting at |from|.
void draw_uniform(const at::Tensor& numbers, const Generator::State& from, Runs runs);
// Like draw_uniform(), but fills int32 |words| with 32 random bits each.
void draw_bits(const at::Tensor& words, const Generator::State& from, Runs runs);

}  // namespace concord
