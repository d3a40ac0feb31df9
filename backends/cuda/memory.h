// The memory table over the CUDA runtime: cudaMalloc, a stream-ordered pool per device, pinned host memory, copies.
//
// copy() uses a dedicated stream, because cudaMemcpy runs on the default stream and would wait for libtorch's work
// there.
// Threads: any thread, any time.
#pragma once

#include <mutex>
#include <vector>

#include "backends/cuda/device.h"
#include "backends/cuda/pinned_blocks.h"
#include "platform/base/thread_safety.hpp"

namespace concord::cuda {

class Memory {
 public:
  explicit Memory(Devices& devices);

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
  struct PerDevice {
    cudaMemPool_t pool = nullptr;            // created on first use; lives as long as the process
    std::vector<cudaStream_t> copy_streams;  // idle streams of copy()
  };

  cudaMemPool_t pool(int32_t device);
  cudaStream_t take_copy_stream(int32_t device);
  void give_copy_stream(int32_t device, cudaStream_t stream);
  [[noreturn]] void fail_allocation(cudaError_t error, const char* call, int32_t device, int64_t bytes);

  Devices& devices_;
  PinnedBlocks blocks_;
  std::mutex mutex_;  // guards per_device_
  std::vector<PerDevice> per_device_ CONCORD_GUARDED_BY(mutex_);
};

}  // namespace concord::cuda
