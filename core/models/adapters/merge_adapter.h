// Adapters that are added to a model's weights as these are loaded, before another one is trained: the values are those
// that `concord merge` writes, on each rank its own.
#pragma once

#include <span>
#include <string>

#include "core/parallel/parameter.h"
#include "core/safetensors/index.h"

namespace concord {

// The adapter in |folder|, to |parameters|, the model's own ones of this rank. |model| are the files that they are
// from. Throws ConfigError where the adapter is of another model, has DoRA's row lengths, or was trained on merged
// ones.
void merge_adapter(const std::string& folder, std::span<Parameter* const> parameters, const ShardPlace& place,
                   const safetensors::Weights& model);

}  // namespace concord
