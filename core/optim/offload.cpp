#include "core/optim/offload.h"

#include <ATen/ops/from_blob.h>

#include "core/torch/device.h"

namespace concord {

int64_t offload_bytes(const std::vector<Segment*>& segments, size_t moments) {
  int64_t bytes = 0;
  for (const Segment* segment : segments) {
    const auto type = segment->buffer->values().scalar_type();
    const size_t values = type == c10::kFloat ? 0 : c10::elementSize(type);
    const size_t grads = c10::elementSize(segment->buffer->grads().scalar_type());
    bytes += segment->size() * static_cast<int64_t>(grads + (1 + moments) * sizeof(float) + values);
  }
  return bytes;
}

Offload::Offload(const Device& device, std::vector<Segment*> segments, size_t moments)
    : device_(device), segments_(std::move(segments)), stream_(device), ready_(device), sent_(device) {
  for (Segment* segment : segments_) {
    const int64_t size = segment->size();
    const auto type = segment->buffer->values().scalar_type();
    segment->grads = pinned(size, segment->buffer->grads().scalar_type());
    segment->weights = pinned(size, c10::kFloat);
    if (type != c10::kFloat) segment->values = pinned(size, type);
    for (size_t i = 0; i < moments; ++i) segment->moments.push_back(pinned(size, c10::kFloat).zero_());
    state_bytes_ += static_cast<int64_t>(moments + 1) * size * static_cast<int64_t>(sizeof(float));
    arrivals_.emplace_back(device_);
  }
}

Offload::~Offload() {
  try {
    stream_.synchronize();
  } catch (const Error&) {
    // The failed work was the last step's, which reported it.
  }
}

at::Tensor Offload::pinned(int64_t elements, c10::ScalarType type) {
  const auto bytes = elements * static_cast<int64_t>(c10::elementSize(type));
  const HostBuffer& buffer = memory_.emplace_back(device_.platform(), bytes);
  return at::from_blob(buffer.data(), {elements}, at::TensorOptions(type));
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
