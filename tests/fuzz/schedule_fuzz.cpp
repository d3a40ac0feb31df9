// Any bytes as a pipeline schedule: either rejected with a ConfigError, or a schedule that survives a round trip.
#include <cstdint>
#include <string_view>

#include "core/base/config_error.h"
#include "core/schedule/schedule_csv.h"
#include "tests/fuzz/check.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace concord;
  constexpr const char* kFile = "fuzz.csv";
  Schedule schedule;
  try {
    schedule = parse_schedule_csv({reinterpret_cast<const char*>(data), size}, kFile);
  } catch (const ConfigError& error) {
    fuzz::check_error(error.what(), kFile);
    return 0;
  }
  const std::string text = schedule_csv(schedule);
  fuzz::check(schedule_csv(parse_schedule_csv(text, kFile)) == text, "written and read again, it is the same");
  return 0;
}
