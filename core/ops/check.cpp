#include "core/ops/check.h"

#include <ATen/core/Tensor.h>
#include <fmt/core.h>
#include <fmt/ranges.h>

#include "core/base/config_error.h"

namespace concord::ops {

void refuse(const char* op, const std::string& why) { throw ConfigError(fmt::format("operator {}: {}", op, why)); }

std::string text_of(const at::Tensor& tensor) {
  if (!tensor.defined()) return "nothing";
  return fmt::format("{} [{}]", c10::toString(tensor.scalar_type()), fmt::join(tensor.sizes(), ", "));
}

void check_floating(const char* op, const char* what, const at::Tensor& tensor) {
  if (tensor.defined()) {
    const auto type = tensor.scalar_type();
    if (type == at::kFloat || type == at::kDouble || type == at::kBFloat16 || type == at::kHalf) return;
  }
  refuse(op, fmt::format("{} is {}; must be Float, Double, BFloat16 or Half", what, text_of(tensor)));
}

void check_like(const char* op, const char* what, const at::Tensor& tensor, const at::Tensor& like) {
  check_floating(op, what, tensor);
  if (tensor.scalar_type() == like.scalar_type() && tensor.device() == like.device()) return;
  refuse(op, fmt::format("{} is {} on {}, but another input is {} on {}; dtypes and devices must be equal", what,
                         text_of(tensor), tensor.device().str(), text_of(like), like.device().str()));
}

}  // namespace concord::ops
