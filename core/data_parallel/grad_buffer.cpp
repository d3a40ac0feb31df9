#include "core/data_parallel/grad_buffer.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>
#include <fmt/core.h>

#include <algorithm>

#include "core/base/config_error.h"

namespace concord {
namespace {

c10::ScalarType torch_type(DType dtype) {
  switch (dtype) {
    case DType::kF32: return c10::kFloat;
    case DType::kBF16: return c10::kBFloat16;
    case DType::kF16: return c10::kHalf;
    default: throw ConfigError(fmt::format("unsupported parameter dtype {}", to_string(dtype)));
  }
}

}  // namespace

BufferRange intersection(const BufferRange& a, const BufferRange& b) {
  const int64_t begin = std::max(a.begin, b.begin);
  return {begin, std::max(begin, std::min(a.end, b.end))};
}

GradBuffer::GradBuffer(BucketPlan::Buffer plan, const std::vector<Parameter*>& parameters, ProcessGroup& group)
    : plan_(std::move(plan)), parameters_(parameters), group_(&group) {
  const at::NoGradGuard no_grad;
  const auto device = parameters_.at(plan_.buckets.at(0).slots.at(0).parameter)->value.device();
  const auto options = at::TensorOptions(device);
  values_ = at::zeros({plan_.elements}, options.dtype(torch_type(plan_.dtype)));
  grads_ = at::zeros({plan_.elements}, options.dtype(torch_type(plan_.grad_dtype)));
  for (const BucketPlan::Bucket& bucket : plan_.buckets) {
    for (const BucketPlan::Slot& slot : bucket.slots) {
      at::Tensor& value = parameters_[slot.parameter]->value;
      const at::Tensor place = part(values_, {slot.begin, slot.end}).view(value.sizes());
      place.copy_(value);
      value.set_data(place);
    }
  }
}

BufferRange GradBuffer::shard(size_t bucket, int64_t index) const {
  const BucketPlan::Bucket& whole = plan_.buckets[bucket];
  const int64_t size = (whole.end - whole.begin) / plan_.shards;
  return {whole.begin + index * size, whole.begin + (index + 1) * size};
}

std::vector<BufferRange> GradBuffer::owned() const {
  if (plan_.shards == 1) return {{0, plan_.elements}};
  std::vector<BufferRange> ranges;
  for (size_t k = 0; k < plan_.buckets.size(); ++k) ranges.push_back(shard(k, group_->rank()));
  return ranges;
}

at::Tensor GradBuffer::part(const at::Tensor& flat, const BufferRange& range) {
  return flat.narrow(0, range.begin, range.size());
}

at::Tensor GradBuffer::grad_of(const BucketPlan::Slot& slot) const {
  return part(grads_, {slot.begin, slot.end}).view(parameters_[slot.parameter]->value.sizes());
}

}  // namespace concord
