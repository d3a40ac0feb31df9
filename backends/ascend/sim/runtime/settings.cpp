#include "backends/ascend/sim/runtime/settings.h"

#include <cstdio>
#include <cstdlib>
#include <sstream>

namespace concord::ascend::sim {
namespace {

[[noreturn]] void refuse(const char* name, const char* value, const char* allowed) {
  std::fprintf(stderr, "[sim-npu] %s is '%s'; it must be %s\n", name, value, allowed);
  std::exit(2);
}

// An integer and the rest after it.
bool split_number(const std::string& text, uint64_t* out_number, std::string* out_rest) {
  size_t digits = 0;
  while (digits < text.size() && text[digits] >= '0' && text[digits] <= '9') ++digits;
  if (digits == 0 || digits > 18) return false;
  *out_number = std::strtoull(text.substr(0, digits).c_str(), nullptr, 10);
  *out_rest = text.substr(digits);
  return true;
}

void read_bytes(const char* name, uint64_t least, uint64_t* out_value) {
  const char* given = std::getenv(name);
  if (given == nullptr) return;
  if (!parse_bytes(given, out_value) || *out_value < least) refuse(name, given, "a size such as 512M or 8G");
}

void read_text(const char* name, std::string* out_value) {
  if (const char* given = std::getenv(name)) *out_value = given;
}

Settings read() {
  Settings result;
  if (const char* given = std::getenv("CONCORD_SIM_NPU_DEVICES")) {
    uint64_t number = 0;
    std::string rest;
    if (!split_number(given, &number, &rest) || !rest.empty() || number > 64) {
      refuse("CONCORD_SIM_NPU_DEVICES", given, "a number from 0 to 64");
    }
    result.devices = static_cast<int32_t>(number);
  }
  read_bytes("CONCORD_SIM_NPU_MEMORY", uint64_t{1} << 20, &result.memory_bytes);
  read_bytes("CONCORD_SIM_NPU_POISON", 0, &result.poison_bytes);
  read_text("CONCORD_SIM_NPU_SOC", &result.soc);
  read_text("CONCORD_SIM_NPU_CANN", &result.cann);
  read_text("CONCORD_SIM_NPU_FAULT", &result.faults);
  read_text("CONCORD_SIM_NPU_REPORT", &result.report);
  read_text("CONCORD_SIM_NPU_DEVICE_FILE", &result.device_file);
  std::string of_run;
  read_text("CONCORD_REPORT_WORK", &of_run);
  result.reports_run = of_run == "1";
  if (const char* given = std::getenv("CONCORD_SIM_NPU_LOG")) {
    if (std::string(given) != "errors") refuse("CONCORD_SIM_NPU_LOG", given, "errors");
    result.prints_errors = true;
  }
  if (const char* given = std::getenv("CONCORD_SIM_NPU_JITTER")) {
    if (!parse_duration(given, &result.jitter)) refuse("CONCORD_SIM_NPU_JITTER", given, "a time such as 200us or 5ms");
  }
  return result;
}

}  // namespace

bool parse_bytes(const std::string& text, uint64_t* out_bytes) {
  uint64_t number = 0;
  std::string rest;
  if (!split_number(text, &number, &rest)) return false;
  const uint64_t unit = rest.empty() || rest == "B" ? 1
                        : rest == "K"               ? uint64_t{1} << 10
                        : rest == "M"               ? uint64_t{1} << 20
                        : rest == "G"               ? uint64_t{1} << 30
                                                    : 0;
  if (unit == 0 || number > (uint64_t{1} << 50) / unit) return false;
  *out_bytes = number * unit;
  return true;
}

bool parse_duration(const std::string& text, std::chrono::microseconds* out_duration) {
  uint64_t number = 0;
  std::string unit;
  if (!split_number(text, &number, &unit)) return false;
  const uint64_t scale = unit == "us" ? 1 : unit == "ms" ? 1000 : unit == "s" ? 1000000 : 0;
  if (scale == 0 || number > 1000000000) return false;
  *out_duration = std::chrono::microseconds(number * scale);
  return true;
}

const Settings& settings() {
  static const Settings& instance = *new Settings(read());  // never destroyed: used until the process ends
  return instance;
}

// As the vendor reads it: numbers with commas between them, up to the first that is not a device.
std::vector<int32_t> visible_devices() {
  std::vector<int32_t> visible;
  const char* given = std::getenv("ASCEND_RT_VISIBLE_DEVICES");
  if (given == nullptr || *given == '\0') {
    for (int32_t device = 0; device < settings().devices; ++device) visible.push_back(device);
    return visible;
  }
  std::stringstream stream(given);
  for (std::string item; std::getline(stream, item, ',');) {
    uint64_t number = 0;
    std::string rest;
    if (!split_number(item, &number, &rest) || !rest.empty()) break;
    if (number >= static_cast<uint64_t>(settings().devices)) break;
    visible.push_back(static_cast<int32_t>(number));
  }
  return visible;
}

}  // namespace concord::ascend::sim
