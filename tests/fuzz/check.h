// What a fuzz target says when something that has to hold does not.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <string>

namespace concord::fuzz {

// Not an assert: it holds in a release build too.
inline void check(bool holds, const std::string& what) {
  if (holds) return;
  std::fprintf(stderr, "fuzz: does not hold: %s\n", what.c_str());
  std::abort();
}

// An error is a sentence for a person, whatever the file had in it.
inline void check_error(const std::string& text, const std::string& file) {
  check(text.size() < 4000, "errors are short");
  check(text.find(file) != std::string::npos, "an error names the file: " + text);
  for (const char letter : text) check(static_cast<unsigned char>(letter) >= 0x20, "errors have no control characters");
}

}  // namespace concord::fuzz
