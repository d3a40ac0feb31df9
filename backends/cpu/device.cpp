#include "backends/cpu/device.h"

#include "backends/cpu/machine.h"
#include "backends/cpu/stream.h"
#include "platform/sdk/checks.hpp"

namespace concord::cpu {
namespace {

thread_local int32_t current_device = 0;

}  // namespace

Devices::Devices(int32_t count, int64_t total_memory, Streams& streams)
    : count_(count), total_memory_(total_memory), streams_(streams) {}

int32_t Devices::count() { return count_; }

void Devices::check(int32_t device) const { sdk::check_device(device, count_); }

void Devices::info(int32_t device, concord_device_info* out_info) {
  check(device);
  concord_device_info info{};
  info.multiprocessors = core_count();
  info.total_memory = total_memory_;
  sdk::write_string(info.name, processor_name());
  sdk::write_string(info.architecture, architecture());
  sdk::write_sized(info, out_info);
}

void Devices::set_current(int32_t device) {
  check(device);
  current_device = device;
}

int32_t Devices::get_current() { return current_device; }

void Devices::synchronize(int32_t device) {
  check(device);
  streams_.synchronize_device(device);
}

int32_t Devices::can_access_peer(int32_t device, int32_t peer) {
  check(device);
  check(peer);
  return 1;
}

void Devices::enable_peer_access(int32_t device, int32_t peer) {
  check(device);
  check(peer);
}

}  // namespace concord::cpu
