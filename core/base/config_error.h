// The exception for invalid settings: sizes that do not divide, names that do not exist. Its message states what was
// given, what is allowed and what to do. The program prints the message and exits with code 2.
#pragma once

#include <stdexcept>

namespace concord {

class ConfigError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace concord
