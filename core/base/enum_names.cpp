#include "core/base/enum_names.h"

#include <fmt/format.h>

#include "core/base/quoted.h"

namespace concord {

std::string comma_separated(std::span<const std::string_view> names) {
  std::string text;
  for (const std::string_view name : names) {
    if (!text.empty()) text += ", ";
    text += name.empty() ? "\"\"" : name;
  }
  return text;
}

std::string not_one_of(std::span<const std::string_view> allowed, std::string_view name) {
  return fmt::format("is {}, but must be one of: {}", quoted(name), comma_separated(allowed));
}

}  // namespace concord
