// Main weights of bf16 parameters without an fp32 copy, the one place that converts them: an update widens a piece to
// fp32, x, and the result is kept as
//   remainder              the parameter and 16 bits, which complete it to exactly x (core/torch/remainder.h)
//   kahan_sum              the parameter w = bf16(x) and its compensation c, which is x - w cut to bf16; the next
//                          update adds both, and |w + c - x| < 2^-7 |x - w| <= 2^-15 |x|. An update that changes
//                          nothing keeps both: w + c is an fp32 number whose nearest bf16 number is w, since c is
//                          not rounded up
//   bf16_stochastic_round  the parameter alone: one of the two neighbours of x, at random such that their mean is x
// A random number is a function of the update, the tensor of the HF model and the index of the element in it, so that
// bits do not depend on the layout, on offloading or on a resume, and replicas stay equal: 16 bits of the word at
// |index| of the Philox stream
//   key = stable_hash("stochastic_round") + update,   subsequence = stable_hash(tensor).
// Threads: any.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "core/optim/optimizer_options.h"
#include "core/optim/segment.h"

namespace concord {

// Returns the type of what is kept in addition to a parameter of this type, Segment::weights or remainder; Undefined:
// nothing. Throws ConfigError if |precision| cannot be kept for it.
c10::ScalarType main_weights_type(const StatePrecision& precision, c10::ScalarType parameter);

// The weights of |segment| in fp32: themselves, or a copy on the device of the parameter.
at::Tensor wide_weights(const Segment& segment);
// Sets |wide| to the main weights of |segment|, which have no fp32 copy; all are on one device.
void load_weights(const Segment& segment, const at::Tensor& wide);
// Keeps |wide|, the result of |update|, which may be on another device. Changes |wide|.
void store_weights(const Segment& segment, const at::Tensor& wide, int64_t update);

// Swaps the weights with their EMA; |is_swapped|: back. Weights that cannot hold the average exactly are replaced by
// the rounded one and kept, with the bits that it lacks, in the memory of the average.
void swap_weights(const Segment& segment, bool is_swapped);

// Sets |values| (bf16) to |wide| (fp32, on the same device), rounded stochastically; both are at |runs|. Other elements
// are cut to the neighbour nearer to 0. NaNs and infinities stay what they are. Changes |wide|.
void stochastic_round(const at::Tensor& wide, const std::vector<ShardRun>& runs, int64_t update,
                      const at::Tensor& values);

}  // namespace concord
