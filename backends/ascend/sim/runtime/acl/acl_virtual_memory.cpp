// Reserved addresses with memory mapped into them, and memory shared between processes.
//
// The key of shared memory holds its process and address: a process that opens it maps the exporter's memory
// file, which the kernel allows to processes of the same user.
#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <string>

#include "backends/ascend/sim/runtime/acl/acl.h"
#include "backends/ascend/sim/runtime/error.h"
#include "backends/ascend/sim/runtime/handle_table.h"
#include "backends/ascend/sim/runtime/machine.h"
#include "backends/ascend/sim/runtime/memory/memory.h"
#include "platform/base/thread_safety.hpp"

using namespace concord::ascend::abi;
using namespace concord::ascend::sim;

namespace {

HandleTable<Physical>& physicals() {
  static auto& table = *new HandleTable<Physical>(0x1f, "physical memory");
  return table;
}

constexpr size_t kKeyBytes = 65;  // the vendor's least, with the end

struct Shared {
  long pid = 0;
  int file = -1;
  int device = 0;
  size_t offset = 0;
  size_t bytes = 0;
};

std::string key_of(const Shared& shared) {
  return text("sim-npu:%ld:%d:%d:%zx:%zx", shared.pid, shared.file, shared.device, shared.offset, shared.bytes);
}

Shared parse_key(const char* key) {
  require_not_null(key, "key");
  Shared shared;
  if (std::sscanf(key, "sim-npu:%ld:%d:%d:%zx:%zx", &shared.pid, &shared.file, &shared.device, &shared.offset,
                  &shared.bytes) != 5) {
    fail(kRtParamInvalid, "the key is not from aclrtIpcMemGetExportKey");
  }
  return shared;
}

// Keys that this process has given out or opened.
struct Keys {
  std::mutex mutex;
  std::set<std::string> exported CONCORD_GUARDED_BY(mutex);
  std::map<std::string, void*> imported CONCORD_GUARDED_BY(mutex);
};

Keys& keys() {
  static Keys& instance = *new Keys;
  return instance;
}

void* open_shared(const Shared& shared) {
  const std::string path = text("/proc/%ld/fd/%d", shared.pid, shared.file);
  const concord::UniqueFd file(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  if (!file) {
    fail(kRtParamInvalid,
         text("process %ld, which exported the memory, cannot be reached: %s", shared.pid, std::strerror(errno)));
  }
  return memory().import(shared.device, file.get(), shared.offset, shared.bytes);
}

}  // namespace

// ----------------------------------------------------------------------------------------------------- reserved ranges

int32_t aclrtReserveMemAddress(void** address, size_t bytes, size_t alignment, void* expected, uint64_t /*flags*/) {
  return guarded(__func__, [&] {
    require_not_null(address, "virPtr");
    if (bytes == 0) invalid("a range of 0 bytes");
    if (alignment != 0) fail(kRtParamInvalid, text("alignment %zu; it must be 0", alignment));
    if (expected != nullptr) fail(kRtParamInvalid, "an expected address; it must be null");
    *address = memory().reserve(bytes);
  });
}

int32_t aclrtReleaseMemAddress(void* address) {
  return guarded(__func__, [&] { memory().unreserve(address); });
}

int32_t aclrtMallocPhysical(void** handle, size_t bytes, const aclrtPhysicalMemProp* properties, uint64_t flags) {
  return guarded(__func__, [&] {
    require_not_null(handle, "handle");
    require_not_null(properties, "prop");
    if (bytes == 0) invalid("an allocation of 0 bytes");
    if (flags != 0) fail(kRtParamInvalid, "flags must be 0");
    if (properties->location.type != kLocationDevice) {
      fail(kRtFeatureNotSupport, "physical memory of a host is not simulated");
    }
    *handle = physicals().insert(
        std::make_shared<Physical>(static_cast<int32_t>(properties->location.id), round_up(bytes, page_bytes())));
  });
}

int32_t aclrtFreePhysical(void* handle) {
  return guarded(__func__, [&] { physicals().remove(handle); });
}

int32_t aclrtMapMem(void* address, size_t bytes, size_t offset, void* handle, uint64_t flags) {
  return guarded(__func__, [&] {
    require_not_null(address, "virPtr");
    if (offset != 0 || flags != 0) fail(kRtParamInvalid, "offset and flags must be 0");
    memory().map(address, bytes, offset, physicals().share_locked(handle));
  });
}

int32_t aclrtUnmapMem(void* address) {
  return guarded(__func__, [&] {
    require_not_null(address, "virPtr");
    memory().unmap(address);
  });
}

int32_t aclrtMemExportToShareableHandle(void* handle, uint32_t /*type*/, uint64_t /*flags*/, uint64_t* /*shared*/) {
  return guarded(__func__, [&] {
    physicals().share_locked(handle);
    fail(kRtFeatureNotSupport, "physical memory is not shared between processes here; aclrtIpcMem* is");
  });
}

int32_t aclrtMemImportFromShareableHandle(uint64_t /*shared*/, int32_t /*device*/, void** /*handle*/) {
  return guarded(__func__, [] { fail(kRtFeatureNotSupport, "physical memory is not shared between processes here"); });
}

int32_t aclrtMemSetPidToShareableHandle(uint64_t /*shared*/, int32_t* /*pids*/, size_t /*count*/) {
  return guarded(__func__, [] { fail(kRtFeatureNotSupport, "physical memory is not shared between processes here"); });
}

// --------------------------------------------------------------------------------------------------- between processes

aclError aclrtIpcMemGetExportKey(void* address, size_t bytes, char* key, size_t key_bytes, uint64_t /*flags*/) {
  return guarded(__func__, [&] {
    require_not_null(address, "devPtr");
    require_not_null(key, "key");
    const Location at = memory().locate(address);
    const std::string wrong = memory().complaint(address, bytes);
    if (at.place != Place::kDevice || !wrong.empty()) fail(kRtParamInvalid, wrong);
    DeviceMemory& device = memory().of_device(at.device);
    size_t offset = 0;
    size_t whole = 0;
    if (!device.twin().contains(address) || !device.find(address, &offset, &whole)) {
      fail(kRtFeatureNotSupport, "only memory of aclrtMalloc can be exported");
    }
    offset = static_cast<size_t>(static_cast<std::byte*>(address) - device.twin().shown);
    const std::string name = key_of({::getpid(), device.file(), at.device, offset, bytes});
    if (key_bytes < kKeyBytes || name.size() >= key_bytes) fail(kRtParamInvalid, "the key needs at least 65 bytes");
    std::snprintf(key, key_bytes, "%s", name.c_str());
    const std::lock_guard lock(keys().mutex);
    keys().exported.insert(name);
  });
}

aclError aclrtIpcMemSetImportPid(const char* key, int32_t* pids, size_t count) {
  return guarded(__func__, [&] {
    parse_key(key);
    require_not_null(pids, "pid");
    if (count == 0) fail(kRtParamInvalid, "a list of 0 processes");
  });
}

aclError aclrtIpcMemImportByKey(void** address, const char* key, uint64_t /*flags*/) {
  return guarded(__func__, [&] {
    require_not_null(address, "devPtr");
    const Shared shared = parse_key(key);
    Machine::instance().current();
    Machine::instance().require_device(shared.device);
    if (shared.pid == ::getpid()) fail(kRtParamInvalid, "a process cannot import what it exported itself");
    const std::lock_guard lock(keys().mutex);
    if (keys().imported.count(key) != 0) fail(kRtParamInvalid, "the key has already been imported");
    *address = open_shared(shared);
    keys().imported.emplace(key, *address);
  });
}

aclError aclrtIpcMemClose(const char* key) {
  return guarded(__func__, [&] {
    parse_key(key);
    const std::lock_guard lock(keys().mutex);
    if (keys().exported.erase(key) != 0) return;
    const auto found = keys().imported.find(key);
    if (found == keys().imported.end()) fail(kRtParamInvalid, "the key is not open in this process");
    const auto value = reinterpret_cast<uintptr_t>(found->second);
    memory().unmap(found->second);
    memory().unreserve(reinterpret_cast<void*>(value / page_bytes() * page_bytes()));
    keys().imported.erase(found);
  });
}
