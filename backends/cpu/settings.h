// Settings of this backend. Read once, when the plugin is opened; a bad value is a failure of the open.
#pragma once

#include <cstdint>

namespace concord::cpu {

struct Settings {
  int32_t devices = 1;       // cpu.devices: number of devices, 1 to 64. They share cores and memory
  int64_t memory_limit = 0;  // cpu.memory_limit: bytes per device; 0: the memory of the machine
  // cpu.network: whether ranks of other hosts can join a communicator: auto (the default: if the job has several hosts,
  // by the launcher's variables), always or never. If they can, the process that creates an id listens on a TCP port.
  bool several_hosts = false;
};

// From the host's configuration (CONCORD_CPU_DEVICES, ...). Throws INVALID_ARGUMENT.
Settings read_settings();

}  // namespace concord::cpu
