// Argument checks of operators: one error message with the operator, what was given and what is allowed.
#pragma once

#include <string>

namespace at {
class Tensor;
}

namespace concord::ops {

// Throws ConfigError: "operator rms_norm: " followed by |why|.
[[noreturn]] void refuse(const char* op, const std::string& why);

// Returns "BFloat16 [2, 3]", or "nothing" for an undefined tensor.
std::string text_of(const at::Tensor& tensor);

// Throws unless the tensor is defined and of a type that operators compute in: Float, Double, BFloat16, Half.
void check_floating(const char* op, const char* what, const at::Tensor& tensor);
// Like check_floating(), and throws unless its type and device are those of |like|.
void check_like(const char* op, const char* what, const at::Tensor& tensor, const at::Tensor& like);

}  // namespace concord::ops
