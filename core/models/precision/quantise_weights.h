// Frozen weights of linear layers in 4 bits (--quantization_bit 4).
#pragma once

#include <span>

#include "core/mesh/parallel_context.h"
#include "core/parallel/parameter.h"

namespace concord {

// Replaces the values of those of |parameters| that are frozen and of linear layers, one after the other, on the host:
// the values that they have then do not depend on the layout. Every rank calls it. Waits: for the others of the
// tensor-parallel group. Throws ConfigError, with the weight and its sizes, where a rank's inputs are no whole blocks.
void quantise_weights(std::span<Parameter* const> parameters, ParallelContext& context);

}  // namespace concord
