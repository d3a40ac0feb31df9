#include "core/base/bytes_text.h"

#include <algorithm>
#include <array>
#include <cstdio>

namespace concord {

std::string bytes_text(int64_t bytes) {
  constexpr std::array kUnits = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  constexpr double kStep = 1024, kFourDigits = 1023.5;  // larger values would be printed as 1024
  auto size = static_cast<double>(std::max<int64_t>(bytes, 0));
  size_t unit = 0;
  for (; size >= kFourDigits; ++unit) size /= kStep;
  char text[32];
  std::snprintf(text, sizeof text, "%.*f %s",
                unit == 0 || size >= 99.95 ? 0
                : size >= 9.995            ? 1
                                           : 2,
                size, kUnits.at(unit));
  return text;
}

}  // namespace concord
