#include "core/data_parallel/bucket_plan.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "core/base/config_error.h"
#include "core/base/quoted.h"

namespace concord {
namespace {

constexpr int64_t kParameterAlignment = 64;
constexpr int64_t kMaxElements = int64_t{1} << 52;  // per buffer, so that the bytes of all buffers fit into 63 bits
constexpr int64_t kShardAlignment = 128;  // with lcm(dp, ...): shards of at least 128 / dp elements, Megatron's

int64_t rounded_up(int64_t value, int64_t multiple) { return (value + multiple - 1) / multiple * multiple; }

bool is_trained(DType dtype) { return dtype == DType::kF32 || dtype == DType::kBF16 || dtype == DType::kF16; }

void check(const std::vector<PlannedParameter>& parameters, const BucketOptions& options) {
  if (options.dp < 1 || options.edp < 1) {
    throw ConfigError(fmt::format("dp is {} and edp is {}; both must be >= 1", options.dp, options.edp));
  }
  if (options.bucket_elements < 0) {
    throw ConfigError(fmt::format("the bucket size is {} elements; must be > 0, or 0 for max(40e6, 1e6 * dp)",
                                  options.bucket_elements));
  }
  for (const PlannedParameter& parameter : parameters) {
    if (parameter.elements < 1) {
      throw ConfigError(
          fmt::format("parameter {} has {} elements; must be >= 1", quoted(parameter.name), parameter.elements));
    }
    if (!is_trained(parameter.dtype)) {
      throw ConfigError(fmt::format("parameter {} has dtype {}; must be f32, bf16 or f16", quoted(parameter.name),
                                    to_string(parameter.dtype)));
    }
  }
}

[[noreturn]] void refuse_size(const std::string& what) {
  throw ConfigError(
      fmt::format("with {} the parameters of a rank have more than 2^52 elements, which is too large; check the shapes "
                  "and the number of ranks",
                  quoted(what)));
}

// Lays out one buffer, parameter by parameter.
class BufferPlanner {
 public:
  BufferPlanner(DType dtype, bool expert, const BucketOptions& options) {
    const int64_t ranks = expert ? options.edp : options.dp;
    limit_ = options.bucket_elements > 0 ? options.bucket_elements : std::max<int64_t>(40'000'000, 1'000'000 * ranks);
    if (options.one_bucket) limit_ = INT64_MAX;
    buffer_ = {dtype, options.fp32_grads ? DType::kF32 : dtype, expert, options.distributed_optimizer ? ranks : 1, 0,
               {}};
    if (options.alignment > 0) alignment_ = options.alignment;
    end_alignment_ = alignment_;
    if (options.distributed_optimizer) {
      end_alignment_ = options.alignment > 0 ? ranks * alignment_ : std::lcm(ranks, kShardAlignment);
    }
    open_ = {0, 0, {}};
  }

  bool takes(const PlannedParameter& parameter) const {
    return parameter.dtype == buffer_.dtype && parameter.expert == buffer_.expert;
  }

  void add(size_t index, const PlannedParameter& parameter) {
    if (parameter.alone) close();
    if (parameter.elements > kMaxElements - rounded_up(end_, alignment_)) refuse_size(parameter.name);
    const Slot slot = append({index, 0, parameter.elements});
    (parameter.is_vector ? vectors_ : open_.slots).push_back(slot);
    if (parameter.alone || end_ - open_.begin >= limit_) close();
  }

  BucketPlan::Buffer finish() {
    close();
    buffer_.elements = end_;
    return std::move(buffer_);
  }

 private:
  using Slot = BucketPlan::Slot;

  // Moves |slot| to the end of the bucket.
  Slot append(Slot slot) {
    const int64_t begin = rounded_up(end_, alignment_);
    end_ = begin + (slot.end - slot.begin);
    return {slot.parameter, begin, end_};
  }

  // Lays out the bucket again, with its vectors behind its matrices.
  void close() {
    open_.slots.insert(open_.slots.end(), vectors_.begin(), vectors_.end());
    vectors_.clear();
    if (open_.slots.empty()) return;
    end_ = open_.begin;
    for (Slot& slot : open_.slots) slot = append(slot);
    end_ = open_.end = rounded_up(end_, end_alignment_);
    if (end_ > kMaxElements) refuse_size("the padding of a bucket");
    buffer_.buckets.push_back(std::exchange(open_, {end_, end_, {}}));
  }

  BucketPlan::Buffer buffer_;
  BucketPlan::Bucket open_;
  std::vector<Slot> vectors_;  // of the open bucket
  int64_t limit_;
  int64_t alignment_ = kParameterAlignment;
  int64_t end_alignment_;
  int64_t end_ = 0;
};

// Returns the order of the buckets. Backward visits the parameters from last to first: a bucket is complete at its
// smallest index.
std::vector<BucketPlan::Place> order_of(const std::vector<BucketPlan::Buffer>& buffers) {
  std::vector<std::pair<size_t, BucketPlan::Place>> ends;
  for (size_t b = 0; b < buffers.size(); ++b) {
    for (size_t k = 0; k < buffers[b].buckets.size(); ++k) {
      const auto& slots = buffers[b].buckets[k].slots;
      ends.push_back({std::ranges::min(slots, {}, &BucketPlan::Slot::parameter).parameter, {b, k}});
    }
  }
  std::sort(ends.begin(), ends.end(), [](const auto& x, const auto& y) { return x.first > y.first; });
  std::vector<BucketPlan::Place> order;
  for (const auto& [last, place] : ends) order.push_back(place);
  return order;
}

}  // namespace

BucketPlan plan_buckets(const std::vector<PlannedParameter>& parameters, const BucketOptions& options) {
  check(parameters, options);
  std::vector<BufferPlanner> planners;
  for (size_t i = parameters.size(); i-- > 0;) {
    const auto takes = [&](const BufferPlanner& planner) { return planner.takes(parameters[i]); };
    auto planner = std::find_if(planners.begin(), planners.end(), takes);
    if (planner == planners.end()) {
      planner = planners.emplace(planner, parameters[i].dtype, parameters[i].expert, options);
    }
    planner->add(i, parameters[i]);
  }
  BucketPlan plan;
  for (BufferPlanner& planner : planners) plan.buffers.push_back(planner.finish());
  plan.order = order_of(plan.buffers);
  return plan;
}

ElementState fp32_adamw_state(DType parameter) {
  if (parameter == DType::kF32) return {8, "exp_avg fp32 4 + exp_avg_sq fp32 4"};
  return {12, "exp_avg fp32 4 + exp_avg_sq fp32 4 + main fp32 4"};
}

BucketMemory memory_of(const BucketPlan& plan, const StateOfType& state) {
  BucketMemory memory;
  for (const BucketPlan::Buffer& buffer : plan.buffers) {
    memory.parameters += buffer.elements * size_of(buffer.dtype);
    memory.gradients += buffer.elements * size_of(buffer.grad_dtype);
    memory.optimizer += std::llround(static_cast<double>(buffer.elements / buffer.shards) * state(buffer.dtype).bytes);
  }
  return memory;
}

}  // namespace concord
