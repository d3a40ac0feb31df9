// Optimizer state in pinned host memory that the device updates: it walks the moves of core/optim/plan/stream_moves.h.
// Each direction has its own stream, in parallel with each other and with the update. The numbers are those of
// state that stays on the device. Only for the optimizer.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <span>
#include <vector>

#include "core/optim/offload.h"
#include "core/optim/plan/stream_moves.h"
#include "core/optim/segment.h"
#include "platform/cpp/event.hpp"
#include "platform/cpp/memory.hpp"

namespace concord {

// Returns the chunks of |segments|, each of at most |elements| elements unless it is one segment.
std::vector<StreamChunk> stream_chunks(const std::vector<Segment*>& segments, const OffloadedState& state,
                                       int64_t elements);

// Threads: one at a time.
class StateStream {
 public:
  // Sets the tensors of |segments|, which outlive it: their state is on the host, gradients and parameters stay on the
  // device.
  StateStream(const Device& device, std::vector<Segment*> segments, const OffloadedState& state, int64_t elements);
  ~StateStream();  // waits for copies in flight
  StateStream(const StateStream&) = delete;
  StateStream& operator=(const StateStream&) = delete;

  int64_t state_bytes() const { return state_bytes_; }  // moments, main weights and EMA
  // Waits until the state is on the host, which may then read and change it.
  void wait() const;
  // Starts to copy the first chunks to the device. Every step() follows a prefetch(), with no change of the state in
  // between.
  void prefetch();
  // Calls update(parts of segments on the device), which enqueues on the current stream, once for every chunk. Does not
  // wait for the device.
  using Update = std::function<void(std::span<Segment* const>)>;
  void step(const Update& update);

  struct Traffic {
    int64_t to_device = 0, to_host = 0;  // bytes since the last prefetch
  };
  const Traffic& traffic() const { return traffic_; }

 private:
  struct Buffer {
    explicit Buffer(const Device& device) : entered(device), updated(device), left(device) {}
    at::Tensor memory;  // bytes of the device
    Event entered, updated, left;
  };

  void run(const StreamMove& move, const Update& update);

  Device device_;
  int64_t state_bytes_ = 0;
  std::vector<StreamChunk> chunks_;
  std::vector<StreamMove> moves_;
  HostBuffer host_;
  std::vector<Segment> parts_;           // on the device; parallel to the segments
  std::vector<Segment*> part_pointers_;  // to |parts_|
  std::vector<Buffer> buffers_;
  Stream in_, out_;
  Traffic traffic_;
};

}  // namespace concord
