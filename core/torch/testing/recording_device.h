// A device on the cpu that supports recording: instead of kernels it records calls of operators with their tensors.
// Work that allocates new tensors for its state, or depends on a host value, thus gives different results when it is
// replayed, as on a real device. Include in only one source of a test program, since it registers operators.
#pragma once

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>

#include <iterator>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace concord {
namespace {

constexpr auto kRecording = c10::DispatchKey::TESTING_ONLY_GenericMode;

struct Call {
  c10::OperatorHandle op;
  torch::jit::Stack arguments, results;
};

class Recording {
 public:
  void add(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
    const c10::impl::ExcludeDispatchKeyGuard directly(kRecording);
    const std::string& name = op.schema().name();
    if (name == "aten::item" || name == "aten::_local_scalar_dense" || name == "aten::equal" || --left_ == 0) {
      throw std::runtime_error(name + " is not permitted while recording");
    }
    const size_t count = op.schema().arguments().size();
    Call call{op, {stack->end() - static_cast<std::ptrdiff_t>(count), stack->end()}, {}};
    for (size_t i = 0; i < count; ++i) {
      const auto* alias = op.schema().arguments()[i].alias_info();
      if (alias == nullptr || !alias->isWrite()) continue;
      for (const at::Tensor& each : tensors_in(call.arguments[i])) written_.emplace_back(each, each.clone());
    }
    op.callBoxed(*stack);
    call.results = {stack->end() - static_cast<std::ptrdiff_t>(op.schema().returns().size()), stack->end()};
    calls_.push_back(std::move(call));
  }

  // Reverts all writes: a device executes nothing while it records.
  void take_back() {
    while (!written_.empty()) {
      written_.back().first.copy_(written_.back().second);
      written_.pop_back();
    }
  }

  void replay() const {
    for (const Call& call : calls_) {
      torch::jit::Stack stack = call.arguments;
      call.op.callBoxed(stack);
      for (size_t i = 0; i < stack.size(); ++i) {
        const auto made = tensors_in(stack[i]), kept = tensors_in(call.results[i]);
        for (size_t j = 0; j < made.size(); ++j) {
          if (made[j].data_ptr() != kept[j].data_ptr()) kept[j].copy_(made[j]);
        }
      }
    }
  }

  void fail_after(int64_t calls) { left_ = calls; }
  int64_t size() const { return std::ssize(calls_); }

 private:
  static std::vector<at::Tensor> tensors_in(const c10::IValue& value) {
    if (value.isTensor() && value.toTensor().defined()) return {value.toTensor()};
    return value.isTensorList() ? value.toTensorVector() : std::vector<at::Tensor>();
  }

  std::vector<Call> calls_;
  std::vector<std::pair<at::Tensor, at::Tensor>> written_;  // with their previous values
  int64_t left_ = -1;
};

struct FakeDevice {
  std::unique_ptr<Recording> recording;
  std::optional<c10::impl::IncludeDispatchKeyGuard> records;
  int64_t fails_after = -1;  // number of calls; -1: never
  bool refuses = false;
  int64_t calls = 0;  // in the last recording
  bool has_room = true;
  int replays = 0, releases = 0;
};
std::unique_ptr<FakeDevice> device;

void record_call(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
  if (op.schema().name().starts_with("concord_graph::")) {
    const c10::impl::ExcludeDispatchKeyGuard directly(kRecording);
    return op.callBoxed(*stack);
  }
  device->recording->add(op, stack);
}
TORCH_LIBRARY_IMPL(_, TESTING_ONLY_GenericMode, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&record_call>());
}

int64_t begin_recording(const at::Tensor&) {
  if (device->refuses) return 0;
  device->recording = std::make_unique<Recording>();
  device->recording->fail_after(device->fails_after);
  device->records.emplace(kRecording);
  return 1;
}
bool end_recording(const at::Tensor&, int64_t) {
  device->records.reset();
  const at::NoGradGuard no_grad;
  device->recording->take_back();
  device->calls = device->recording->size();
  return true;
}
void replay_recording(const at::Tensor&, int64_t) {
  const at::NoGradGuard no_grad;
  const at::AutoDispatchBelowADInplaceOrView kernels;
  device->recording->replay();
  ++device->replays;
}
void release_recording(const at::Tensor&, int64_t) {
  device->recording.reset();
  ++device->releases;
}
bool make_room(const at::Tensor&) { return device->has_room; }
TORCH_LIBRARY_IMPL(concord_graph, CPU, m) {
  m.impl("begin", begin_recording);
  m.impl("end", end_recording);
  m.impl("replay", replay_recording);
  m.impl("release", release_recording);
  m.impl("make_room", make_room);
}

}  // namespace
}  // namespace concord
