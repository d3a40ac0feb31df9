// Walks the moves of core/parallel/offload/activation_moves.h: inputs of recomputed layers are copied to pinned host
// memory on their own stream, in parallel with the layers, and back ahead of backward, which may run once. Same bits as
// without.
//
// Host buffers are allocated at first use and reused by later passes; their number is that of the moved inputs of all
// passes whose graphs exist at a time. On the device at most two moved inputs of a pass exist at a time.
//
// Example, given ActivationOffload& offload, RngTracker& rng, const TensorFunction& layer, at::Tensor x:
//   #include <ATen/core/Tensor.h>
//   #include "core/parallel/recompute.h"
//   const auto pass = offload.begin_pass();
//   for (int64_t unit = 0; unit < 4; ++unit) x = recompute(layer, {x}, rng, pass->input_of(unit))[0];
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "core/parallel/offload/activation_moves.h"
#include "core/parallel/recompute.h"
#include "platform/cpp/platform.hpp"

namespace concord {

// Threads: one at a time, also with the backward of its passes. Graphs may outlive it.
class ActivationOffload {
 public:
  // |moves| of a chunk with this many recomputed |units|.
  ActivationOffload(const Device& device, std::vector<ActivationMove> moves, int64_t units);

  // The inputs of one forward pass; every graph of the pass shares it.
  class Pass;
  std::shared_ptr<Pass> begin_pass() const;

  struct Traffic {
    int64_t to_host = 0, to_device = 0;  // bytes moved so far
    int64_t pinned = 0;                  // bytes of host memory that are allocated
  };
  Traffic traffic() const;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

class ActivationOffload::Pass : public std::enable_shared_from_this<Pass> {
 public:
  explicit Pass(std::shared_ptr<State> state);
  ~Pass();
  Pass(const Pass&) = delete;
  Pass& operator=(const Pass&) = delete;

  // Stores the single input of |unit|. Call for all recomputed units in order.
  std::shared_ptr<SegmentInputs> input_of(int64_t unit);

 private:
  friend struct InputOfUnit;
  struct Slot;
  void save(int64_t unit, const at::Tensor& input);
  at::Tensor load(int64_t unit);
  void run_moves(ActivationMove::Pass pass, int64_t at);
  void send(Slot& slot);
  void fetch(Slot& slot);
  void release_sent();

  std::shared_ptr<State> state_;
  std::vector<Slot> slots_;  // one per unit
};

}  // namespace concord
