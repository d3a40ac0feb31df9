// Work that a device is given again and again, always on the same tensors: recorded once and from then on started with
// one call, where the device's operator library can record. There the host no longer limits a step of many small
// kernels.
//
// Example, given const at::Tensor& x, const at::Tensor& y:
//   GraphedCallable work(x.device(), "the doubling", [&] { y.copy_(x.mul(2)); });
//   work.run();  // at once, which also lets kernels load and choose
//   work.run();  // recorded, then replayed; from here on replayed
//
// What is recorded are the kernels with their arguments. So |work| may only read and write tensors whose memory stays
// where it is from one run to the next, and must not depend on the host's numbers that change; and since a recording
// that fails is followed by a run without one, what it does on the host has to be the same if it is done twice. Memory
// that it allocates belongs to the recording, and is the same in each replay.
//
// A device records if operators of the library "concord_graph" are registered for it:
//   begin(Tensor on_device) -> int             what this thread enqueues from here on is recorded, not done; 0: it
//                                              cannot be
//   end(Tensor on_device, int graph) -> bool   whether all of it was recorded; the thread goes on as before in any case
//   replay(Tensor on_device, int graph) -> ()  enqueues it on the current stream
//   release(Tensor on_device, int graph) -> () also of a recording that failed; replays in the queue still run
//   make_room(Tensor on_device) -> bool        gives back what libtorch keeps for later, if as much as that is free
//                                              besides
// Elsewhere, and for work that waits for the device, each run is a call of |work|.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <functional>
#include <string>

namespace concord {

// Threads: one at a time, always the same.
class GraphedCallable {
 public:
  // A recording has memory of its own, which nothing else can use. |large| work is recorded only if there is room for
  // it besides what libtorch keeps for work that is not; that is given back first, so that no more is in use than
  // before.
  enum class Memory { small, large };
  // |name| is what a log line calls the work that cannot be recorded.
  GraphedCallable(c10::Device device, std::string name, std::function<void()> work, Memory memory = Memory::small);
  ~GraphedCallable();  // waits for nothing; enqueue no more on the memory of a recording
  GraphedCallable(const GraphedCallable&) = delete;
  GraphedCallable& operator=(const GraphedCallable&) = delete;

  // Does the work, or enqueues it. Throws what the work throws when it is not being recorded.
  void run();
  bool is_recorded() const { return state_ == State::recorded; }

  static bool is_possible(c10::Device device);  // whether work on it can be recorded

 private:
  enum class State { fresh, warm, recorded, refused };

  bool record();
  void release();

  at::Tensor on_device_;  // says to the dispatcher which device's operators are meant
  std::string name_;
  std::function<void()> work_;
  Memory memory_;
  State state_ = State::fresh;
  int64_t graph_ = 0;
};

}  // namespace concord
