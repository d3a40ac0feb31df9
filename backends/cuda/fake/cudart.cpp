// A CUDA runtime on the host, as far as the backend calls it. See README.md.
#include <cuda_profiler_api.h>
#include <cuda_runtime_api.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "backends/cuda/fake/stream.h"

namespace {

using fake::Stream;
using Clock = std::chrono::steady_clock;

constexpr size_t kDeviceBytes = size_t{2} << 30;

// What one record of an event represents.
struct Ticket {
  std::mutex mutex;
  std::condition_variable changed;
  bool done = false;
  Clock::time_point time;

  void reach() {
    const std::lock_guard lock(mutex);
    done = true;
    time = Clock::now();
    changed.notify_all();
  }
  void wait() {
    std::unique_lock lock(mutex);
    changed.wait(lock, [this] { return done; });
  }
  bool reached() {
    const std::lock_guard lock(mutex);
    return done;
  }
};

struct Event {
  bool timing;
  std::shared_ptr<Ticket> newest;  // null: never recorded
};

struct Block {
  size_t bytes;
  cudaMemoryType type;
  int device;
  bool registered = false;  // by the caller, who frees it
};

struct Runtime {
  std::mutex mutex;
  std::map<const void*, Block> blocks;
  std::vector<size_t> used = std::vector<size_t>(16, 0);
  std::map<Stream*, std::shared_ptr<Stream>> streams;
  std::vector<std::shared_ptr<Stream>> destroyed;  // and perhaps still at work: the device's synchronize waits for them
  std::map<Event*, std::shared_ptr<Event>> events;
  std::map<int, std::shared_ptr<Stream>> default_streams;
};

Runtime& runtime() {
  static auto* instance = new Runtime;  // never destroyed: streams may outlive main
  return *instance;
}

thread_local int current_device = 0;
thread_local cudaError_t last_error = cudaSuccess;

cudaError_t result(cudaError_t error) {
  if (error != cudaSuccess) last_error = error;
  return error;
}

int device_count() {
  const char* set = std::getenv("FAKE_CUDA_DEVICES");
  return set != nullptr ? std::atoi(set) : 1;
}

std::shared_ptr<Stream> find(cudaStream_t handle) {
  Runtime& all = runtime();
  const std::lock_guard lock(all.mutex);
  if (handle == nullptr) {
    auto& own = all.default_streams[current_device];
    if (own == nullptr) own = Stream::start();
    return own;
  }
  const auto found = all.streams.find(reinterpret_cast<Stream*>(handle));
  return found != all.streams.end() ? found->second : nullptr;
}

std::shared_ptr<Event> find(cudaEvent_t handle) {
  Runtime& all = runtime();
  const std::lock_guard lock(all.mutex);
  const auto found = all.events.find(reinterpret_cast<Event*>(handle));
  return found != all.events.end() ? found->second : nullptr;
}

std::shared_ptr<Ticket> newest(Event& event) {
  const std::lock_guard lock(runtime().mutex);
  return event.newest;
}

cudaError_t push(cudaStream_t handle, fake::Work work) {
  const auto stream = find(handle);
  if (stream == nullptr) return result(cudaErrorInvalidResourceHandle);
  stream->push(std::move(work));
  return cudaSuccess;
}

cudaError_t allocate(void** out, size_t bytes, cudaMemoryType type) {
  Runtime& all = runtime();
  const std::lock_guard lock(all.mutex);
  size_t& used = all.used[static_cast<size_t>(current_device)];
  if (type == cudaMemoryTypeDevice && (bytes > kDeviceBytes || used + bytes > kDeviceBytes)) {
    return result(cudaErrorMemoryAllocation);
  }
  *out = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
  if (*out == nullptr) return result(cudaErrorMemoryAllocation);
  if (type == cudaMemoryTypeDevice) used += bytes;
  all.blocks[*out] = {bytes, type, current_device};
  return cudaSuccess;
}

cudaError_t release(void* pointer, cudaMemoryType type) {
  Runtime& all = runtime();
  const std::lock_guard lock(all.mutex);
  const auto found = all.blocks.find(pointer);
  if (found == all.blocks.end() || found->second.type != type || found->second.registered) return cudaErrorInvalidValue;
  if (type == cudaMemoryTypeDevice) all.used[static_cast<size_t>(found->second.device)] -= found->second.bytes;
  all.blocks.erase(found);
  std::free(pointer);
  return cudaSuccess;
}

cudaError_t make_stream(cudaStream_t* out) {
  auto stream = Stream::start();
  *out = reinterpret_cast<cudaStream_t>(stream.get());
  const std::lock_guard lock(runtime().mutex);
  runtime().streams[stream.get()] = stream;
  return cudaSuccess;
}

}  // namespace

cudaError_t fake::push_work(cudaStream_t stream, fake::Work work) { return push(stream, std::move(work)); }

// ------------------------------------------------------------------------------------------------- errors and devices

cudaError_t cudaGetLastError() { return std::exchange(last_error, cudaSuccess); }

const char* cudaGetErrorName(cudaError_t error) {
  switch (error) {
    case cudaSuccess: return "cudaSuccess";
    case cudaErrorInvalidValue: return "cudaErrorInvalidValue";
    case cudaErrorMemoryAllocation: return "cudaErrorMemoryAllocation";
    case cudaErrorNotReady: return "cudaErrorNotReady";
    case cudaErrorInvalidResourceHandle: return "cudaErrorInvalidResourceHandle";
    default: return "unrecognized error code";
  }
}

const char* cudaGetErrorString(cudaError_t error) {
  return error == cudaErrorMemoryAllocation ? "out of memory" : cudaGetErrorName(error);
}

cudaError_t cudaGetDeviceCount(int* count) {
  *count = device_count();
  return *count > 0 ? cudaSuccess : result(cudaErrorNoDevice);
}

cudaError_t cudaGetDevice(int* device) {
  *device = current_device;
  return cudaSuccess;
}

cudaError_t cudaSetDevice(int device) {
  if (device < 0 || device >= device_count()) return result(cudaErrorInvalidDevice);
  current_device = device;
  return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int) {
  *properties = {};
  std::strcpy(properties->name, "fake device");
  properties->totalGlobalMem = kDeviceBytes;
  properties->multiProcessorCount = 1;
  properties->major = 9;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr, int) {
  *value = 1;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetPCIBusId(char* id, int length, int device) {
  std::snprintf(id, static_cast<size_t>(length), "0000:0%X:00.0", device + 10);
  return cudaSuccess;
}

cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0;
  *greatest = -5;
  return cudaSuccess;
}

cudaError_t cudaDeviceCanAccessPeer(int* can, int, int) {
  *can = 1;
  return cudaSuccess;
}

cudaError_t cudaDeviceEnablePeerAccess(int, unsigned) { return result(cudaErrorPeerAccessAlreadyEnabled); }

cudaError_t cudaDeviceSynchronize() {
  std::vector<std::shared_ptr<Stream>> streams;
  {
    const std::lock_guard lock(runtime().mutex);
    for (const auto& [key, stream] : runtime().streams) streams.push_back(stream);
    for (const auto& [key, stream] : runtime().default_streams) streams.push_back(stream);
    streams.insert(streams.end(), runtime().destroyed.begin(), runtime().destroyed.end());
  }
  for (const auto& stream : streams) stream->wait_idle();
  return cudaSuccess;
}

cudaError_t cudaProfilerStart() { return cudaSuccess; }
cudaError_t cudaProfilerStop() { return cudaSuccess; }

// -------------------------------------------------------------------------------------------------------------- memory

cudaError_t cudaMalloc(void** pointer, size_t bytes) { return allocate(pointer, bytes, cudaMemoryTypeDevice); }
cudaError_t cudaFree(void* pointer) { return result(release(pointer, cudaMemoryTypeDevice)); }
cudaError_t cudaHostAlloc(void** pointer, size_t bytes, unsigned) {
  return allocate(pointer, bytes, cudaMemoryTypeHost);
}
cudaError_t cudaFreeHost(void* pointer) { return result(release(pointer, cudaMemoryTypeHost)); }
cudaError_t cudaHostRegister(void* pointer, size_t bytes, unsigned) {
  const std::lock_guard lock(runtime().mutex);
  runtime().blocks[pointer] = {bytes, cudaMemoryTypeHost, current_device, /*registered=*/true};
  return cudaSuccess;
}
cudaError_t cudaHostUnregister(void* pointer) {
  const std::lock_guard lock(runtime().mutex);
  const auto found = runtime().blocks.find(pointer);
  if (found == runtime().blocks.end() || !found->second.registered) return result(cudaErrorHostMemoryNotRegistered);
  runtime().blocks.erase(found);
  return cudaSuccess;
}

cudaError_t cudaMemPoolCreate(cudaMemPool_t* pool, const cudaMemPoolProps*) {
  *pool = reinterpret_cast<cudaMemPool_t>(new int);  // only ever passed back
  return cudaSuccess;
}
cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t, cudaMemPoolAttr, void*) { return cudaSuccess; }

cudaError_t cudaMallocFromPoolAsync(void** pointer, size_t bytes, cudaMemPool_t, cudaStream_t) {
  return cudaMalloc(pointer, bytes);
}
cudaError_t cudaFreeAsync(void* pointer, cudaStream_t stream) {
  {
    const std::lock_guard lock(runtime().mutex);
    if (!runtime().blocks.contains(pointer)) return result(cudaErrorInvalidValue);
  }
  return push(stream, [pointer] { release(pointer, cudaMemoryTypeDevice); });
}

cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  const std::lock_guard lock(runtime().mutex);
  *total = kDeviceBytes;
  *free = kDeviceBytes - runtime().used[static_cast<size_t>(current_device)];
  return cudaSuccess;
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* pointer) {
  *attributes = {};
  attributes->type = cudaMemoryTypeUnregistered;
  attributes->device = -2;
  const std::lock_guard lock(runtime().mutex);
  auto after = runtime().blocks.upper_bound(pointer);
  if (after == runtime().blocks.begin()) return cudaSuccess;
  const auto& [base, block] = *--after;
  if (static_cast<const char*>(pointer) >= static_cast<const char*>(base) + block.bytes) return cudaSuccess;
  attributes->type = block.type;
  attributes->device = block.device;
  return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind, cudaStream_t stream) {
  return push(stream, [=] { std::memcpy(to, from, bytes); });
}
cudaError_t cudaMemcpyPeerAsync(void* to, int, const void* from, int, size_t bytes, cudaStream_t stream) {
  return push(stream, [=] { std::memcpy(to, from, bytes); });
}
cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t stream) {
  return push(stream, [=] { std::memset(to, value, bytes); });
}

// ------------------------------------------------------------------------------------------------- streams and events

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) { return make_stream(stream); }
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned, int) { return make_stream(stream); }

cudaError_t cudaStreamDestroy(cudaStream_t handle) {
  const auto stream = find(handle);
  if (stream == nullptr) return result(cudaErrorInvalidResourceHandle);
  stream->close();
  const std::lock_guard lock(runtime().mutex);
  Runtime& all = runtime();
  all.streams.erase(stream.get());
  std::erase_if(all.destroyed, [](const auto& each) { return each->idle(); });
  all.destroyed.push_back(stream);
  return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t handle) {
  const auto stream = find(handle);
  if (stream == nullptr) return result(cudaErrorInvalidResourceHandle);
  if (stream->spoil_capture()) return result(cudaErrorStreamCaptureUnsupported);
  stream->wait_idle();
  return cudaSuccess;
}

cudaError_t cudaStreamQuery(cudaStream_t handle) {
  const auto stream = find(handle);
  if (stream == nullptr) return result(cudaErrorInvalidResourceHandle);
  return stream->idle() ? cudaSuccess : result(cudaErrorNotReady);
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t handle, unsigned) {
  const auto event = find(handle);
  if (event == nullptr) return result(cudaErrorInvalidResourceHandle);
  const auto ticket = newest(*event);
  if (ticket == nullptr) return cudaSuccess;
  return push(stream, [ticket] { ticket->wait(); });
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* user) {
  return push(stream, [function, user] { function(user); });
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* handle, unsigned flags) {
  const auto event = std::make_shared<Event>(Event{(flags & cudaEventDisableTiming) == 0, nullptr});
  *handle = reinterpret_cast<cudaEvent_t>(event.get());
  const std::lock_guard lock(runtime().mutex);
  runtime().events[event.get()] = event;
  return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t handle) {
  const std::lock_guard lock(runtime().mutex);
  return runtime().events.erase(reinterpret_cast<Event*>(handle)) == 1 ? cudaSuccess
                                                                       : result(cudaErrorInvalidResourceHandle);
}

cudaError_t cudaEventRecord(cudaEvent_t handle, cudaStream_t stream) {
  const auto event = find(handle);
  if (event == nullptr) return result(cudaErrorInvalidResourceHandle);
  auto ticket = std::make_shared<Ticket>();
  const cudaError_t error = push(stream, [ticket] { ticket->reach(); });
  if (error != cudaSuccess) return error;
  const std::lock_guard lock(runtime().mutex);
  event->newest = std::move(ticket);
  return cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t handle) {
  const auto event = find(handle);
  if (event == nullptr) return result(cudaErrorInvalidResourceHandle);
  const auto ticket = newest(*event);
  return ticket == nullptr || ticket->reached() ? cudaSuccess : result(cudaErrorNotReady);
}

cudaError_t cudaEventSynchronize(cudaEvent_t handle) {
  const auto event = find(handle);
  if (event == nullptr) return result(cudaErrorInvalidResourceHandle);
  if (const auto ticket = newest(*event)) ticket->wait();
  return cudaSuccess;
}

cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t start, cudaEvent_t end) {
  const auto first = find(start);
  const auto second = find(end);
  if (first == nullptr || second == nullptr || !first->timing || !second->timing) {
    return result(cudaErrorInvalidResourceHandle);
  }
  const auto from = newest(*first);
  const auto to = newest(*second);
  if (from == nullptr || to == nullptr) return result(cudaErrorInvalidResourceHandle);
  if (!from->reached() || !to->reached()) return result(cudaErrorNotReady);
  *milliseconds = std::chrono::duration<float, std::milli>(to->time - from->time).count();
  return cudaSuccess;
}

// -------------------------------------------------------------------------------------------------------------- graphs

cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode*) { return cudaSuccess; }

cudaError_t cudaStreamIsCapturing(cudaStream_t handle, cudaStreamCaptureStatus* status) {
  const auto stream = find(handle);
  if (stream == nullptr) return result(cudaErrorInvalidResourceHandle);
  *status = stream->capturing() ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
  return cudaSuccess;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t handle, cudaStreamCaptureMode) {
  const auto stream = find(handle);
  if (stream == nullptr) return result(cudaErrorInvalidResourceHandle);
  stream->begin_capture();
  return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t handle, cudaGraph_t* graph) {
  const auto stream = find(handle);
  if (stream == nullptr || !stream->capturing()) return result(cudaErrorInvalidResourceHandle);
  std::vector<fake::Work> work;
  if (!stream->end_capture(&work)) return result(cudaErrorStreamCaptureInvalidated);
  *graph = reinterpret_cast<cudaGraph_t>(new std::vector<fake::Work>(std::move(work)));
  return cudaSuccess;
}

cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t* executable, cudaGraph_t graph, unsigned long long) {
  *executable = reinterpret_cast<cudaGraphExec_t>(
      new std::vector<fake::Work>(*reinterpret_cast<std::vector<fake::Work>*>(graph)));
  return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete reinterpret_cast<std::vector<fake::Work>*>(graph);
  return cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream) {
  for (const fake::Work& work : *reinterpret_cast<std::vector<fake::Work>*>(executable)) {
    if (const cudaError_t error = push(stream, work); error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) {
  delete reinterpret_cast<std::vector<fake::Work>*>(executable);
  return cudaSuccess;
}
