#include "core/torch/graphed_callable.h"

#include <ATen/ops/empty.h>
#include <fmt/core.h>
#include <torch/library.h>

#include <exception>
#include <optional>
#include <string>
#include <utility>

#include "platform/loader/error.h"
#include "platform/loader/host.h"

namespace concord {
namespace {

using at::Tensor;

int64_t no_recording(const Tensor&) { return 0; }
bool no_room(const Tensor&) { return false; }
bool nothing_to_end(const Tensor&, int64_t) { return false; }
void nothing_to_do(const Tensor&, int64_t) {}

TORCH_LIBRARY_FRAGMENT(concord_graph, m) {
  m.def("begin(Tensor on_device) -> int");
  m.def("end(Tensor on_device, int graph) -> bool");
  m.def("replay(Tensor on_device, int graph) -> ()");
  m.def("release(Tensor on_device, int graph) -> ()");
  m.def("make_room(Tensor on_device) -> bool");
}
TORCH_LIBRARY_IMPL(concord_graph, CompositeExplicitAutograd, m) {
  m.impl("begin", no_recording);
  m.impl("end", nothing_to_end);
  m.impl("replay", nothing_to_do);
  m.impl("release", nothing_to_do);
  m.impl("make_room", no_room);
}

c10::OperatorHandle graph_operator(const char* name) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "");
}

}  // namespace

GraphedCallable::GraphedCallable(c10::Device device, std::string name, std::function<void()> work, Memory memory)
    : on_device_(at::empty({0}, at::TensorOptions(device))),
      name_(std::move(name)),
      work_(std::move(work)),
      memory_(memory) {
  if (!is_possible(device)) state_ = State::refused;
}

GraphedCallable::~GraphedCallable() { release(); }

void GraphedCallable::release() {
  static const auto release = graph_operator("concord_graph::release").typed<void(const Tensor&, int64_t)>();
  if (graph_ != 0) release.call(on_device_, std::exchange(graph_, 0));
}

bool GraphedCallable::is_possible(c10::Device device) {
  static const c10::OperatorHandle begin = graph_operator("concord_graph::begin");
  return begin.hasKernelForDispatchKey(c10::computeDispatchKey(std::nullopt, std::nullopt, device));
}

// An exception while recording is not an error of the work: it may wait for the device, which executes nothing yet.
bool GraphedCallable::record() {
  static const auto begin = graph_operator("concord_graph::begin").typed<int64_t(const Tensor&)>();
  static const auto end = graph_operator("concord_graph::end").typed<bool(const Tensor&, int64_t)>();
  static const auto make_room = graph_operator("concord_graph::make_room").typed<bool(const Tensor&)>();
  std::string problem;
  try {
    if (memory_ == Memory::large && !make_room.call(on_device_)) {
      problem = "the device has too little memory left";
    } else {
      graph_ = begin.call(on_device_);
    }
    if (graph_ != 0) work_();
  } catch (const std::exception& error) {
    problem = error.what();
  }
  if (graph_ != 0 && end.call(on_device_, graph_) && problem.empty()) return true;
  release();  // frees memory now, since running without a recording needs the same amount again
  loader::log(memory_ == Memory::large ? CONCORD_LOG_INFO : CONCORD_LOG_DEBUG, "core",
              fmt::format("{} cannot be recorded, so it is enqueued kernel by kernel each time: {}", name_,
                          problem.empty() ? "the device rejects it" : problem));
  return false;
}

void GraphedCallable::run() {
  static const auto replay = graph_operator("concord_graph::replay").typed<void(const Tensor&, int64_t)>();
  if (state_ == State::warm) state_ = record() ? State::recorded : State::refused;
  if (state_ == State::recorded) return replay.call(on_device_, graph_);
  work_();
  if (state_ == State::fresh) state_ = State::warm;
}

}  // namespace concord
