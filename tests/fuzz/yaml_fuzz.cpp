// Any bytes as a configuration: either rejected with a ConfigError, or arguments that survive a round trip.
#include <cstdint>
#include <string_view>

#include "core/base/config_error.h"
#include "core/base/quoted.h"
#include "tests/fuzz/check.h"
#include "trainer/arguments/arguments.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace concord;
  TrainingArguments arguments;
  try {
    read_yaml({reinterpret_cast<const char*>(data), size}, "fuzz.yaml", &arguments);
  } catch (const ConfigError& error) {
    const std::string text = error.what();
    fuzz::check(text.find("fuzz.yaml") != std::string::npos, "an error names the file: " + text);
    fuzz::check(printable(text) == text, "errors are short and printable: " + text);
    return 0;
  }
  TrainingArguments again;
  read_yaml(to_yaml(arguments), "again.yaml", &again);
  fuzz::check(again == arguments, "printed and read again, they are the same");
  return 0;
}
