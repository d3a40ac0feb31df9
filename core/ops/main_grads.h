// How gradients reach the main gradients, on the current stream.
#pragma once

#include <ATen/core/Tensor.h>

namespace concord {

// Sets main[i] = grads[i], which may be of another floating type, with few launches.
void copy_grads_(at::TensorList main, at::TensorList grads);

// Returns whether layers add the gradient of |weight| to cleared memory as fast as they overwrite memory. Then clearing
// the gradients of many weights at once saves launches.
bool prefers_cleared_grads(const at::Tensor& weight);

}  // namespace concord
