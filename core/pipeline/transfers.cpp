#include "core/pipeline/transfers.h"

#include <ATen/ops/empty.h>
#include <fmt/core.h>

#include <utility>

#include "platform/loader/error.h"

namespace concord {
namespace {

// An encoded shape: the dtype, the number of dims, the sizes.
constexpr int64_t kMaxBoundaryDims = 8;
constexpr int64_t kShapeWords = 2 + kMaxBoundaryDims;

at::Tensor shape_of(const at::Tensor& value) {
  if (value.dim() > kMaxBoundaryDims) {
    throw Error(CONCORD_STATUS_INVALID_ARGUMENT,
                fmt::format("a stage returned a tensor of {} dims; with variable_seq_lengths the limit is {}",
                            value.dim(), kMaxBoundaryDims));
  }
  const at::Tensor words = at::empty({kShapeWords}, at::kLong).zero_();
  auto* at = words.mutable_data_ptr<int64_t>();
  *at++ = static_cast<int64_t>(value.scalar_type());
  *at++ = value.dim();
  for (const int64_t size : value.sizes()) *at++ = size;
  return words;
}

ValueSpec spec_of(const at::Tensor& shape) {
  const at::Tensor words = shape.to(at::kCPU);  // waits for the device
  const auto* at = words.const_data_ptr<int64_t>();
  return {std::vector<int64_t>(at + 2, at + 2 + at[1]), static_cast<at::ScalarType>(at[0])};
}

}  // namespace

void PipelineTransfers::post(std::vector<PipelineTransfer> batch) {
  complete();
  batch_ = std::move(batch);
  if (exchange_shapes_) post_shapes();
  if (shapes_.empty()) post_values();
}

void PipelineTransfers::post_shapes() {
  std::vector<Transfer> transfers;
  for (const PipelineTransfer& each : batch_) {
    if (!each.activation) continue;
    if (each.into == nullptr) {
      transfers.push_back(send(shape_of(each.value).to(device_), each.peer));
    } else {
      shapes_.push_back(at::empty({kShapeWords}, at::TensorOptions(device_).dtype(at::kLong)));
      transfers.push_back(recv(shapes_.back(), each.peer));
    }
  }
  if (!transfers.empty()) shapes_arrival_ = group_.batch_p2p(transfers);
}

void PipelineTransfers::receive_shapes() {
  shapes_arrival_.wait();
  auto shape = shapes_.begin();
  for (PipelineTransfer& each : batch_) {
    if (each.activation && each.into != nullptr) each.spec = spec_of(*shape++);
  }
  shapes_.clear();
}

void PipelineTransfers::post_values() {
  std::vector<Transfer> transfers;
  for (PipelineTransfer& each : batch_) {
    if (each.into == nullptr) {
      transfers.push_back(send(each.value.contiguous(), each.peer));
    } else {
      each.into->value = at::empty(each.spec->shape, at::TensorOptions(device_).dtype(each.spec->dtype));
      transfers.push_back(recv(each.into->value, each.peer));
    }
  }
  last_ = group_.batch_p2p(transfers);
  for (const PipelineTransfer& each : batch_) {
    if (each.into != nullptr) each.into->arrival = last_;
  }
  batch_.clear();
}

void PipelineTransfers::complete() {
  if (batch_.empty()) return;
  receive_shapes();
  post_values();
}

at::Tensor PipelineTransfers::take(Incoming& incoming) {
  if (!incoming.value.defined()) complete();
  Incoming taken = std::exchange(incoming, {});
  taken.arrival.wait();
  return std::move(taken.value);
}

void PipelineTransfers::finish() {
  complete();
  std::exchange(last_, {}).wait();
}

}  // namespace concord
