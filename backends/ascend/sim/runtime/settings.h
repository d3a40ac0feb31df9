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
};

// Reads the settings at the first use. A value that cannot be read ends the process with an error message, because a
// test on a machine that it did not ask for proves nothing.
const Settings& settings();

// "8G", "512M", "64K" or plain bytes; false if |text| is none of them.
bool parse_bytes(const std::string& text, uint64_t* out_bytes);
// "10ms", "250us" or "2s"; false if |text| is none of them.
bool parse_duration(const std::string& text, std::chrono::microseconds* out_duration);

// The devices that ASCEND_RT_VISIBLE_DEVICES leaves, by their numbers on the machine; all without it.
std::vector<int32_t> visible_devices();

}  // namespace concord::ascend::sim
