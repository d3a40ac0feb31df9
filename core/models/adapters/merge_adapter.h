// Adapters that are added to a model's weights as these are loaded, before another one is trained: the values are those
// that `concord merge` writes, on each rank its own.
#pragma once

#include <span>
#include <string>

#include "core/parallel/parameter.h"
#include "core/safetensors/index.h"

namespace concord {

// Merges the adapter in |folder| into |parameters|, the model's parameters of this rank, which were read from |model|.
// Throws ConfigError if the adapter belongs to a different model, uses DoRA, or was trained on merged adapters.
void merge_adapter(const std::string& folder, std::span<Parameter* const> parameters, const ShardPlace& place,
                   const safetensors::Weights& model);

}  // namespace concord
