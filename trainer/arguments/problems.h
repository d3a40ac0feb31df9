// Mistakes found so far. All of them are reported together, so that a user does not run the program once per mistake.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/config_error.h"

namespace concord {

class Problems {
 public:
  // Adds |text| unless it is known already: two checks may find the same mistake.
  void add(std::string text) {
    if (std::ranges::find(list_, text) == list_.end()) list_.push_back(std::move(text));
  }

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
