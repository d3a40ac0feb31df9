#include "core/optim/offload.h"

#include <ATen/ops/from_blob.h>

#include "core/base/code_map.h"
#include "core/optim/main_weights.h"
#include "core/optim/narrow_state.h"
#include "core/torch/device.h"

namespace concord {

namespace {

constexpr int64_t kAlignment = 64;  // bytes

// The type of what the host has for main weights, in addition to the parameter; Undefined: nothing.
c10::ScalarType main_type(const Segment& segment, const OffloadedState& state) {
  return main_weights_type(state.precision, segment.buffer->values().scalar_type());
}

}  // namespace

int64_t kept_bytes(const std::vector<Segment*>& segments, const OffloadedState& state) {
  size_t bytes = 0;
  for (const Segment* segment : segments) {
    const auto size = static_cast<size_t>(segment->size());
    const c10::ScalarType main = main_type(*segment, state);
    if (main != c10::ScalarType::Undefined) bytes += size * c10::elementSize(main);
    if (state.has_average) bytes += size * sizeof(float);
    for (const std::string& key : state.moments) {
      const c10::ScalarType type = state.type(key, *segment->parameter);
      bytes += size * c10::elementSize(type) + (has_scales(type) ? size / kStateBlock * sizeof(float) : 0);
    }
  }
  return static_cast<int64_t>(bytes);
}

int64_t offload_bytes(const std::vector<Segment*>& segments, const OffloadedState& state) {
  int64_t bytes = kept_bytes(segments, state);
  for (const Segment* segment : segments) {
    const auto type = segment->buffer->values().scalar_type();
    const size_t values = type == c10::kFloat ? 0 : c10::elementSize(type);
    const size_t grads = c10::elementSize(segment->buffer->grads().scalar_type());
    bytes += segment->size() * static_cast<int64_t>(grads + values);
  }
  return bytes;
}

Offload::Offload(const Device& device, std::vector<Segment*> segments, const OffloadedState& state)
    : device_(device), segments_(std::move(segments)), stream_(device), ready_(device), sent_(device) {
  reserve(offload_bytes(segments_, state), segments_.size(), state);
  for (Segment* segment : segments_) {
    const int64_t size = segment->size();
    const auto type = segment->buffer->values().scalar_type();
    segment->grads = pinned(size, segment->buffer->grads().scalar_type());
    if (type != c10::kFloat) segment->values = pinned(size, type);
    allocate_state(*segment, state);
    arrivals_.emplace_back(device_);
  }
}

void Offload::keep(const std::vector<Segment*>& segments, const OffloadedState& state) {
  reserve(kept_bytes(segments, state), segments.size(), state);
  for (Segment* segment : segments) {
    segment->grads = GradBuffer::part(segment->buffer->grads(), segment->range);
    segment->values = GradBuffer::part(segment->buffer->values(), segment->range);
    allocate_state(*segment, state);
  }
}

void Offload::allocate_state(Segment& segment, const OffloadedState& state) {
  const int64_t size = segment.size();
  const c10::ScalarType main = main_type(segment, state);
  if (main != c10::ScalarType::Undefined) {
    (main == c10::kFloat ? segment.weights : segment.remainder) = pinned(size, main);
  }
  for (const std::string& key : state.moments) {
    const c10::ScalarType type = state.type(key, *segment.parameter);
    segment.moments.push_back(pinned(size, type));
    segment.scales.push_back(has_scales(type) ? pinned(size / kStateBlock, c10::kFloat) : at::Tensor());
    zero_moment(segment.moments.back(), segment.scales.back(), key);
  }
  if (state.has_average) segment.average = pinned(size, c10::kFloat);
  state_bytes_ += kept_bytes({&segment}, state);
}

Offload::~Offload() {
  try {
    stream_.synchronize();
  } catch (const Error&) {
    // The failed work was the last step's, which reported it.
  }
}

// All tensors are parts of one allocation: pinning memory takes a lock and a system call each time.
void Offload::reserve(int64_t bytes, size_t segments, const OffloadedState& state) {
  const size_t tensors = segments * (4 + 2 * state.moments.size());  // at most
  memory_.emplace_back(device_.platform(), bytes + static_cast<int64_t>(tensors) * kAlignment);
  used_ = 0;
}

at::Tensor Offload::pinned(int64_t elements, c10::ScalarType type) {
  char* const begin = memory_.back().as<char>() + used_;
  const auto bytes = elements * static_cast<int64_t>(c10::elementSize(type));
  used_ += (bytes + kAlignment - 1) / kAlignment * kAlignment;
  return at::from_blob(begin, {elements}, at::TensorOptions(type));
}

void Offload::fetch() {
  ready_.record(torch_stream(device_));
  ready_.make_wait(stream_);
  for (size_t i = 0; i < segments_.size(); ++i) {
    const Segment& segment = *segments_[i];
    const at::Tensor from = GradBuffer::part(segment.buffer->grads(), segment.range);
    copy(stream_, segment.grads.data_ptr(), from.const_data_ptr(), static_cast<int64_t>(from.nbytes()),
         CopyKind::kDeviceToHost);
    arrivals_[i].record(stream_);
  }
}

void Offload::step(const UpdateRule& rule, const RuleStep& step) {
  for (size_t i = 0; i < segments_.size(); ++i) {
    arrivals_[i].synchronize();
    rule.step_on_host({&segments_[i], 1}, step);
    const Segment& segment = *segments_[i];
    const at::Tensor& from = segment.values.defined() ? segment.values : segment.weights;
    const at::Tensor to = GradBuffer::part(segment.buffer->values(), segment.range);
    copy(stream_, to.data_ptr(), from.const_data_ptr(), static_cast<int64_t>(from.nbytes()), CopyKind::kHostToDevice);
  }
  sent_.record(stream_);
  sent_.make_wait(torch_stream(device_));
}

}  // namespace concord
