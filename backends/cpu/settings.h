// Settings of this backend. Read once, when the plugin is opened; a bad value is a failure of the open.
#pragma once

#include <cstdint>

namespace concord::cpu {

struct Settings {
  int32_t devices = 1;       // cpu.devices: how many devices to show, 1 to 64. All are the same cores and memory
  int64_t memory_limit = 0;  // cpu.memory_limit: bytes that one device may hand out; 0: what the machine has
  // cpu.network: whether ranks of other hosts can join a communicator: auto (the default), when the launcher's
  // variables say that the job has several hosts; always; or never. Where they can, the process that makes an id
  // listens on a TCP port.
  bool several_hosts = false;
};

// From the host's configuration (CONCORD_CPU_DEVICES, ...). Throws INVALID_ARGUMENT.
Settings read_settings();

}  // namespace concord::cpu
