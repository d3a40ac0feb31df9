// The names of the values of an enumeration, for settings, files and messages. An enumeration lists them once, next to
// its definition:
//
//   template <>
//   inline constexpr std::string_view kEnumNames<DropPolicy>[] = {"probs", "position"}
//
// Threads: constants and pure functions.
#pragma once

#include <array>
#include <cstddef>
#include <iterator>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>

#include "core/base/config_error.h"

namespace concord {

// Names of the values 0, 1, 2, ...; specialized for every enumeration that has names.
template <class Enum>
inline constexpr std::array<std::string_view, 0> kEnumNames = {};

template <class Enum>
concept NamedEnum = std::is_enum_v<Enum> && std::size(kEnumNames<Enum>) > 0;

template <NamedEnum Enum>
constexpr std::string_view name_of(Enum value) {
  return kEnumNames<Enum>[static_cast<size_t>(value)];
}

template <NamedEnum Enum>
constexpr std::optional<Enum> find_enum(std::string_view name) {
  for (size_t i = 0; i < std::size(kEnumNames<Enum>); ++i) {
    if (kEnumNames<Enum>[i] == name) return static_cast<Enum>(i);
  }
  return std::nullopt;
}

// Returns |names| with commas between them, and "" for one that is empty.
std::string comma_separated(std::span<const std::string_view> names);
// Returns "is 'name', but must be one of: a, b".
std::string not_one_of(std::span<const std::string_view> allowed, std::string_view name);

// Returns the value called |name|. Throws ConfigError, with |what| and all names, if there is none.
template <NamedEnum Enum>
Enum parse_enum(std::string_view what, std::string_view name) {
  const std::optional<Enum> found = find_enum<Enum>(name);
  if (!found) throw ConfigError(std::string(what) + " " + not_one_of(kEnumNames<Enum>, name));
  return *found;
}

}  // namespace concord
