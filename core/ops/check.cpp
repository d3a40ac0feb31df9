#include "core/ops/check.h"

#include <ATen/core/Tensor.h>

#include "core/config_error.h"
#include "platform/loader/text.h"

namespace concord::ops {

using loader::cat;

void refuse(const char* op, const std::string& why) { throw ConfigError(cat("operator ", op, ": ", why)); }

std::string text_of(const at::Tensor& tensor) {
  if (!tensor.defined()) return "nothing";
  return cat(c10::toString(tensor.scalar_type()), " [", loader::join(tensor.sizes(), ", "), "]");
}

void check_floating(const char* op, const char* what, const at::Tensor& tensor) {
  if (tensor.defined()) {
    const auto type = tensor.scalar_type();
    if (type == at::kFloat || type == at::kDouble || type == at::kBFloat16 || type == at::kHalf) return;
  }
  refuse(op, cat(what, " is ", text_of(tensor), "; must be Float, Double, BFloat16 or Half"));
}

void check_like(const char* op, const char* what, const at::Tensor& tensor, const at::Tensor& like) {
  check_floating(op, what, tensor);
  if (tensor.scalar_type() == like.scalar_type() && tensor.device() == like.device()) return;
  refuse(op, cat(what, " is ", text_of(tensor), " on ", tensor.device().str(), ", but another input is ", text_of(like),
                 " on ", like.device().str(), "; dtypes and devices must be equal"));
}

}  // namespace concord::ops
