// concord_graph on Ascend: libtorch's graphs of an accelerator, which torch_npu implements with aclmdlRICapture*. What
// a thread enqueues is captured on a dedicated stream, because the default stream cannot be captured; memory that
// libtorch hands out meanwhile comes from a pool that belongs to the graph. If CANN or torch_npu cannot capture, the
// reason is logged and work is enqueued operator by operator.
#include <ATen/core/GraphImplInterface.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/library.h>

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>

namespace concord::ascend::torch_side {
namespace {

using at::Tensor;

std::unique_ptr<at::GraphImplInterface> new_implementation(c10::DeviceType type) {
  if (!at::has_graph_impl(type)) throw std::runtime_error("this torch_npu has no graphs");
  return at::GraphImplRegistry()->Create(c10::DeviceTypeName(type, /*lower_case=*/false), at::GraphImplArgs{});
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
      : guard_(device.type()), stream_(capture_stream(device)), captured_(new_implementation(device.type())) {}
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  // Throws if the device cannot capture; the thread's stream is then unchanged.
  void begin() {
    const c10::Stream before = guard_.exchangeStream(stream_);
    try {
      // Thread-local: what other threads do neither fails nor ends the capture.
      captured_->capture_begin({0, 0}, at::GraphCaptureMode::ThreadLocal);
    } catch (...) {
      guard_.exchangeStream(before);
      throw;
    }
    before_.emplace(before);
  }

  // Leaves the thread as it was before begin, whatever happened in between.
  bool end() {
    bool works = true;
    try {
      captured_->capture_end();
    } catch (const std::exception&) {
      works = false;
    }
    guard_.exchangeStream(*before_);
    return works;
  }

  void replay() { captured_->replay(); }

 private:
  c10::impl::VirtualGuardImpl guard_;
  c10::Stream stream_;
  std::unique_ptr<at::GraphImplInterface> captured_;
  std::optional<c10::Stream> before_;  // the thread's, while it captures
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
  static Graphs* const all = new Graphs;  // never destroyed: at the end of the process CANN may be gone already
  return *all;
}

// What it throws is the reason that core logs.
int64_t begin_graph(const Tensor& on_device) {
  auto graph = std::make_unique<Graph>(on_device.device());
  graph->begin();
  return graphs().add(std::move(graph));
}

bool end_graph(const Tensor&, int64_t graph) { return graphs().at(graph).end(); }
void replay_graph(const Tensor&, int64_t graph) { graphs().at(graph).replay(); }
void release_graph(const Tensor&, int64_t graph) { graphs().remove(graph); }

// What is kept for later is about what the work that is to be recorded takes.
bool make_room(const Tensor& on_device) {
  using c10::CachingAllocator::StatType;
  c10::DeviceAllocator* const allocator = c10::getDeviceAllocator(on_device.device().type());
  const auto stats = allocator->getDeviceStats(on_device.device().index());
  const auto all = static_cast<size_t>(StatType::AGGREGATE);
  const int64_t kept = stats.reserved_bytes[all].current - stats.allocated_bytes[all].current;
  const auto [free, total] = allocator->getMemoryInfo(on_device.device().index());
  if (free < static_cast<size_t>(kept)) return false;
  allocator->emptyCache();
  return true;
}

TORCH_LIBRARY_IMPL(concord_graph, PrivateUse1, m) {
  m.impl("begin", begin_graph);
  m.impl("end", end_graph);
  m.impl("replay", replay_graph);
  m.impl("release", release_graph);
  m.impl("make_room", make_room);
}

}  // namespace
}  // namespace concord::ascend::torch_side
