// Tensors in and out of safetensors files, whole: for batches, dumps and other small things. Weights of models go
// through core/checkpoint/hf_weights.h.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <string>

#include "core/safetensors/reader.h"

namespace concord {

using TensorMap = std::map<std::string, at::Tensor>;

// On the host. Throws ConfigError, with the file, if the tensor is not there or of a type that libtorch lacks.
at::Tensor read_tensor(const safetensors::Reader& file, const std::string& name);

// Replaces |path| when everything is written. Tensors may be on any device; types are kept.
void write_tensors(const std::string& path, const TensorMap& tensors);

}  // namespace concord
