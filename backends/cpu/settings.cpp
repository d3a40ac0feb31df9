#include "backends/cpu/settings.h"

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string>

#include "backends/net/control.h"
#include "backends/net/id.h"
#include "platform/sdk/plugin.hpp"

namespace concord::cpu {
namespace {

constexpr int64_t kMaxDevices = 64;

int32_t parse_devices(const char* value) {
  char* end = nullptr;
  errno = 0;
  const long long number = std::strtoll(value, &end, 10);
  if (end == value || *end != '\0' || errno != 0 || number < 1 || number > kMaxDevices) {
    sdk::invalid(sdk::text("cpu.devices is \"%s\"; it must be an integer from 1 to %lld", value,
                           static_cast<long long>(kMaxDevices)));
  }
  return static_cast<int32_t>(number);
}

// An integer number of bytes, or of KiB, MiB, GiB, TiB followed by K, M, G, T.
int64_t parse_bytes(const char* value) {
  static constexpr char kUnits[] = "KMGT";
  char* end = nullptr;
  errno = 0;
  const long long number = std::strtoll(value, &end, 10);
  const bool is_number = end != value && errno == 0 && number > 0;
  const char* unit = is_number && *end != '\0' ? std::strchr(kUnits, *end) : nullptr;
  int64_t bytes = number;
  if (unit != nullptr && __builtin_mul_overflow(bytes, int64_t{1} << (10 * (unit - kUnits + 1)), &bytes))
    unit = nullptr;
  if (!is_number || (*end != '\0' && (unit == nullptr || end[1] != '\0'))) {
    sdk::invalid(
        sdk::text("cpu.memory_limit is \"%s\"; it must be a number of bytes > 0, such as 1000000, 512M or 8G "
                  "(K, M, G, T are powers of 1024)",
                  value));
  }
  return bytes;
}

bool parse_network(const std::string& value) {
  if (value == "auto") return net::job_spans_hosts();
  if (value == "always" || value == "never") return value == "always";
  sdk::invalid(sdk::text("cpu.network is \"%s\"; it must be auto, always or never", value.c_str()));
}

}  // namespace

Settings read_settings() {
  Settings settings;
  if (const char* value = sdk::config("cpu.devices")) settings.devices = parse_devices(value);
  if (const char* value = sdk::config("cpu.memory_limit")) settings.memory_limit = parse_bytes(value);
  const char* network = sdk::config("cpu.network");
  settings.several_hosts = parse_network(network != nullptr ? network : "auto");
  if (settings.several_hosts) net::own_network();  // fails now, not at the first communicator
  return settings;
}

}  // namespace concord::cpu
