// The message of a ConfigError that a test expects.
#pragma once

#include <functional>
#include <string>

#include "core/base/config_error.h"

namespace concord::tests {

// Returns the message of the ConfigError that |call| throws, or "no error".
inline std::string error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "no error";
}

}  // namespace concord::tests
