#include "trainer/step_graph.h"

#include "platform/loader/host.h"

namespace concord {
namespace {

constexpr int kIdenticalBefore = 2;  // the first step often differs from the rest: kernels are loaded and selected
constexpr int kMaxWasted = 3;        // recordings; steps that keep changing are not worth more of them
constexpr int kLasting = 100;        // replays after which a recording was not wasted

bool have_one_shape(const at::Tensor& a, const at::Tensor& b) {
  return a.defined() == b.defined() && (!a.defined() || a.sizes() == b.sizes());
}

// Returns whether two batches differ in their tokens only; the host reads everything else.
bool can_replay(const MicroBatch& a, const MicroBatch& b) {
  const auto is_plain = [](const MicroBatch& each) {
    return !each.position_ids.defined() && each.cu_seqlens.empty() && each.pairs.empty() && each.margins.empty() &&
           !each.pixel_values.defined();
  };
  return is_plain(a) && is_plain(b) && have_one_shape(a.input_ids, b.input_ids) && have_one_shape(a.labels, b.labels);
}

}  // namespace

bool can_replay(const PassInputs& a, const PassInputs& b) {
  if (a.batches.size() != b.batches.size() || a.loss_scale != b.loss_scale) return false;
  if (a.weights != b.weights || a.router_weights != b.router_weights) return false;
  if (a.has_fp8_history != b.has_fp8_history) return false;
  for (size_t i = 0; i < a.batches.size(); ++i) {
    if (!can_replay(a.batches[i], b.batches[i])) return false;
  }
  return !a.batches.empty();
}

StepGraph::StepGraph(c10::Device device, bool is_wanted)
    : device_(device), is_wanted_(is_wanted && GraphedCallable::is_possible(device)) {}

at::Tensor StepGraph::run_or_replay(const PassInputs& inputs, const Passes& run, const Replayed& replayed) {
  if (!is_wanted_ || inputs.defer_reduction) return run(inputs).losses;
  if (can_replay(first_, inputs)) {
    ++identical_;
  } else {
    identical_ = 0;
    first_ = inputs;
    end_recording();
  }
  if (!work_ && identical_ >= kIdenticalBefore && wasted_ < kMaxWasted) begin_recording(inputs, run);
  return work_ ? run_recorded(inputs, replayed) : run(inputs).losses;
}

void StepGraph::begin_recording(const PassInputs& inputs, const Passes& run) {
  fixed_ = inputs;
  work_.emplace(device_, "a step", [this, run] { passes_ = run(fixed_); }, GraphedCallable::Memory::large);
}

void StepGraph::end_recording() {
  if (work_ && replays_ < kLasting) ++wasted_;
  work_.reset();
  passes_ = {};
  replays_ = 0;
}

at::Tensor StepGraph::run_recorded(const PassInputs& inputs, const Replayed& replayed) {
  for (size_t i = 0; i < inputs.batches.size(); ++i) {
    const MicroBatch &from = inputs.batches[i], &to = fixed_.batches[i];
    if (to.input_ids.is_same(from.input_ids)) continue;  // the step that is being recorded
    to.input_ids.copy_(from.input_ids);
    if (to.labels.defined()) to.labels.copy_(from.labels);
  }
  const bool was_recorded = work_->is_recorded();
  work_->run();
  if (work_->is_recorded()) {
    replayed(fixed_, passes_);
    ++replays_;
    if (!was_recorded) {
      loader::log(CONCORD_LOG_INFO, "train",
                  "the passes of a step are recorded, and replayed from here on (replay_steps)");
    }
  }
  return passes_.losses;
}

}  // namespace concord
