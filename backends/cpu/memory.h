// The memory table. Device memory and pinned memory are both memory of the host. A record of every block distinguishes
// them, rejects pointers that are not in a live block, and counts the memory of each device.
//
// The limit of a device is cpu.memory_limit bytes, by default the memory of the machine or the cgroup. Large blocks
// must also be available now, so that the system's overcommit does not turn an error here into a killed process later.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "platform/abi/memory.h"
#include "platform/base/thread_safety.hpp"

namespace concord::cpu {

class Devices;
class Streams;

class Memory {
 public:
  // |total| bytes for each of |device_count| devices.
  Memory(int32_t device_count, int64_t total, const Devices& devices, Streams& streams);

  void* allocate(int32_t device, int64_t bytes);
  void release(int32_t device, void* pointer);
  void* allocate_on_stream(int32_t device, int64_t bytes, concord_stream stream);
  void release_on_stream(int32_t device, void* pointer, concord_stream stream);
  void* allocate_host(int64_t bytes);
  void release_host(void* pointer);
  void copy(void* destination, const void* source, int64_t bytes, concord_copy_kind kind);
  void copy_on_stream(void* destination, const void* source, int64_t bytes, concord_copy_kind kind,
                      concord_stream stream);
  void copy_peer_on_stream(void* destination, int32_t destination_device, const void* source, int32_t source_device,
                           int64_t bytes, concord_stream stream);
  void fill_on_stream(void* destination, int32_t value, int64_t bytes, concord_stream stream);
  void info(int32_t device, int64_t* out_free, int64_t* out_total);
  void describe_pointer(const void* pointer, concord_pointer_info* out_info);

 private:
  struct Block {
    int64_t bytes;
    int32_t device;  // -1: pinned
  };

  // A block that left the records and is freed, and given back to its device's account, when this is destroyed.
  class Released;

  void* take(int32_t device, int64_t bytes);
  Released drop(int32_t device, void* pointer);
  void reserve(int32_t device, int64_t bytes);
  void unreserve(int32_t device, int64_t bytes);
  int64_t& used(int32_t device) CONCORD_REQUIRES(mutex_) { return used_[static_cast<size_t>(device + 1)]; }
  void check_on_device(const void* pointer, int32_t device, const char* what);

  const int64_t total_;
  const Devices& devices_;
  Streams& streams_;

  std::mutex mutex_;                                              // guards all below
  std::map<uintptr_t, Block> blocks_ CONCORD_GUARDED_BY(mutex_);  // by address
  std::vector<int64_t> used_ CONCORD_GUARDED_BY(mutex_);          // bytes allocated: pinned, device 0, device 1, ...
};

}  // namespace concord::cpu
