// The part of an optimizer that lives in the host's memory: its state and main weights in pinned memory, gradients
// copied there, parameters back, on a separate stream in parallel with what the device and the host compute. The
// matrices of Muon are an exception: their state is kept here, but Muon updates them on the device.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "core/optim/rules/update_rule.h"
#include "core/optim/segment.h"
#include "platform/cpp/event.hpp"
#include "platform/cpp/memory.hpp"

namespace concord {

// Tensors of the state that Offload holds for each segment.
struct OffloadedState {
  std::vector<std::string> moments = {};                                               // keys
  std::function<c10::ScalarType(const std::string& key, const Parameter&)> type = {};  // of a moment
  StatePrecision precision = {};                                                       // of main weights
  bool has_average = false;                                                            // the EMA of the weights
};

// Host memory that Offload takes for |segments|: gradients, main weights, state, and parameters of 16 bits.
int64_t offload_bytes(const std::vector<Segment*>& segments, const OffloadedState& state);
// Host memory that Offload::keep takes for |segments|: main weights and state.
int64_t kept_bytes(const std::vector<Segment*>& segments, const OffloadedState& state);

// Threads: one at a time.
class Offload {
 public:
  // |segments| outlive it; it sets their tensors. All of them are on the host.
  Offload(const Device& device, std::vector<Segment*> segments, const OffloadedState& state);
  ~Offload();  // waits for copies in flight
  Offload(const Offload&) = delete;
  Offload& operator=(const Offload&) = delete;

  // Sets the tensors of segments that the device updates: their gradients and parameters stay there.
  void keep(const std::vector<Segment*>& segments, const OffloadedState& state);

  int64_t state_bytes() const { return state_bytes_; }  // moments, main weights and EMA
  // Waits until the parameters are on the device: the host may then change its copies.
  void wait() const { stream_.synchronize(); }
  // Starts to copy the gradients, once the current stream's work so far is done.
  void fetch();
  // After fetch: piece by piece, as gradients arrive; parameters follow. The current stream waits for them.
  void step(const UpdateRule& rule, const RuleStep& step);

 private:
  // Allocates memory for the tensors of |segments| segments, which pinned() then returns.
  void reserve(int64_t bytes, size_t segments, const OffloadedState& state);
  at::Tensor pinned(int64_t elements, c10::ScalarType type);
  void allocate_state(Segment& segment, const OffloadedState& state);

  Device device_;
  std::vector<Segment*> segments_;
  int64_t state_bytes_ = 0;
  std::vector<HostBuffer> memory_;
  int64_t used_ = 0;  // bytes of the last of these
  Stream stream_;
  Event ready_;                  // the device has computed the gradients
  Event sent_;                   // the parameters are back
  std::vector<Event> arrivals_;  // one a segment
};

}  // namespace concord
