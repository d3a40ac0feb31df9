// concord_graph on CUDA: captures what a thread enqueues as a CUDA graph, on a dedicated stream, because the default
// stream cannot be captured. Memory that libtorch hands out meanwhile comes from a pool that belongs to the graph.
#define C10_CUDA_NO_CMAKE_CONFIGURE_FILE  // wheels without CUDA lack this file, which describes how c10_cuda was linked
#include <c10/cuda/CUDACachingAllocator.h>

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>

#include "backends/cuda/torch/ops/tensors.h"

namespace concord::cuda::torch_side {
namespace {

using at::Tensor;
using Allocator = c10::cuda::CUDACachingAllocator::CUDAAllocator;

// libtorch's, without linking libc10_cuda.
Allocator& allocator() { return *static_cast<Allocator*>(c10::GetAllocator(c10::kCUDA)); }

// Newer allocators also want to know when a capture itself begins and ends.
template <class A>
void mark_capture(A& allocator, c10::DeviceIndex device, bool begins) {
  if constexpr (requires { allocator.markCaptureBegin(device); }) {
    begins ? allocator.markCaptureBegin(device) : allocator.markCaptureEnd(device);
  }
}

// Far from the numbers that libtorch gives its own pools.
c10::MempoolId_t new_pool() {
  static std::atomic<c10::CaptureId_t> last{c10::CaptureId_t{1} << 40};
  return {++last, 0};
}

// The stream on which graphs of a device are captured; nothing runs on it.
c10::Stream capture_stream(c10::Device device) {
  static std::mutex mutex;
  static std::map<c10::DeviceIndex, c10::Stream> streams;
  const std::lock_guard lock(mutex);
  const c10::impl::VirtualGuardImpl guard(device.type());
  return streams.try_emplace(device.index(), guard.getStreamFromGlobalPool(device)).first->second;
}

class Graph {
 public:
  explicit Graph(c10::Device device)
      : device_(device), guard_(device.type()), stream_(capture_stream(device)), pool_(new_pool()) {}
  ~Graph() {
    if (executable_ != nullptr) cudaGraphExecDestroy(executable_);
    if (has_pool_) allocator().releasePool(device_.index(), pool_);
  }
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  bool begin() {
    // By the stream, on which nothing else runs: backward passes enqueue from a thread of autograd's.
    allocator().beginAllocateToPool(device_.index(), pool_, [own = native()](cudaStream_t on) { return on == own; });
    has_pool_ = true;
    // Thread-local: what other threads do neither fails nor ends the capture.
    if (cudaStreamBeginCapture(native(), cudaStreamCaptureModeThreadLocal) != cudaSuccess) {
      allocator().endAllocateToPool(device_.index(), pool_);
      cudaGetLastError();  // clears the error, which the caller gets, so that the next launch does not report it
      return false;
    }
    mark_capture(allocator(), device_.index(), true);
    before_.emplace(guard_.exchangeStream(stream_));
    return true;
  }

  // Leaves the thread as it was before begin, whatever happened in between.
  bool end() {
    cudaGraph_t captured = nullptr;
    bool works = cudaStreamEndCapture(native(), &captured) == cudaSuccess && captured != nullptr;
    guard_.exchangeStream(*before_);
    mark_capture(allocator(), device_.index(), false);
    allocator().endAllocateToPool(device_.index(), pool_);
    works = works && cudaGraphInstantiateWithFlags(&executable_, captured, 0) == cudaSuccess;
    if (captured != nullptr) cudaGraphDestroy(captured);
    cudaGetLastError();  // as in begin
    return works;
  }

  void replay(cudaStream_t stream) {
    if (const cudaError_t code = cudaGraphLaunch(executable_, stream); code != cudaSuccess) {
      throw std::runtime_error(std::string("cudaGraphLaunch failed: ") + cudaGetErrorString(code));
    }
  }

 private:
  cudaStream_t native() const { return static_cast<cudaStream_t>(stream_.native_handle()); }

  c10::Device device_;
  c10::impl::VirtualGuardImpl guard_;
  c10::Stream stream_;
  c10::MempoolId_t pool_;
  std::optional<c10::Stream> before_;  // the thread's, while it captures
  cudaGraphExec_t executable_ = nullptr;
  bool has_pool_ = false;
};

// By their numbers. Threads: any thread.
class Graphs {
 public:
  int64_t add(std::unique_ptr<Graph> graph) {
    const std::lock_guard lock(mutex_);
    graphs_.emplace(++last_, std::move(graph));
    return last_;
  }
  Graph& at(int64_t number) {
    const std::lock_guard lock(mutex_);
    return *graphs_.at(number);
  }
  void remove(int64_t number) {
    const std::lock_guard lock(mutex_);
    graphs_.erase(number);
  }

 private:
  std::mutex mutex_;
  std::map<int64_t, std::unique_ptr<Graph>> graphs_;
  int64_t last_ = 0;
};

Graphs& graphs() {
  static Graphs* const all = new Graphs;  // never destroyed: at the end of the process CUDA may be gone already
  return *all;
}

int64_t begin_graph(const Tensor& on_device) {
  const OnDevice device(on_device.device());
  auto graph = std::make_unique<Graph>(on_device.device());
  return graph->begin() ? graphs().add(std::move(graph)) : 0;
}

bool end_graph(const Tensor& on_device, int64_t graph) {
  const OnDevice device(on_device.device());
  return graphs().at(graph).end();
}

void replay_graph(const Tensor& on_device, int64_t graph) {
  const OnDevice device(on_device.device());
  graphs().at(graph).replay(where(on_device).stream);
}

void release_graph(const Tensor& on_device, int64_t graph) {
  const OnDevice device(on_device.device());
  graphs().remove(graph);
}

// What is kept for later is about what the work that is to be recorded takes.
bool make_room(const Tensor& on_device) {
  using c10::CachingAllocator::StatType;
  const OnDevice device(on_device.device());
  const auto stats = allocator().getDeviceStats(on_device.device().index());
  const auto all = static_cast<size_t>(StatType::AGGREGATE);
  const int64_t kept = stats.reserved_bytes[all].current - stats.allocated_bytes[all].current;
  size_t free = 0, total = 0;
  if (cudaMemGetInfo(&free, &total) != cudaSuccess || free < static_cast<size_t>(kept)) return false;
  allocator().emptyCache();
  return true;
}

TORCH_LIBRARY_IMPL(concord_graph, CUDA, m) {
  m.impl("begin", begin_graph);
  m.impl("end", end_graph);
  m.impl("replay", replay_graph);
  m.impl("release", release_graph);
  m.impl("make_room", make_room);
}

}  // namespace
}  // namespace concord::cuda::torch_side
