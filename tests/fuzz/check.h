// Assertions of fuzz targets.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <string>

namespace concord::fuzz {

// Unlike assert, also active in release builds.
inline void check(bool holds, const std::string& what) {
  if (holds) return;
  std::fprintf(stderr, "fuzz: does not hold: %s\n", what.c_str());
  std::abort();
}

// Checks that an error is a readable message, whatever the file contained.
inline void check_error(const std::string& text, const std::string& file) {
  check(text.size() < 4000, "errors are short");
  check(text.find(file) != std::string::npos, "an error names the file: " + text);
  for (const char letter : text) check(static_cast<unsigned char>(letter) >= 0x20, "errors have no control characters");
}

}  // namespace concord::fuzz
