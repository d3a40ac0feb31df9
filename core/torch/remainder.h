// fp32 numbers as a bf16 number and a 16-bit remainder. With w the bits of the fp32 number as an integer,
//   low  = w mod 2^16, from -2^15 to 2^15 - 1
//   high = (w - low) / 2^16, the bits of the bf16 number
// so that w = 2^16 high + low: exact, and each has 16 bits. |low| is at most half a step between neighbouring bf16
// numbers, so |high| is the nearest one. On a tie low is -2^15, since +2^15 is not a 16-bit number: |high| is the
// neighbour of larger magnitude. It equals rounding to nearest even except on ties whose even neighbour is the smaller.
// The remainder is that of Transformer Engine's FusedAdam (store_param_remainders). Threads: any.
#pragma once

#include <ATen/core/Tensor.h>

namespace concord {

// Sets the flat fp32 |wide| to the numbers that |high| (bf16) and |low| (int16) stand for. All are on one device; on
// its current stream.
void join_remainder(const at::Tensor& high, const at::Tensor& low, const at::Tensor& wide);
// Sets |high| and |low| to the parts of |wide|, and NaNs of |wide| that would become a bf16 -0 to another NaN.
void split_remainder(const at::Tensor& wide, const at::Tensor& high, const at::Tensor& low);

}  // namespace concord
