// Columns of the tables of settings (table_*.cpp): where a value is stored, and its range.
#pragma once

#include <span>
#include <type_traits>
#include <utility>

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

// field<&T::optimizer, &OptimizerOptions::adam_beta1> refers to arguments.optimizer.adam_beta1.
template <auto... path>
using FieldValue = std::remove_reference_t<decltype(follow<path...>(std::declval<TrainingArguments&>()))>;
template <auto... path>
inline constexpr ArgumentField<FieldValue<path...>> field = {
    [](TrainingArguments& arguments) -> FieldValue<path...>& { return follow<path...>(arguments); },
    [](const TrainingArguments& arguments) -> const FieldValue<path...>& { return follow<path...>(arguments); }};

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
