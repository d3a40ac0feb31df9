// Reads and writes whole tensors in safetensors files: for batches, dumps and other small data. Weights of models use
// core/checkpoint/hf_weights.h.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <string>

#include "core/safetensors/reader.h"

namespace concord {

using TensorMap = std::map<std::string, at::Tensor>;

// Returns a tensor on the host. Throws ConfigError, with the file, if it does not exist or libtorch lacks its type.
at::Tensor read_tensor(const safetensors::Reader& file, const std::string& name);

// Replaces |path| when everything is written. Tensors may be on any device; types are kept.
void write_tensors(const std::string& path, const TensorMap& tensors);

}  // namespace concord
