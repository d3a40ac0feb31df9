// Columns of the tables of settings (table_*.cpp): where a value is stored, and its range.
#pragma once

#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "core/base/enum_names.h"
#include "trainer/arguments/table.h"

namespace concord {

template <auto member, auto... rest, class Object>
constexpr auto& follow(Object& object) {
  if constexpr (sizeof...(rest) == 0) {
    return object.*member;
  } else {
    return follow<rest...>(object.*member);
  }
}

template <auto... path>
using FieldValue = std::remove_reference_t<decltype(follow<path...>(std::declval<TrainingArguments&>()))>;
template <class List>
concept NamedEnumList = NamedEnum<typename List::value_type>;

template <auto... path>
constexpr auto make_field() {
  using T = TrainingArguments;
  using Value = FieldValue<path...>;
  if constexpr (NamedEnum<Value>) {
    return EnumField<std::string>{
        kEnumNames<Value>, [](const T& arguments) { return std::string(name_of(follow<path...>(arguments))); },
        [](T& arguments, const std::string& name) { follow<path...>(arguments) = *find_enum<Value>(name); }};
  } else if constexpr (NamedEnumList<Value>) {
    using Enum = typename Value::value_type;
    return EnumField<std::vector<std::string>>{kEnumNames<Enum>,
                                               [](const T& arguments) {
                                                 std::vector<std::string> names;
                                                 for (const Enum value : follow<path...>(arguments))
                                                   names.emplace_back(name_of(value));
                                                 return names;
                                               },
                                               [](T& arguments, const std::vector<std::string>& names) {
                                                 Value& values = follow<path...>(arguments);
                                                 values.clear();
                                                 for (const std::string& name : names)
                                                   values.push_back(*find_enum<Enum>(name));
                                               }};
  } else {
    return ArgumentField<Value>{[](T& arguments) -> Value& { return follow<path...>(arguments); },
                                [](const T& arguments) -> const Value& { return follow<path...>(arguments); }};
  }
}
// field<&T::optimizer, &OptimizerOptions::adam_beta1> refers to arguments.optimizer.adam_beta1.
template <auto... path>
inline constexpr auto field = make_field<path...>();

// Only |count| of the names of |of|, starting with name |first|.
constexpr EnumField<std::string> some_names(EnumField<std::string> of, size_t first,
                                            size_t count = std::dynamic_extent) {
  of.allowed = of.allowed.subspan(first, count);
  return of;
}

constexpr ArgumentRange at_least(double min) { return {.min = min}; }
constexpr ArgumentRange above(double min) { return {.min = min, .open_min = true}; }
constexpr ArgumentRange between(double min, double max) { return {.min = min, .max = max}; }
constexpr ArgumentRange below_one() { return {.min = 0, .max = 1, .open_max = true}; }
// Upper bounds that keep products of a few such values in range: counts of ranks or rows, numbers of steps or samples.
constexpr double kMaxCount = 1 << 20;
constexpr double kMaxSteps = 1e15;

// The groups of each source, in the order of --help.
std::span<const ArgumentGroup> model_groups();
std::span<const ArgumentGroup> data_groups();
std::span<const ArgumentGroup> optimizer_groups();
std::span<const ArgumentGroup> parallel_groups();
std::span<const ArgumentGroup> run_groups();

}  // namespace concord
