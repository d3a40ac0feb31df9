// All memory that the runtime manages: device memory, reserved ranges with their mappings, pinned host memory.
// Threads: any.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <shared_mutex>
#include <string>
#include <vector>

#include "backends/ascend/sim/runtime/memory/device_memory.h"
#include "platform/base/thread_safety.hpp"

namespace concord::ascend::sim {

// Kinds of memory.
enum class Place { kPageableHost, kPinnedHost, kDevice };

struct Location {
  Place place = Place::kPageableHost;
  int32_t device = -1;
};

// Memory of a device without an address (aclrtMallocPhysical), which is mapped into a reserved range later.
struct Physical {
  int32_t device = 0;
  size_t bytes = 0;
  UniqueFd file;
  bool filled = false;  // with poison, when it is first mapped

  Physical(int32_t on_device, size_t size);
  ~Physical();
  Physical(const Physical&) = delete;
  Physical& operator=(const Physical&) = delete;
};

class Memory {
 public:
  static Memory& instance();

  // Throws 107001 if the device does not exist.
  DeviceMemory& of_device(int32_t device);

  std::byte* translate(const void* address) const;
  Location locate(const void* address) const;
  // Returns "" if the |bytes| at |address|, for which locate() returned kDevice, may be used; otherwise an error
  // message.
  std::string complaint(const void* address, size_t bytes) const;
  void release(void* address);

  // Reserved ranges. |complaint| checks the mappings in them.
  void* reserve(size_t bytes);
  void unreserve(void* address);
  void map(void* address, size_t bytes, size_t offset, std::shared_ptr<Physical> physical);
  void unmap(void* address);
  // Maps another process's memory into a new range.
  void* import(int32_t device, int file, size_t offset, size_t bytes);

  // Host memory.
  void* allocate_pinned(size_t bytes);
  void release_pinned(void* address);
  void register_pinned(void* address, size_t bytes);
  void unregister_pinned(void* address);

 private:
  struct Mapping {
    size_t bytes = 0;
    int32_t device = 0;
    std::shared_ptr<Physical> physical;  // null: another process's
  };
  struct Range {
    Twin twin;
    std::map<const std::byte*, Mapping> mapped;  // by shown address
  };
  struct Pinned {
    size_t bytes = 0;
    bool ours = false;  // allocated by the runtime; false: registered memory of the program
  };

  Memory();
  int32_t device_holding(const void* address) const;
  const Range* range_holding(const void* address) const CONCORD_REQUIRES_SHARED(mutex_);
  static std::string complaint_in(const Range& range, const void* address, size_t bytes);

  size_t device_span_ = 0;
  Twin all_;  // the adjacent twins of all devices, so that one constant translates their addresses
  std::vector<std::unique_ptr<DeviceMemory>> devices_;

  mutable std::shared_mutex mutex_;  // guards all below
  std::map<const std::byte*, Range> ranges_ CONCORD_GUARDED_BY(mutex_);
  std::map<const std::byte*, Pinned> pinned_ CONCORD_GUARDED_BY(mutex_);
};

inline Memory& memory() { return Memory::instance(); }

}  // namespace concord::ascend::sim
