// The device table.
#include <cstring>

#include "platform/conformance/refusals.h"
#include "platform/conformance/registry.h"
#include "platform/conformance/resources.h"

namespace concord::conformance {
namespace {

int32_t current_device(Context& t) {
  int32_t device = -1;
  CHECK_OK(t.device_table().get_current(t.device_table().self, &device));
  return device;
}

void set_device(Context& t, int32_t device) { CHECK_OK(t.device_table().set_current(t.device_table().self, device)); }

void there_is_a_device(Context& t) {
  int32_t count = -1;
  CHECK_OK(t.device_table().count(t.device_table().self, &count));
  CHECK(count >= 1, "there are %d devices", count);
}

void info_describes_devices(Context& t) {
  for (int32_t device = 0; device < t.device_count(); ++device) {
    concord_device_info info;
    std::memset(&info, 0x7f, sizeof info);
    info.struct_size = sizeof info;
    CHECK_OK(t.device_table().info(t.device_table().self, device, &info));
    CHECK(std::memchr(info.name, 0, sizeof info.name) != nullptr && info.name[0] != '\0', "device %d has no name",
          device);
    CHECK(std::memchr(info.architecture, 0, sizeof info.architecture) != nullptr,
          "the architecture is not null-terminated");
    CHECK(std::memchr(info.pci_bus_id, 0, sizeof info.pci_bus_id) != nullptr, "the PCI id is not null-terminated");
    CHECK(info.total_memory > 0 && info.multiprocessors >= 0, "device %d has %lld bytes and %d cores", device,
          static_cast<long long>(info.total_memory), info.multiprocessors);
  }
}

void info_writes_what_fits(Context& t) {
  constexpr uint32_t kSmall = offsetof(concord_device_info, name) + 8;  // an older caller's struct
  union {
    concord_device_info info;
    unsigned char bytes[sizeof(concord_device_info)];
  } small;
  std::memset(small.bytes, 0x7f, sizeof small.bytes);
  small.info.struct_size = kSmall;
  CHECK_OK(t.device_table().info(t.device_table().self, t.device(), &small.info));
  for (size_t i = kSmall; i < sizeof small.bytes; ++i) {
    CHECK(small.bytes[i] == 0x7f, "device.info wrote byte %zu of a struct of %u bytes", i, kSmall);
  }
  CHECK(small.info.total_memory > 0 && small.info.total_memory != 0x7f7f7f7f7f7f7f7f,
        "device.info did not write a field that fits");
}

// A number in TFLOP/s, or with the sparse or sped-up figure for f32, would make every MFU silently wrong.
void peaks_are_in_flops(Context& t) {
  for (int32_t device = 0; device < t.device_count(); ++device) {
    concord_device_info info{};
    info.struct_size = sizeof info;
    CHECK_OK(t.device_table().info(t.device_table().self, device, &info));
    for (const double peak : {info.peak_flops_f32, info.peak_flops_bf16, info.peak_flops_f16}) {
      CHECK(peak == 0 || (peak >= 1e9 && peak <= 1e18), "device %d reports a peak of %g FLOP/s; 0 means not known",
            device, peak);
    }
    CHECK(info.peak_flops_f16 == 0 || info.peak_flops_f32 <= info.peak_flops_f16,
          "device %d is faster in f32 (%g FLOP/s) than in f16 (%g)", device, info.peak_flops_f32, info.peak_flops_f16);
  }
}

void current_device_is_remembered(Context& t) {
  const int32_t before = current_device(t);
  for (int32_t device = 0; device < t.device_count(); ++device) {
    set_device(t, device);
    CHECK(current_device(t) == device, "device %d was set, but %d is current", device, current_device(t));
  }
  set_device(t, before);
}

void current_device_belongs_to_thread(Context& t) {
  if (t.device_count() < 2) t.skip_here(text("needs two devices, found %d", t.device_count()));
  const int32_t before = current_device(t);
  set_device(t, 1);
  std::exception_ptr thrown;
  try {
    run_threads(1, [&](int) {
      CHECK(current_device(t) == 0, "a new thread starts on device %d", current_device(t));
      set_device(t, 0);
    });
    CHECK(current_device(t) == 1, "another thread changed this thread's device to %d", current_device(t));
  } catch (...) {
    thrown = std::current_exception();
  }
  set_device(t, before);
  if (thrown != nullptr) std::rethrow_exception(thrown);
}

void synchronize_waits_for_all_streams(Context& t) {
  constexpr int64_t kBytes = 1 << 16;
  Stream first(t);
  Stream second(t);
  DeviceMemory memory(t, kBytes);
  HostMemory host(t, kBytes);
  fill(t, memory.get(), 1, kBytes, second.get());
  copy_async(t, host.get(), memory.get(), kBytes, CONCORD_COPY_DEVICE_TO_HOST, second.get());
  synchronize(t, second.get());
  Gate gate(t, second.get());
  fill(t, memory.get(), 42, kBytes, second.get());
  copy_async(t, host.get(), memory.get(), kBytes, CONCORD_COPY_DEVICE_TO_HOST, second.get());
  fill(t, memory.get(), 42, 0, first.get());
  gate.open_later(30);
  CHECK_OK(t.device_table().synchronize(t.device_table().self, t.device()));
  CHECK(host.get()[0] == 42 && host.get()[kBytes - 1] == 42,
        "device.synchronize returned before the work of a stream was done: byte 0 is %d", host.get()[0]);
  CHECK(is_done(t, second.get()), "device.synchronize returned, but a stream reports unfinished work");
}

void peer_access_answers(Context& t) {
  const concord_device_table& d = t.device_table();
  int32_t can = -1;
  const concord_status status = d.can_access_peer(d.self, 0, t.device_count() - 1, &can);
  if (status == CONCORD_STATUS_UNIMPLEMENTED) t.skip_unsupported("the plugin has no device.can_access_peer");
  if (t.device_count() < 2) t.skip_here(text("needs two devices, found %d", t.device_count()));
  t.require_ok(status, "device.can_access_peer");
  CHECK(can == 0 || can == 1, "device.can_access_peer returned %d", can);
  if (can == 0) return;
  CHECK_OK(d.enable_peer_access(d.self, 0, t.device_count() - 1));
  CHECK_OK(d.enable_peer_access(d.self, 0, t.device_count() - 1));
}

}  // namespace

void add_device_tests(Registry& registry) {
  registry.add({"device", "ThereIsAtLeastOneDevice", there_is_a_device});
  registry.add({"device", "InfoDescribesEveryDevice", info_describes_devices});
  registry.add({"device", "InfoWritesOnlyWhatFitsTheCallersStruct", info_writes_what_fits});
  registry.add({"device", "PeaksAreInFlopsPerSecondOrNotKnown", peaks_are_in_flops});
  registry.add({"device", "TheCurrentDeviceIsRemembered", current_device_is_remembered});
  registry.add({"device", "TheCurrentDeviceBelongsToItsThread", current_device_belongs_to_thread});
  registry.add({"device", "SynchronizeWaitsForAllStreams", synchronize_waits_for_all_streams});
  registry.add({"device", "PeerAccessCanBeEnabledTwice", peer_access_answers});
  registry.add({"device", "WrongArgumentsAreRefused", [](Context& t) { require_refused(t, device_refusals(t)); }});
}

}  // namespace concord::conformance
