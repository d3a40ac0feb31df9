// Memory and copies.
#include <cstring>

#include "backends/ascend/sim/runtime/acl/acl.h"
#include "backends/ascend/sim/runtime/capture.h"
#include "backends/ascend/sim/runtime/error.h"
#include "backends/ascend/sim/runtime/faults.h"
#include "backends/ascend/sim/runtime/machine.h"
#include "backends/ascend/sim/runtime/memory/memory.h"
#include "backends/ascend/sim/runtime/work_observer.h"

using namespace concord::ascend::abi;
using namespace concord::ascend::sim;

namespace {

void allocate(void** address, size_t bytes, uint32_t policy) {
  require_not_null(address, "devPtr");
  *address = nullptr;
  if (bytes == 0) invalid("an allocation of 0 bytes");
  constexpr uint32_t kLastPolicy = 7;  // huge pages of 1 GiB, of a peer
  if (policy > kLastPolicy) fail(kRtInvalidMallocType, text("malloc policy %u is unknown", policy));
  *address = memory().of_device(Machine::instance().current()->device).allocate(bytes);
}

void check_count(const void* address, size_t maximum, size_t count, const char* what) {
  require_not_null(address, what);
  if (count > maximum) fail(kRtParamInvalid, text("%zu bytes do not fit into the %zu of %s", count, maximum, what));
}

// Throws if the |bytes| at |address| are not all of one live allocation.
void check_device_bytes(const void* address, size_t bytes, const char* what) {
  const std::string wrong = memory().complaint(address, bytes);
  if (!wrong.empty()) fail(kRtParamInvalid, text("%s: %s", what, wrong.c_str()));
}

void count_work(const char* name, size_t read, size_t written) {
  concord_sim_count_work(name, static_cast<int64_t>(read), static_cast<int64_t>(written));
}

// One copy: which memory is where, and whether it is allowed.
class Copy {
 public:
  Copy(void* destination, size_t maximum, const void* source, size_t count, aclrtMemcpyKind kind)
      : destination_(destination), source_(source), count_(count) {
    check_count(destination, maximum, count, "dst");
    require_not_null(source, "src");
    to_ = memory().locate(destination);
    from_ = memory().locate(source);
    if (kind > kMemcpyDefault) fail(kRtParamInvalid, text("copy kind %u is unknown; there are 0 to 4", kind));
    if (kind == kMemcpyDefault) return;
    check_side("src", source, from_, kind == kMemcpyDeviceToHost || kind == kMemcpyDeviceToDevice, kind);
    check_side("dst", destination, to_, kind == kMemcpyHostToDevice || kind == kMemcpyDeviceToDevice, kind);
  }

  bool nothing() const { return count_ == 0 || destination_ == source_; }
  bool between_hosts() const { return to_.place != Place::kDevice && from_.place != Place::kDevice; }
  bool pageable() const { return to_.place == Place::kPageableHost || from_.place == Place::kPageableHost; }

  // Throws if memory is not allocated, or the two devices are not peers. Again on the stream: what was fine when the
  // copy was queued may have been freed.
  void check() const {
    if (to_.place == Place::kDevice) check_device_bytes(destination_, count_, "dst");
    if (from_.place == Place::kDevice) check_device_bytes(source_, count_, "src");
    if (to_.place != Place::kDevice || from_.place != Place::kDevice) return;
    if (Machine::instance().may_access(from_.device, to_.device)) return;
    fail(kRtParamInvalid,
         text("device %d cannot copy to device %d: call aclrtDeviceEnablePeerAccess first", from_.device, to_.device));
  }

  // |name|: the function that was called, for the report of work, which counts the device's memory only.
  void run(const char* name) const {
    const WorkScope scope(to_.place == Place::kDevice ? to_.device : from_.device, -1);
    std::memmove(memory().translate(destination_), memory().translate(source_), count_);
    count_work(name, from_.place == Place::kDevice ? count_ : 0, to_.place == Place::kDevice ? count_ : 0);
  }

 private:
  static void check_side(const char* name, const void* address, const Location& at, bool should_be_device,
                         aclrtMemcpyKind kind) {
    if ((at.place == Place::kDevice) == should_be_device) return;
    fail(kRtParamInvalid,
         text("copy kind %u needs a %s address as %s, but %p is a %s's", kind, should_be_device ? "device" : "host",
              name, address, should_be_device ? "host" : "device"));
  }

  void* destination_;
  const void* source_;
  size_t count_;
  Location to_;
  Location from_;
};

// An invalid argument that is detected on the stream is a memory error of the device: the call has returned.
template <class Check>
void check_on_stream(Check&& check) {
  try {
    check();
  } catch (const Error& error) {
    fail(kRtDeviceMemError, text("when the stream reached it, %s", error.what()));
  }
}

}  // namespace

// --------------------------------------------------------------------------------------------------------- allocations

aclError aclrtMalloc(void** address, size_t bytes, aclrtMemMallocPolicy policy) {
  return guarded(__func__, [&] { allocate(address, bytes, policy); });
}

int32_t aclrtMallocAlign32(void** address, size_t bytes, uint32_t policy) {
  return guarded(__func__, [&] { allocate(address, bytes, policy); });
}

aclError aclrtFree(void* address) {
  return guarded(__func__, [&] {
    require_not_null(address, "devPtr");
    memory().release(address);
  });
}

aclError aclrtMallocHost(void** address, size_t bytes) {
  return guarded(__func__, [&] {
    require_not_null(address, "hostPtr");
    *address = nullptr;
    if (bytes == 0) invalid("an allocation of 0 bytes");
    Machine::instance().current();
    *address = memory().allocate_pinned(bytes);
  });
}

aclError aclrtFreeHost(void* address) {
  return guarded(__func__, [&] {
    require_not_null(address, "hostPtr");
    memory().release_pinned(address);
  });
}

int32_t aclrtHostRegister(void* address, uint64_t bytes, uint32_t type, void** device_address) {
  return guarded(__func__, [&] {
    require_not_null(address, "ptr");
    require_not_null(device_address, "devPtr");
    if (type != 0) fail(kRtFeatureNotSupport, text("register type %u; only 0 (mapped) is simulated", type));
    memory().register_pinned(address, bytes);
    *device_address = address;
  });
}

int32_t aclrtHostRegisterV2(void* address, uint64_t bytes, uint32_t /*flag*/) {
  return guarded(__func__, [&] {
    require_not_null(address, "ptr");
    memory().register_pinned(address, bytes);
  });
}

int32_t aclrtHostUnregister(void* address) {
  return guarded(__func__, [&] {
    require_not_null(address, "ptr");
    memory().unregister_pinned(address);
  });
}

aclError aclrtGetMemInfo(aclrtMemAttr /*attribute: one kind of memory*/, size_t* free, size_t* total) {
  return guarded(__func__, [&] {
    require_not_null(free, "free");
    require_not_null(total, "total");
    const DeviceMemory& device = memory().of_device(Machine::instance().current()->device);
    *total = device.total_bytes();
    *free = device.total_bytes() - device.used_bytes();
  });
}

aclError aclrtPointerGetAttributes(const void* address, aclrtPtrAttributes* attributes) {
  return guarded(__func__, [&] {
    require_not_null(address, "ptr");
    require_not_null(attributes, "attributes");
    Machine::instance().current();
    const Location location = memory().locate(address);
    std::memset(attributes, 0, sizeof *attributes);
    attributes->pageSize = 4096;
    attributes->location.type = location.place == Place::kDevice       ? kLocationDevice
                                : location.place == Place::kPinnedHost ? kLocationHost
                                                                       : kLocationUnregistered;
    if (location.place == Place::kDevice) attributes->location.id = static_cast<uint32_t>(location.device);
  });
}

// -------------------------------------------------------------------------------------------------------------- copies

aclError aclrtMemcpy(void* destination, size_t maximum, const void* source, size_t count, aclrtMemcpyKind kind) {
  return guarded(__func__, [&] {
    Machine::instance().current();
    const Copy copy(destination, maximum, source, count, kind);
    if (copy.nothing()) return;
    Capture::require_allowed("a synchronous copy");
    copy.check();
    copy.run("aclrtMemcpy");
  });
}

// With pageable host memory it waits for the stream and copies then, as the vendor's does.
aclError aclrtMemcpyAsync(void* destination, size_t maximum, const void* source, size_t count, aclrtMemcpyKind kind,
                          aclrtStream stream) {
  return guarded_queueing(__func__, [&](const WorkFault& fault) {
    const std::shared_ptr<Stream> on = Machine::instance().stream(stream);
    const Copy copy(destination, maximum, source, count, kind);
    if (copy.between_hosts()) fail(kRtFeatureNotSupport, "an asynchronous copy from host to host");
    if (copy.nothing()) return;
    copy.check();
    if (copy.pageable()) {
      on->require_not_captured("a copy with pageable host memory");
      on->queue()->synchronize(on->queue()->pushed(), -1, kRtStreamSyncTimeout);
      Faults::sleep(fault.delay);
      if (fault.code != 0) fail(fault.code, "injected failure");
      return copy.run("aclrtMemcpyAsync");
    }
    on->submit({"aclrtMemcpyAsync",
                [copy] {
                  check_on_stream([&] { copy.check(); });
                  copy.run("aclrtMemcpyAsync");
                },
                nullptr, fault});
  });
}

aclError aclrtMemset(void* address, size_t maximum, int32_t value, size_t count) {
  return guarded(__func__, [&] {
    Machine::instance().current();
    check_count(address, maximum, count, "devPtr");
    if (count == 0) return;
    Capture::require_allowed("a synchronous fill");
    if (memory().locate(address).place == Place::kDevice) check_device_bytes(address, count, "devPtr");
    std::memset(memory().translate(address), value, count);
  });
}

aclError aclrtMemsetAsync(void* address, size_t maximum, int32_t value, size_t count, aclrtStream stream) {
  return guarded_queueing(__func__, [&](const WorkFault& fault) {
    const std::shared_ptr<Stream> on = Machine::instance().stream(stream);
    check_count(address, maximum, count, "devPtr");
    if (count == 0) return;
    check_device_bytes(address, count, "devPtr");
    on->submit({"aclrtMemsetAsync",
                [=] {
                  check_on_stream([&] { check_device_bytes(address, count, "devPtr"); });
                  std::memset(memory().translate(address), value, count);
                  count_work("aclrtMemsetAsync", 0, count);
                },
                nullptr, fault});
  });
}
