// One value of a file or command line: what it is as a flag, a number, a text, a list; and what the table allows for an
// argument. Threads: pure functions.
#pragma once

#include <optional>
#include <string>

#include "trainer/arguments/table.h"
#include "trainer/arguments/yaml.h"

namespace concord {

// Why a value is rejected; printed after the name of the setting. Thrown by the functions below.
struct Refusal {
  std::string why;
};

// "the string '8'", "a list": the value in an error.
std::string shown(const ArgumentValue& value);
bool is_null(const ArgumentValue& value);
bool read_flag(const ArgumentValue& value);
// Nothing unless all of |text| is a number.
std::optional<double> as_number(const std::string& text);

// Sets |argument|; null gives it the default.
void assign(const Argument& argument, const ArgumentValue& value, TrainingArguments* out);
// Returns if the table allows the value that |argument| has.
void check_value(const Argument& argument, const TrainingArguments& arguments);

}  // namespace concord
