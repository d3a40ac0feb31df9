#include "backends/ascend/memory.h"

#include <cstring>
#include <functional>
#include <memory>
#include <mutex>

#include "backends/ascend/status.h"
#include "platform/sdk/checks.hpp"

namespace concord::ascend {
namespace {

abi::aclrtMemcpyKind direction(concord_copy_kind kind) {
  switch (kind) {
    case CONCORD_COPY_HOST_TO_HOST: return abi::kMemcpyHostToHost;
    case CONCORD_COPY_HOST_TO_DEVICE: return abi::kMemcpyHostToDevice;
    case CONCORD_COPY_DEVICE_TO_HOST: return abi::kMemcpyDeviceToHost;
    default: return abi::kMemcpyDeviceToDevice;
  }
}

struct HostCopy {
  void* destination;
  const void* source;
  size_t bytes;
};

void enqueue_host_copy(const Acl& acl, const HostCopy& what, concord_stream stream) {
  if (acl.aclrtLaunchHostFunc == nullptr) {
    sdk::fail(CONCORD_STATUS_UNIMPLEMENTED,
              "a queued copy between host buffers needs aclrtLaunchHostFunc (CANN 8.5); ACL itself rejects it");
  }
  auto work = std::make_unique<HostCopy>(what);
  const auto run = [](void* user) {
    const std::unique_ptr<HostCopy> copy(static_cast<HostCopy*>(user));
    std::memcpy(copy->destination, copy->source, copy->bytes);
  };
  check_acl(acl, acl.aclrtLaunchHostFunc(vendor(stream), run, work.get()), "aclrtLaunchHostFunc");
  work.release();  // the host function owns it now
}

}  // namespace

// --------------------------------------------------------------------------------------------------------- allocations

void Memory::add(void* pointer, Block block) {
  const std::unique_lock lock(mutex_);
  blocks_.insert_or_assign(pointer, block);
}

void Memory::remove(void* pointer, int32_t device) {
  const std::unique_lock lock(mutex_);
  const auto found = blocks_.find(pointer);
  if (found == blocks_.end() || found->second.device != device) {
    sdk::invalid(device == kHost
                     ? sdk::text("%p is not pinned host memory of allocate_host, or was already released", pointer)
                     : sdk::text("%p is not memory of device %d, or was already released", pointer, device));
  }
  blocks_.erase(found);
}

std::optional<Memory::Block> Memory::find(const void* pointer) const {
  const std::shared_lock lock(mutex_);
  auto next = blocks_.upper_bound(pointer);
  if (next == blocks_.begin()) return std::nullopt;
  const auto& [start, block] = *--next;
  const auto offset = reinterpret_cast<uintptr_t>(pointer) - reinterpret_cast<uintptr_t>(start);
  return offset < static_cast<uintptr_t>(block.bytes) ? std::optional<Block>(block) : std::nullopt;
}

void Memory::fail_allocation(abi::aclError error, int32_t device, int64_t bytes) {
  const std::string message = describe(devices_.acl(), error, "aclrtMalloc");
  size_t free = 0;
  size_t total = 0;
  devices_.acl().aclrtGetMemInfo(abi::kHbmMem, &free, &total);
  // For sizes that no device has, releases differ in whether that is out of memory or an invalid argument.
  const bool too_much = total > 0 && static_cast<uint64_t>(bytes) > total;
  sdk::fail(too_much ? CONCORD_STATUS_OUT_OF_MEMORY : status_of(error),
            sdk::text("%s; requested %lld bytes on device %d, which has %zu free of %zu", message.c_str(),
                      static_cast<long long>(bytes), device, free, total));
}

void* Memory::allocate(int32_t device, int64_t bytes) {
  devices_.check(device);
  sdk::check_bytes(bytes);
  if (bytes == 0) return nullptr;
  const DeviceGuard here(devices_, device);
  void* pointer = nullptr;
  const abi::aclError error = devices_.acl().aclrtMalloc(&pointer, static_cast<size_t>(bytes), abi::kMallocHugeFirst);
  if (error != abi::kAclSuccess) fail_allocation(error, device, bytes);
  add(pointer, {bytes, device});
  return pointer;
}

void Memory::release(int32_t device, void* pointer) {
  devices_.check(device);
  if (pointer == nullptr) return;
  remove(pointer, device);
  const DeviceGuard here(devices_, device);
  check_acl(devices_.acl(), devices_.acl().aclrtFree(pointer), "aclrtFree");
}

void* Memory::allocate_host(int64_t bytes) {
  sdk::check_bytes(bytes);
  if (bytes == 0) return nullptr;
  devices_.ensure_current();
  void* pointer = nullptr;
  const abi::aclError error = devices_.acl().aclrtMallocHost(&pointer, static_cast<size_t>(bytes));
  if (error != abi::kAclSuccess) {
    fail_acl(devices_.acl(), error, "aclrtMallocHost",
             sdk::text("requested %lld bytes of pinned host memory", static_cast<long long>(bytes)));
  }
  add(pointer, {bytes, kHost});
  return pointer;
}

void Memory::release_host(void* pointer) {
  if (pointer == nullptr) return;
  remove(pointer, kHost);
  devices_.ensure_current();
  check_acl(devices_.acl(), devices_.acl().aclrtFreeHost(pointer), "aclrtFreeHost");
}

// ------------------------------------------------------------------------------------------------------ copies, fills

int32_t Memory::device_of(const void* destination, const void* source) {
  for (const void* pointer : {destination, source}) {
    const auto block = find(pointer);
    if (block && block->device != kHost) return block->device;
  }
  return devices_.ensure_current();
}

void Memory::copy(void* destination, const void* source, int64_t bytes, concord_copy_kind kind) {
  sdk::check_copy(destination, source, bytes, kind);
  if (bytes == 0) return;
  const auto size = static_cast<size_t>(bytes);
  if (kind == CONCORD_COPY_HOST_TO_HOST) {
    std::memcpy(destination, source, size);
    return;
  }
  const DeviceGuard here(devices_, device_of(destination, source));
  const Acl& acl = devices_.acl();
  check_acl(acl, acl.aclrtMemcpy(destination, size, source, size, direction(kind)), "aclrtMemcpy");
}

void Memory::copy_on_stream(void* destination, const void* source, int64_t bytes, concord_copy_kind kind,
                            concord_stream stream) {
  sdk::check_copy(destination, source, bytes, kind);
  const DeviceGuard here(devices_, devices_.device_of(stream));
  if (bytes == 0) return;
  const auto size = static_cast<size_t>(bytes);
  const Acl& acl = devices_.acl();
  if (kind == CONCORD_COPY_HOST_TO_HOST) return enqueue_host_copy(acl, {destination, source, size}, stream);
  check_acl(acl, acl.aclrtMemcpyAsync(destination, size, source, size, direction(kind), vendor(stream)),
            "aclrtMemcpyAsync");
}

void Memory::copy_peer_on_stream(void* destination, int32_t destination_device, const void* source,
                                 int32_t source_device, int64_t bytes, concord_stream stream) {
  sdk::check_copy(destination, source, bytes, CONCORD_COPY_DEVICE_TO_DEVICE);
  devices_.check(destination_device);
  devices_.check(source_device);
  const int32_t mine = devices_.device_of(stream);
  if (mine != destination_device && mine != source_device) {
    sdk::invalid(
        sdk::text("a copy from device %d to %d on a stream of device %d; the stream must belong to one of the two",
                  source_device, destination_device, mine));
  }
  if (bytes == 0) return;
  devices_.enable_peer_access(mine, mine == source_device ? destination_device : source_device);
  const DeviceGuard here(devices_, mine);
  const auto size = static_cast<size_t>(bytes);
  const Acl& acl = devices_.acl();
  check_acl(acl, acl.aclrtMemcpyAsync(destination, size, source, size, abi::kMemcpyDeviceToDevice, vendor(stream)),
            "aclrtMemcpyAsync (between devices)");
}

void Memory::fill_on_stream(void* destination, int32_t value, int64_t bytes, concord_stream stream) {
  sdk::check_fill(destination, bytes);
  const DeviceGuard here(devices_, devices_.device_of(stream));
  if (bytes == 0) return;
  const auto size = static_cast<size_t>(bytes);
  const Acl& acl = devices_.acl();
  check_acl(acl, acl.aclrtMemsetAsync(destination, size, value & 0xff, size, vendor(stream)), "aclrtMemsetAsync");
}

// ------------------------------------------------------------------------------------------------------- what there is

void Memory::info(int32_t device, int64_t* out_free, int64_t* out_total) {
  devices_.check(device);
  sdk::check_not_null(out_free, "out_free");
  sdk::check_not_null(out_total, "out_total");
  const DeviceGuard here(devices_, device);
  size_t free = 0;
  size_t total = 0;
  check_acl(devices_.acl(), devices_.acl().aclrtGetMemInfo(abi::kHbmMem, &free, &total), "aclrtGetMemInfo");
  *out_free = static_cast<int64_t>(free);
  *out_total = static_cast<int64_t>(total);
}

void Memory::describe_pointer(const void* pointer, concord_pointer_info* out_info) {
  concord_pointer_info info{};
  info.device = -1;
  const Acl& acl = devices_.acl();
  if (const auto block = find(pointer)) {
    info.kind = block->device == kHost ? CONCORD_MEMORY_PINNED_HOST : CONCORD_MEMORY_DEVICE;
    info.device = block->device;
  } else if (acl.aclrtPointerGetAttributes != nullptr && pointer != nullptr) {
    devices_.ensure_current();
    abi::aclrtPtrAttributes attributes{};
    check_acl(acl, acl.aclrtPointerGetAttributes(pointer, &attributes), "aclrtPointerGetAttributes");
    if (attributes.location.type == abi::kLocationHost) info.kind = CONCORD_MEMORY_PINNED_HOST;
    if (attributes.location.type == abi::kLocationDevice) {
      info.kind = CONCORD_MEMORY_DEVICE;
      info.device = static_cast<int32_t>(attributes.location.id);
    }
  }
  sdk::write_sized(info, out_info);
}

}  // namespace concord::ascend
