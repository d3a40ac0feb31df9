// The number of members of an aggregate, for tests that list all of them.
#pragma once

#include <cstddef>
#include <utility>

namespace concord::tests {

// Converts to any type, to count the members of an aggregate: the most values that its braces take.
struct AnyValue {
  template <class Type>
  operator Type() const;  // NOLINT(google-explicit-constructor): never called
};

template <class Struct, size_t... index>
constexpr bool takes(std::index_sequence<index...>) {
  return requires { Struct{(static_cast<void>(index), AnyValue{})...}; };
}

template <class Struct, size_t count = 0>
constexpr size_t count_members() {
  if constexpr (takes<Struct>(std::make_index_sequence<count + 1>{})) {
    return count_members<Struct, count + 1>();
  } else {
    return count;
  }
}

}  // namespace concord::tests
