// The arguments of a call as text, for messages and traces: "device=7, priority=0". Only failing and traced calls pay.
#pragma once

#include <string>
#include <string_view>
#include <type_traits>

#include "platform/loader/slots.h"
#include "platform/loader/text.h"

namespace concord::loader {

// Integers that represent a name ("dtype") are written as the name, unknown ones as the number.
std::string integer_text(std::string_view name, int64_t value);
std::string config_text(const concord_comm_config* config);
std::string request_text(const concord_rng_request* request);

template <class Type>
std::string argument_text(std::string_view name, const Type& value) {
  if constexpr (std::is_integral_v<Type>) {
    return integer_text(name, static_cast<int64_t>(value));
  } else if constexpr (std::is_floating_point_v<Type>) {
    return cat(static_cast<double>(value));
  } else if constexpr (std::is_convertible_v<Type, const concord_comm_config*>) {
    return config_text(value);
  } else if constexpr (std::is_convertible_v<Type, const concord_rng_request*>) {
    return request_text(value);
  } else {
    std::string result;
    append_pointer(result, reinterpret_cast<const void*>(value));
    return result;
  }
}

// Calls use(name, value) for each argument of the slot.
template <auto Member, class Use, class... Arguments>
void for_each_argument(Use&& use, const Arguments&... arguments) {
  std::string_view names = Slot<Member>::kInfo.arguments;
  const auto next = [&names] {
    const size_t comma = names.find(',');
    const std::string_view name = names.substr(0, comma);
    names.remove_prefix(comma == std::string_view::npos ? names.size() : comma + 1);
    return name;
  };
  (use(next(), arguments), ...);
}

// The inputs of the call; pointers for results are omitted.
template <auto Member, class... Arguments>
std::string describe_arguments(const Arguments&... arguments) {
  std::string result;
  for_each_argument<Member>(
      [&]<class Type>(std::string_view name, const Type& value) {
        if (name.starts_with("out_")) return;
        if (!result.empty()) result += ", ";
        result += cat(name, "=", argument_text(name, value));
      },
      arguments...);
  return result;
}

}  // namespace concord::loader
