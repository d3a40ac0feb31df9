// Parses --dtype.
#pragma once

#include <c10/core/ScalarType.h>
#include <fmt/core.h>

#include <string>

#include "core/base/config_error.h"
#include "core/base/quoted.h"

namespace concord {

// Throws ConfigError with the allowed names for any other name.
inline c10::ScalarType dtype_named(const std::string& name) {
  if (name == "float32") return c10::ScalarType::Float;
  if (name == "bfloat16") return c10::ScalarType::BFloat16;
  if (name == "float16") return c10::ScalarType::Half;
  if (name == "float64") return c10::ScalarType::Double;
  throw ConfigError(fmt::format("--dtype is {}; must be float32, bfloat16, float16 or float64", quoted(name)));
}

}  // namespace concord
