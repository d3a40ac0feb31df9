// Settings of the simulated machine, from the environment. docs/ascend-sim.md has the list.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

namespace concord::ascend::sim {

struct Settings {
  int32_t devices = 8;
  uint64_t memory_bytes = uint64_t{16} << 30;  // per device
  std::string soc = "Ascend910B2";
  std::string cann = "8.5.0";
  uint64_t poison_bytes = uint64_t{64} << 20;  // per allocation, at most
  std::chrono::microseconds jitter{0};         // before every task of a stream: random, up to this
  std::string faults;
  bool prints_errors = false;
  std::string report;        // where to write what the devices have done; "-" for a table on standard error
  bool reports_run = false;  // the table even without |report|: this process is a training run
  std::string device_file;   // figures for the report's times; empty: a 910B's
};

// Returns the settings, read at the first use. An invalid value ends the process with an error message, so that no test
// runs on a machine without the settings that it requires.
const Settings& settings();

// Parses "8G", "512M", "64K" or plain bytes; returns false for other texts.
bool parse_bytes(const std::string& text, uint64_t* out_bytes);
// Parses "10ms", "250us" or "2s"; returns false for other texts.
bool parse_duration(const std::string& text, std::chrono::microseconds* out_duration);

// Returns the devices in ASCEND_RT_VISIBLE_DEVICES, by their numbers on the machine; all devices if it is not set.
std::vector<int32_t> visible_devices();

}  // namespace concord::ascend::sim
