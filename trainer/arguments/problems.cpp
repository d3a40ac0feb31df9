#include "trainer/arguments/problems.h"

#include <fmt/format.h>

#include <algorithm>

namespace concord {

void Problems::throw_if_any(std::string_view title) const {
  constexpr size_t kShown = 30;
  if (list_.empty()) return;
  if (list_.size() == 1) throw ConfigError(list_.front());
  std::string text = fmt::format("{} {}:", list_.size(), title);
  for (size_t i = 0; i < std::min(list_.size(), kShown); ++i) text += "\n  " + list_[i];
  if (list_.size() > kShown) text += fmt::format("\n  ... and {} more", list_.size() - kShown);
  throw ConfigError(text);
}

}  // namespace concord
