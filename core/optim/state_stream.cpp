#include "core/optim/state_stream.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>

#include "core/base/code_map.h"
#include "core/optim/main_weights.h"
#include "core/optim/narrow_state.h"
#include "core/torch/device.h"

namespace concord {

namespace {

// Calls visitor(elements, type, tensor of the segment) for each tensor of its state, in the order of a chunk. Moments
// and scales are appended.
template <class Visitor>
void each_tensor(Segment& segment, const OffloadedState& state, Visitor&& visitor) {
  const int64_t size = segment.size();
  if (has_main(segment)) {
    const auto type = main_weights_type(state.precision, segment.buffer->values().scalar_type());
    if (type == c10::kFloat) {
      visitor(size, type, segment.weights);
    } else if (type != c10::ScalarType::Undefined) {
      visitor(size, type, segment.remainder);
    }
  }
  segment.moments.clear();
  segment.scales.clear();
  for (const std::string& key : state.moments) {
    const c10::ScalarType type = state.type(key, *segment.parameter);
    visitor(size, type, segment.moments.emplace_back());
    at::Tensor& scales = segment.scales.emplace_back();
    if (has_scales(type)) visitor(size / kStateBlock, c10::kFloat, scales);
  }
  if (state.has_average) visitor(size, c10::kFloat, segment.average);
}

constexpr int64_t kFloat = sizeof(float);

int64_t bytes_of(int64_t elements, c10::ScalarType type) {
  return elements * static_cast<int64_t>(c10::elementSize(type));
}

// Sets the tensors of the state of |segment| to parts of |memory| from the byte |*offset| on, which it moves past
// them. Returns their bytes without gaps.
int64_t place(Segment& segment, const OffloadedState& state, const at::Tensor& memory, int64_t* offset) {
  int64_t all = 0;
  each_tensor(segment, state, [&](int64_t elements, c10::ScalarType type, at::Tensor& tensor) {
    const int64_t bytes = bytes_of(elements, type);
    tensor = memory.narrow(0, *offset / kFloat, stream_aligned(bytes) / kFloat).view(type).narrow(0, 0, elements);
    *offset += stream_aligned(bytes);
    all += bytes;
  });
  return all;
}

}  // namespace

std::vector<StreamChunk> stream_chunks(const std::vector<Segment*>& segments, const OffloadedState& state,
                                       int64_t elements) {
  std::vector<StreamPart> parts;
  for (const Segment* segment : segments) {
    Segment copy = *segment;
    StreamPart& part = parts.emplace_back(StreamPart{segment->size(), 0});
    each_tensor(copy, state, [&](int64_t count, c10::ScalarType type, at::Tensor&) {
      part.bytes += stream_aligned(bytes_of(count, type));
    });
  }
  return pack_chunks(parts, elements);
}

StateStream::StateStream(const Device& device, std::vector<Segment*> segments, const OffloadedState& state,
                         int64_t elements)
    : device_(device),
      chunks_(stream_chunks(segments, state, elements)),
      moves_(stream_moves(static_cast<int64_t>(chunks_.size()))),
      host_(device.platform(), host_bytes(chunks_)),
      in_(device),
      out_(device) {
  const int64_t count = std::min(kStreamBuffers, static_cast<int64_t>(chunks_.size()));
  for (int64_t i = 0; i < count; ++i) {
    const auto bytes = stream_buffer_bytes(chunks_) / count;
    const auto fp32 = segments.front()->buffer->values().options().dtype(at::kFloat);
    Buffer& buffer = buffers_.emplace_back(device);
    buffer.memory = at::empty({bytes / kFloat}, fp32);
    buffer.left.record(torch_stream(device));  // earlier work may still use that memory
  }
  parts_.reserve(segments.size());
  for (size_t c = 0; c < chunks_.size(); ++c) {
    int64_t on_host = 0, on_device = 0;
    const at::Tensor host =
        at::from_blob(static_cast<char*>(host_.data()) + chunks_[c].offset, {chunks_[c].bytes / kFloat}, at::kFloat);
    for (size_t i = chunks_[c].begin; i < chunks_[c].end; ++i) {
      Segment& segment = *segments[i];
      segment.grads = GradBuffer::part(segment.buffer->grads(), segment.range);
      (has_main(segment) ? segment.values : segment.weights) = parameter_values(segment);
      state_bytes_ += place(segment, state, host, &on_host);
      for (size_t m = 0; m < segment.moments.size(); ++m) {
        zero_moment(segment.moments[m], segment.scales[m], state.moments[m]);
      }
      place(parts_.emplace_back(segment), state, buffers_[c % buffers_.size()].memory, &on_device);
    }
  }
  for (Segment& part : parts_) part_pointers_.push_back(&part);
}

StateStream::~StateStream() {
  try {
    wait();
  } catch (const Error&) {
    // The failed work was the last step's, which reported it.
  }
}

void StateStream::wait() const {
  in_.synchronize();
  out_.synchronize();
}

void StateStream::prefetch() {
  traffic_ = {};
  for (size_t i = 0; i < buffers_.size(); ++i) run(moves_[i], {});
}

void StateStream::step(const Update& update) {
  for (size_t i = buffers_.size(); i < moves_.size(); ++i) run(moves_[i], update);
}

void StateStream::run(const StreamMove& move, const Update& update) {
  const StreamChunk& chunk = chunks_[static_cast<size_t>(move.chunk)];
  Buffer& buffer = buffers_[static_cast<size_t>(move.buffer)];
  char* const host = static_cast<char*>(host_.data()) + chunk.offset;
  switch (move.kind) {
    case StreamMove::Kind::in:
      buffer.left.make_wait(in_);
      copy(in_, buffer.memory.data_ptr(), host, chunk.bytes, CopyKind::kHostToDevice);
      buffer.entered.record(in_);
      traffic_.to_device += chunk.bytes;
      break;
    case StreamMove::Kind::update:
      buffer.entered.make_wait(torch_stream(device_));
      update(std::span(part_pointers_).subspan(chunk.begin, chunk.end - chunk.begin));
      buffer.updated.record(torch_stream(device_));
      break;
    case StreamMove::Kind::out:
      buffer.updated.make_wait(out_);
      copy(out_, host, buffer.memory.const_data_ptr(), chunk.bytes, CopyKind::kDeviceToHost);
      buffer.left.record(out_);
      traffic_.to_host += chunk.bytes;
      break;
  }
}

}  // namespace concord
