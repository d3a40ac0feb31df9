// Parses --dtype.
#pragma once

#include <c10/core/ScalarType.h>
#include <fmt/core.h>

#include <string>

#include "core/base/config_error.h"
#include "core/base/quoted.h"
#include "core/checkpoint/hf_dtype.h"

namespace concord {

// Throws ConfigError with the allowed names for any other name.
inline c10::ScalarType dtype_named(const std::string& name) {
  if (const std::optional<c10::ScalarType> type = find_config_dtype(name)) return *type;
  throw ConfigError(fmt::format("--dtype is {}; must be float32, bfloat16, float16 or float64", quoted(name)));
}

}  // namespace concord
