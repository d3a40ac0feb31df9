#include "core/parallel/offload/activation_offload.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <fmt/core.h>

#include <map>
#include <optional>
#include <utility>

#include "core/base/bytes_text.h"
#include "core/base/config_error.h"
#include "core/torch/device.h"
#include "platform/base/host_memory.hpp"
#include "platform/cpp/event.hpp"
#include "platform/cpp/memory.hpp"

namespace concord {

// All copies are on one stream, so a host buffer may be reused as soon as its last copy is enqueued.
struct ActivationOffload::State {
  State(const Device& on, std::vector<ActivationMove> list, int64_t count)
      : device(on), moves(std::move(list)), units(count), stream(on), ready(on) {}
  ~State() { finish(); }

  // Waits for all copies. Errors belong to the calls that read the data.
  void finish() noexcept {
    try {
      stream.synchronize();
    } catch (const Error&) {
    }
  }

  // Returns the smallest free buffer that is large enough. If there is none, a new one replaces a free one: passes have
  // inputs of various lengths.
  HostBuffer take(int64_t bytes) {
    auto found = free.lower_bound(bytes);
    if (found == free.end() && !free.empty()) {
      finish();
      traffic.pinned -= free.begin()->first;
      free.erase(free.begin());
    }
    if (found == free.end()) return allocate(bytes);
    HostBuffer buffer = std::move(found->second);
    free.erase(found);
    return buffer;
  }

  void give_back(HostBuffer buffer) {
    const int64_t bytes = buffer.bytes();
    free.emplace(bytes, std::move(buffer));
  }

  HostBuffer allocate(int64_t bytes) {
    if (const HostMemory memory = available_host_memory(); bytes > memory.available) {
      throw ConfigError(fmt::format(
          "cpu_offloading needs {} more of pinned host memory for a layer's input, in addition to {}, but {} are "
          "available ({}); set cpu_offloading_num_layers to fewer layers, or provide more memory",
          bytes_text(bytes), bytes_text(traffic.pinned), bytes_text(memory.available), memory.limit));
    }
    traffic.pinned += bytes;
    return {device.platform(), bytes};
  }

  Device device;
  std::vector<ActivationMove> moves;
  int64_t units;
  Stream stream;
  Event ready;                              // the device has reached the point at which a copy may start
  std::multimap<int64_t, HostBuffer> free;  // by size
  Traffic traffic;
};

struct ActivationOffload::Pass::Slot {
  explicit Slot(const Device& device) : copied(device) {}
  at::Tensor on_device;  // undefined: only on the host
  std::optional<HostBuffer> on_host;
  std::vector<int64_t> shape;
  at::TensorOptions options;
  Event copied;            // the newest copy
  bool is_moving = false;  // no stream has waited for it yet
};

// The input of a unit, kept by its graph.
struct InputOfUnit : SegmentInputs {
  InputOfUnit(std::shared_ptr<ActivationOffload::Pass> of, int64_t number) : pass(std::move(of)), unit(number) {}
  void save(const std::vector<at::Tensor>& inputs) override { pass->save(unit, inputs.at(0)); }
  std::vector<at::Tensor> load() override { return {pass->load(unit)}; }

  std::shared_ptr<ActivationOffload::Pass> pass;
  int64_t unit;
};

ActivationOffload::ActivationOffload(const Device& device, std::vector<ActivationMove> moves, int64_t units)
    : state_(std::make_shared<State>(device, std::move(moves), units)) {}

std::shared_ptr<ActivationOffload::Pass> ActivationOffload::begin_pass() const {
  return std::make_shared<Pass>(state_);
}

ActivationOffload::Traffic ActivationOffload::traffic() const { return state_->traffic; }

ActivationOffload::Pass::Pass(std::shared_ptr<State> state) : state_(std::move(state)) {
  for (int64_t unit = 0; unit < state_->units; ++unit) slots_.emplace_back(state_->device);
}

ActivationOffload::Pass::~Pass() {
  for (Slot& slot : slots_) {
    if (slot.is_moving) state_->finish();  // else the memory of a tensor could be reused during its copy
    if (slot.on_host) state_->give_back(std::move(*slot.on_host));
  }
}

std::shared_ptr<SegmentInputs> ActivationOffload::Pass::input_of(int64_t unit) {
  return std::make_shared<InputOfUnit>(shared_from_this(), unit);
}

void ActivationOffload::Pass::run_moves(ActivationMove::Pass pass, int64_t at) {
  for (const ActivationMove& move : state_->moves) {
    if (move.pass != pass || move.at != at) continue;
    Slot& slot = slots_[static_cast<size_t>(move.unit)];
    if (move.to == ActivationMove::To::host) {
      send(slot);
    } else if (slot.on_host && !slot.on_device.defined()) {
      fetch(slot);
    }
  }
}

void ActivationOffload::Pass::send(Slot& slot) {
  const auto bytes = static_cast<int64_t>(slot.on_device.nbytes());
  slot.on_host = state_->take(bytes);
  state_->ready.record(torch_stream(state_->device));
  state_->ready.make_wait(state_->stream);
  copy(state_->stream, slot.on_host->data(), slot.on_device.const_data_ptr(), bytes, CopyKind::kDeviceToHost);
  slot.copied.record(state_->stream);
  slot.is_moving = true;
  state_->traffic.to_host += bytes;
}

// The copy waits for the work so far, which may still use the memory that the tensor gets.
void ActivationOffload::Pass::fetch(Slot& slot) {
  slot.on_device = at::empty(slot.shape, slot.options);
  const auto bytes = static_cast<int64_t>(slot.on_device.nbytes());
  state_->ready.record(torch_stream(state_->device));
  state_->ready.make_wait(state_->stream);
  copy(state_->stream, slot.on_device.mutable_data_ptr(), slot.on_host->data(), bytes, CopyKind::kHostToDevice);
  slot.copied.record(state_->stream);
  state_->give_back(std::move(*std::exchange(slot.on_host, {})));
  slot.is_moving = true;
  state_->traffic.to_device += bytes;
}

// Frees the inputs that were sent during the previous unit. Later work, which may get their memory, waits for the copy.
void ActivationOffload::Pass::release_sent() {
  for (Slot& slot : slots_) {
    if (!slot.is_moving) continue;
    slot.copied.make_wait(torch_stream(state_->device));
    slot.is_moving = false;
    slot.on_device.reset();
  }
}

void ActivationOffload::Pass::save(int64_t unit, const at::Tensor& input) {
  release_sent();
  Slot& slot = slots_.at(static_cast<size_t>(unit));
  slot.on_device = input.detach().contiguous();
  slot.shape = input.sizes().vec();
  slot.options = input.options();
  run_moves(ActivationMove::Pass::forward, unit);
}

at::Tensor ActivationOffload::Pass::load(int64_t unit) {
  Slot& slot = slots_.at(static_cast<size_t>(unit));
  TORCH_CHECK(slot.on_device.defined() || slot.on_host, "the backward of a pass with cpu_offloading ran twice");
  if (!slot.on_device.defined()) fetch(slot);  // the backward of the next unit, which does this, was not needed
  if (slot.is_moving) slot.copied.make_wait(torch_stream(state_->device));
  slot.is_moving = false;
  const at::Tensor input = std::exchange(slot.on_device, {});
  run_moves(ActivationMove::Pass::backward, unit);
  return input;
}

}  // namespace concord
