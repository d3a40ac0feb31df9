#include "backends/cuda/memory.h"

#include <cstring>
#include <memory>

#include "backends/cuda/status.h"
#include "platform/sdk/checks.hpp"

namespace concord::cuda {
namespace {

// What a pool keeps when nothing uses it. Enough to reuse scratch buffers immediately; little compared with what
// libtorch's allocator, which cannot reach into this pool, may want.
constexpr uint64_t kPoolKeepsBytes = uint64_t{256} << 20;

cudaMemcpyKind direction(concord_copy_kind kind) {
  switch (kind) {
    case CONCORD_COPY_HOST_TO_HOST: return cudaMemcpyHostToHost;
    case CONCORD_COPY_HOST_TO_DEVICE: return cudaMemcpyHostToDevice;
    case CONCORD_COPY_DEVICE_TO_HOST: return cudaMemcpyDeviceToHost;
    default: return cudaMemcpyDeviceToDevice;
  }
}

struct HostCopy {
  void* destination;
  const void* source;
  size_t bytes;
};

// CUDA runs a copy between host buffers immediately, on the calling thread; as a host function it keeps its order.
void enqueue_host_copy(void* destination, const void* source, int64_t bytes, concord_stream stream) {
  auto work = std::make_unique<HostCopy>(HostCopy{destination, source, static_cast<size_t>(bytes)});
  const auto run = [](void* user) {
    const std::unique_ptr<HostCopy> copy(static_cast<HostCopy*>(user));
    std::memcpy(copy->destination, copy->source, copy->bytes);
  };
  check_cuda(cudaLaunchHostFunc(vendor(stream), run, work.get()), "cudaLaunchHostFunc");
  work.release();  // the host function owns it now
}

}  // namespace

Memory::Memory(Devices& devices) : devices_(devices), per_device_(static_cast<size_t>(devices.count())) {}

void Memory::fail_allocation(cudaError_t error, const char* call, int32_t device, int64_t bytes) {
  size_t free = 0;
  size_t total = 0;
  const DeviceGuard here(device);
  const bool known = cudaMemGetInfo(&free, &total) == cudaSuccess;
  fail_cuda(error, call,
            known ? sdk::text("requested %lld bytes on device %d, which has %zu free of %zu",
                              static_cast<long long>(bytes), device, free, total)
                  : sdk::text("requested %lld bytes on device %d", static_cast<long long>(bytes), device));
}

void* Memory::allocate(int32_t device, int64_t bytes) {
  devices_.check(device);
  sdk::check_bytes(bytes);
  if (bytes == 0) return nullptr;
  const DeviceGuard here(device);
  void* pointer = nullptr;
  const cudaError_t error = cudaMalloc(&pointer, static_cast<size_t>(bytes));
  if (error != cudaSuccess) fail_allocation(error, "cudaMalloc", device, bytes);
  return pointer;
}

void Memory::release(int32_t device, void* pointer) {
  devices_.check(device);
  if (pointer == nullptr) return;
  cudaPointerAttributes attributes{};
  check_cuda(cudaPointerGetAttributes(&attributes, pointer), "cudaPointerGetAttributes");
  if (attributes.type != cudaMemoryTypeDevice || attributes.device != device) {
    sdk::invalid(sdk::text("%p is not memory of device %d, or was already released", pointer, device));
  }
  const DeviceGuard here(device);
  check_cuda(cudaFree(pointer), "cudaFree");
}

cudaMemPool_t Memory::pool(int32_t device) {
  const std::lock_guard lock(mutex_);
  PerDevice& own = per_device_[static_cast<size_t>(device)];
  if (own.pool != nullptr) return own.pool;
  cudaMemPoolProps properties{};
  properties.allocType = cudaMemAllocationTypePinned;
  properties.location.type = cudaMemLocationTypeDevice;
  properties.location.id = device;
  cudaMemPool_t made = nullptr;
  check_cuda(cudaMemPoolCreate(&made, &properties), "cudaMemPoolCreate");
  uint64_t keeps = kPoolKeepsBytes;
  check_cuda(cudaMemPoolSetAttribute(made, cudaMemPoolAttrReleaseThreshold, &keeps), "cudaMemPoolSetAttribute");
  own.pool = made;
  return made;
}

void* Memory::allocate_on_stream(int32_t device, int64_t bytes, concord_stream stream) {
  devices_.check(device);
  sdk::check_bytes(bytes);
  if (bytes == 0) return nullptr;
  const DeviceGuard here(device);
  void* pointer = nullptr;
  const cudaError_t error = cudaMallocFromPoolAsync(&pointer, static_cast<size_t>(bytes), pool(device), vendor(stream));
  if (error != cudaSuccess) fail_allocation(error, "cudaMallocFromPoolAsync", device, bytes);
  return pointer;
}

void Memory::release_on_stream(int32_t device, void* pointer, concord_stream stream) {
  devices_.check(device);
  if (pointer == nullptr) return;
  const DeviceGuard here(device);
  check_cuda(cudaFreeAsync(pointer, vendor(stream)), "cudaFreeAsync");
}

void* Memory::allocate_host(int64_t bytes) {
  sdk::check_bytes(bytes);
  if (bytes == 0) return nullptr;
  if (void* const block = blocks_.allocate(static_cast<size_t>(bytes))) return block;
  void* pointer = nullptr;
  const cudaError_t error = cudaHostAlloc(&pointer, static_cast<size_t>(bytes), cudaHostAllocPortable);
  if (error != cudaSuccess) {
    fail_cuda(error, "cudaHostAlloc",
              sdk::text("requested %lld bytes of pinned host memory", static_cast<long long>(bytes)));
  }
  return pointer;
}

void Memory::release_host(void* pointer) {
  if (pointer == nullptr || blocks_.release(pointer)) return;
  check_cuda(cudaFreeHost(pointer), "cudaFreeHost");
}

cudaStream_t Memory::take_copy_stream(int32_t device) {
  {
    const std::lock_guard lock(mutex_);
    auto& idle = per_device_[static_cast<size_t>(device)].copy_streams;
    if (!idle.empty()) {
      cudaStream_t stream = idle.back();
      idle.pop_back();
      return stream;
    }
  }
  cudaStream_t made = nullptr;
  check_cuda(cudaStreamCreateWithFlags(&made, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
  return made;
}

void Memory::give_copy_stream(int32_t device, cudaStream_t stream) {
  const std::lock_guard lock(mutex_);
  per_device_[static_cast<size_t>(device)].copy_streams.push_back(stream);
}

void Memory::copy(void* destination, const void* source, int64_t bytes, concord_copy_kind kind) {
  sdk::check_copy(destination, source, bytes, kind);
  if (bytes == 0) return;
  if (kind == CONCORD_COPY_HOST_TO_HOST) {
    std::memcpy(destination, source, static_cast<size_t>(bytes));
    return;
  }
  const int32_t device = devices_.get_current();
  cudaStream_t stream = take_copy_stream(device);
  cudaError_t error = cudaMemcpyAsync(destination, source, static_cast<size_t>(bytes), direction(kind), stream);
  const char* call = "cudaMemcpyAsync";
  if (error == cudaSuccess) {
    error = cudaStreamSynchronize(stream);
    call = "cudaStreamSynchronize";
  }
  give_copy_stream(device, stream);
  check_cuda(error, call);
}

void Memory::copy_on_stream(void* destination, const void* source, int64_t bytes, concord_copy_kind kind,
                            concord_stream stream) {
  sdk::check_copy(destination, source, bytes, kind);
  if (bytes == 0) return;
  if (kind == CONCORD_COPY_HOST_TO_HOST) return enqueue_host_copy(destination, source, bytes, stream);
  check_cuda(cudaMemcpyAsync(destination, source, static_cast<size_t>(bytes), direction(kind), vendor(stream)),
             "cudaMemcpyAsync");
}

void Memory::copy_peer_on_stream(void* destination, int32_t destination_device, const void* source,
                                 int32_t source_device, int64_t bytes, concord_stream stream) {
  sdk::check_copy(destination, source, bytes, CONCORD_COPY_DEVICE_TO_DEVICE);
  devices_.check(destination_device);
  devices_.check(source_device);
  if (bytes == 0) return;
  check_cuda(cudaMemcpyPeerAsync(destination, destination_device, source, source_device, static_cast<size_t>(bytes),
                                 vendor(stream)),
             "cudaMemcpyPeerAsync");
}

void Memory::fill_on_stream(void* destination, int32_t value, int64_t bytes, concord_stream stream) {
  sdk::check_fill(destination, bytes);
  if (bytes == 0) return;
  const DeviceGuard here(device_of(destination, stream, devices_.count()));
  check_cuda(cudaMemsetAsync(destination, value & 0xff, static_cast<size_t>(bytes), vendor(stream)), "cudaMemsetAsync");
}

void Memory::info(int32_t device, int64_t* out_free, int64_t* out_total) {
  devices_.check(device);
  sdk::check_not_null(out_free, "out_free");
  sdk::check_not_null(out_total, "out_total");
  const DeviceGuard here(device);
  size_t free = 0;
  size_t total = 0;
  check_cuda(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
  *out_free = static_cast<int64_t>(free);
  *out_total = static_cast<int64_t>(total);
}

void Memory::describe_pointer(const void* pointer, concord_pointer_info* out_info) {
  concord_pointer_info info{};
  info.device = -1;
  cudaPointerAttributes attributes{};
  const cudaError_t error = cudaPointerGetAttributes(&attributes, pointer);
  if (error == cudaErrorInvalidValue) {
    cudaGetLastError();  // an address unknown to CUDA, in older runtimes
  } else {
    check_cuda(error, "cudaPointerGetAttributes");
    if (attributes.type == cudaMemoryTypeHost) info.kind = CONCORD_MEMORY_PINNED_HOST;
    if (attributes.type == cudaMemoryTypeDevice || attributes.type == cudaMemoryTypeManaged) {
      info.kind = CONCORD_MEMORY_DEVICE;
      info.device = attributes.device;
    }
  }
  sdk::write_sized(info, out_info);
}

}  // namespace concord::cuda
