// How operators refuse bad input: one message with the operator, what was given, what is allowed.
#pragma once

#include <string>

namespace at {
class Tensor;
}

namespace concord::ops {

// Throws ConfigError: "operator rms_norm: " and |why|.
[[noreturn]] void refuse(const char* op, const std::string& why);

// "BFloat16 [2, 3]", or "nothing" for an undefined tensor.
std::string text_of(const at::Tensor& tensor);

// Refuses a tensor that is not defined or of a type that operators compute in: Float, Double, BFloat16, Half.
void check_floating(const char* op, const char* what, const at::Tensor& tensor);
// The same, and if its type or device is not that of |like|.
void check_like(const char* op, const char* what, const at::Tensor& tensor, const at::Tensor& like);

}  // namespace concord::ops
