// A callable that is recorded once and then replayed with a single launch, like a CUDA graph, if the device's operator
// library supports it. Removes the host as the bottleneck of steps with many small kernels. The work must always use
// the same tensors.
//
// Example, given const at::Tensor& x, const at::Tensor& y:
//   GraphedCallable work(x.device(), "the doubling", [&] { y.copy_(x.mul(2)); });
//   work.run();  // runs directly, which also lets kernels load and be selected
//   work.run();  // records and replays; later calls replay
//
// A recording contains kernels with their arguments. So |work| may only read and write tensors whose memory does not
// move between runs, and must not depend on changing host values. If recording fails, |work| runs again without it, so
// its effects on the host must be idempotent. Memory that it allocates belongs to the recording, and is the same in
// each replay.
//
// A device supports recording if operators of the library "concord_graph" are registered for it:
//   begin(Tensor on_device) -> int             records later launches of this thread instead of executing them; 0: not
//                                              possible
//   end(Tensor on_device, int graph) -> bool   ends the recording; returns whether all launches were recorded
//   replay(Tensor on_device, int graph) -> ()  enqueues the recording on the current stream
//   release(Tensor on_device, int graph) -> () frees it, even if recording failed; enqueued replays still run
//   make_room(Tensor on_device) -> bool        frees libtorch's cached memory, if the same amount is free in addition
// Otherwise, and for work that waits for the device, each run calls |work|.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <functional>
#include <string>

namespace concord {

// Threads: one at a time, always the same thread.
class GraphedCallable {
 public:
  // A recording has its own memory, which nothing else can use. |large| work is recorded only if that fits in addition
  // to the memory that libtorch caches for other work; the cache is freed first, so that no more memory is in use than
  // before.
  enum class Memory { small, large };
  // |name| is used in the log line if the work cannot be recorded.
  GraphedCallable(c10::Device device, std::string name, std::function<void()> work, Memory memory = Memory::small);
  ~GraphedCallable();  // does not wait; do not enqueue further work on the memory of a recording
  GraphedCallable(const GraphedCallable&) = delete;
  GraphedCallable& operator=(const GraphedCallable&) = delete;

  // Runs the work, or enqueues its replay. Throws what the work throws, except while it is being recorded.
  void run();
  bool is_recorded() const { return state_ == State::recorded; }

  static bool is_possible(c10::Device device);  // whether |device| supports recording

 private:
  enum class State { fresh, warm, recorded, refused };

  bool record();
  void release();

  at::Tensor on_device_;  // selects the device's operators in the dispatcher
  std::string name_;
  std::function<void()> work_;
  Memory memory_;
  State state_ = State::fresh;
  int64_t graph_ = 0;
};

}  // namespace concord
