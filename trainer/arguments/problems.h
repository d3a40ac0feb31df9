// Mistakes found so far. All of them are reported together, so that a user does not run the program once per mistake.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/config_error.h"

namespace concord {

class Problems {
 public:
  void add(std::string text) { list_.push_back(std::move(text)); }

  // Calls |check| and adds the message of the ConfigError that it throws, if any.
  template <class Check>
  void collect(const Check& check) {
    try {
      check();
    } catch (const ConfigError& error) {
      add(error.what());
    }
  }

  // Throws one ConfigError with all mistakes, if there are any; |title| says what they are if there are several.
  void throw_if_any(std::string_view title) const;

 private:
  std::vector<std::string> list_;
};

}  // namespace concord
