// Frozen weights of linear layers in 4 bits (--quantization_bit 4).
#pragma once

#include <span>

#include "core/mesh/parallel_context.h"
#include "core/parallel/parameter.h"

namespace concord {

// Quantises those of |parameters| that are frozen weights of linear layers, one after the other, on the host; the
// resulting values do not depend on the layout. Every rank calls it. Waits: for the tensor-parallel group. Throws
// ConfigError, with the weight and its sizes, if a rank's inputs are not a multiple of the block size.
void quantise_weights(std::span<Parameter* const> parameters, ParallelContext& context);

}  // namespace concord
