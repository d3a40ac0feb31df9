#include "core/data_parallel/reducer.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/empty.h>
#include <fmt/core.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <limits>
#include <map>
#include <utility>
#include <vector>

#include "core/ops/main_grads.h"
#include "core/torch/dtype.h"

namespace concord {
namespace {

// Runs when autograd has stored a gradient in .grad.
class AfterGrad : public torch::autograd::PostAccumulateGradHook {
 public:
  explicit AfterGrad(std::function<void(const at::Tensor&)> run) : run_(std::move(run)) {}
  void operator()(const torch::autograd::Variable& value) override { run_(value); }

 private:
  std::function<void(const at::Tensor&)> run_;
};

DType type_of(const Parameter& parameter) {
  const auto type = platform_dtype(parameter.value.scalar_type());
  return type.value_or(DType::kU8);  // rejected by every plan
}

// Returns |values| converted to the types of |like|, in one buffer for each type, with few launches: devices have no
// operator that adds lists of different types.
std::vector<at::Tensor> widened(const std::vector<at::Tensor>& values, const std::vector<at::Tensor>& like) {
  const auto is_same = [](const at::Tensor& a, const at::Tensor& b) { return a.scalar_type() == b.scalar_type(); };
  if (std::ranges::equal(values, like, is_same)) return values;
  std::map<c10::ScalarType, int64_t> elements;
  for (const at::Tensor& each : like) elements[each.scalar_type()] += each.numel();
  std::map<c10::ScalarType, at::Tensor> free;
  for (const auto& [type, count] : elements) free[type] = at::empty({count}, like.front().options().dtype(type));
  std::vector<at::Tensor> wide;
  for (const at::Tensor& each : like) {
    at::Tensor& rest = free[each.scalar_type()];
    wide.push_back(rest.narrow(0, 0, each.numel()).view(each.sizes()));
    rest = rest.narrow(0, each.numel(), rest.numel() - each.numel());
  }
  copy_grads_(wide, values);
  return wide;
}

bool all_finite(const at::Tensor& grads) { return grads.isfinite().all().item<bool>(); }

}  // namespace

DistributedDataParallel::Reducer::Reducer(DistributedDataParallel& ddp, Chunk parameters, bool one_bucket)
    : ddp_(ddp), parameters_(std::move(parameters)), arrivals_(parameters_.size()) {
  const bool delayed = ddp_.options_.delay_grad_reduce && ddp_.job_->coordinates().pp > 0;
  overlaps_ = ddp_.options_.overlap_grad_reduce && !delayed;
  make_buffers(one_bucket);
  for (size_t i = 0; i < parameters_.size(); ++i) attach(i);
}

DistributedDataParallel::Reducer::~Reducer() {
  for (Parameter* parameter : parameters_) {
    parameter->sink = {};
    parameter->before_use = {};
    parameter->value.set_grad_dtype(parameter->value.scalar_type());
    torch::autograd::impl::set_post_acc_grad_hooks(parameter->value, nullptr);
  }
}

void DistributedDataParallel::Reducer::make_buffers(bool one_bucket) {
  const RankLayout& layout = ddp_.job_->layout();
  const DataParallelOptions& options = ddp_.options_;
  std::vector<PlannedParameter> planned;
  for (const Parameter* parameter : parameters_) {
    planned.push_back({parameter->spec.name, parameter->value.numel(), type_of(*parameter), parameter->expert,
                       parameter->shared_embedding && options.use_distributed_optimizer && layout.pp() > 1,
                       parameter->value.dim() < 2});
  }
  plan_ = plan_buckets(planned, {.dp = layout.dp() * layout.cp(),
                                 .edp = layout.edp(),
                                 .bucket_elements = options.ddp_bucket_size,
                                 .one_bucket = one_bucket,
                                 .distributed_optimizer = options.use_distributed_optimizer,
                                 .alignment = options.parameter_alignment,
                                 .fp32_grads = options.accumulate_allreduce_grads_in_fp32});
  for (const BucketPlan::Buffer& buffer : plan_.buffers) {
    ProcessGroup& group = ddp_.job_->group(buffer.expert ? GroupKind::edp : GroupKind::dp_cp);
    buffers_.push_back(std::make_unique<GradBuffer>(buffer, parameters_, group));
  }
  for (const BucketPlan::Place& place : plan_.order) {
    for (const BucketPlan::Slot& slot : plan_.buffers[place.buffer].buckets[place.bucket].slots) {
      arrivals_[slot.parameter] = {buckets_.size(), slot};
    }
    buckets_.push_back({buffers_[place.buffer].get(), place.bucket});
  }
}

void DistributedDataParallel::Reducer::attach(size_t index) {
  Parameter& parameter = *parameters_[index];
  const Arrival& arrival = arrivals_[index];
  const GradBuffer& buffer = *buckets_[arrival.bucket].buffer;
  // Operators sum in fp32; fp16 has too small a range for sums.
  if (buffer.plan().grad_dtype == DType::kF32 || buffer.plan().grad_dtype == DType::kBF16) {
    parameter.sink.main = buffer.grad_of(arrival.slot);
    parameter.sink.added = [this, index] { added(index); };
    parameter.sink.is_stale = arrival.is_stale;
    parameter.value.set_grad_dtype(std::nullopt);  // an operator's sum in fp32 is not rounded on the way
  }
  if (ddp_.options_.overlap_param_gather) parameter.before_use = [this, index] { wait_for(index); };
  torch::autograd::impl::set_post_acc_grad_hooks(
      parameter.value,
      std::make_unique<AfterGrad>([this, index](const at::Tensor& value) { move_grad(index, value); }));
}

void DistributedDataParallel::Reducer::begin_step(int64_t micro_batches, bool defer_reduction) {
  const at::NoGradGuard no_grad;
  expect_grads(micro_batches, defer_reduction);
  for (const Bucket& bucket : buckets_) clear_matrices(bucket);
}

// Enqueues nothing.
void DistributedDataParallel::Reducer::expect_grads(int64_t micro_batches, bool defer_reduction) {
  defers_reduction_ = defer_reduction;
  waiting_.clear();  // left from an aborted step
  for (Bucket& bucket : buckets_) {
    bucket.missing = 0;
    bucket.issued = false;
    bucket.reduction = {};
  }
  for (size_t i = 0; i < parameters_.size(); ++i) {
    // autograd sums several uses before it calls the hook, but not those of different chunks. The number of calls is
    // unknown, so the parameter is ready only at the end of the step.
    const bool is_alone = parameters_[i]->uses == 1 && !parameters_[i]->comes_in_parts;
    const bool counts = parameters_[i]->sink.main.defined() || is_alone;
    arrivals_[i].missing = counts ? micro_batches * parameters_[i]->uses : std::numeric_limits<int64_t>::max();
    ++buckets_[arrivals_[i].bucket].missing;
    *arrivals_[i].is_stale = true;  // the first addition overwrites it, which saves a pass that clears all gradients
  }
  next_ = 0;
}

// Clears the gradients of the bucket's matrices, which are neighbours, if additions to cleared memory are as fast.
void DistributedDataParallel::Reducer::clear_matrices(const Bucket& bucket) {
  BufferRange range{-1, -1};
  for (const BucketPlan::Slot& slot : bucket.buffer->plan().buckets[bucket.index].slots) {
    const Parameter& parameter = *parameters_[slot.parameter];
    const bool adds = parameter.sink.main.defined() && parameter.value.dim() > 1 &&
                      parameter.sink.main.scalar_type() != at::kBFloat16;  // to other memory, see GradSink
    if (!adds || !prefers_cleared_grads(parameter.value)) continue;
    if (range.begin < 0) range.begin = slot.begin;
    range.end = slot.end;
    *arrivals_[slot.parameter].is_stale = false;
  }
  if (range.begin >= 0) GradBuffer::part(bucket.buffer->grads(), range).zero_();
}

// Zeroes the gradients to which nothing was added.
void DistributedDataParallel::Reducer::settle(const Bucket& bucket) {
  for (const BucketPlan::Slot& slot : bucket.buffer->plan().buckets[bucket.index].slots) {
    if (std::exchange(*arrivals_[slot.parameter].is_stale, false)) bucket.buffer->grad_of(slot).zero_();
  }
}

void DistributedDataParallel::Reducer::flush_grads() {
  const at::NoGradGuard no_grad;
  move_waiting();
  for (const Bucket& bucket : buckets_) settle(bucket);
}

void DistributedDataParallel::Reducer::set_step_replayed(int64_t micro_batches) {
  expect_grads(micro_batches, /*defer_reduction=*/false);
  for (Arrival& arrival : arrivals_) *arrival.is_stale = false;
}

void DistributedDataParallel::Reducer::move_grad(size_t index, const at::Tensor& value) {
  const at::NoGradGuard no_grad;
  // Taken first: if an operator below fails, as in a recording, the next step must not add to it.
  at::Tensor grad = std::exchange(value.mutable_grad(), {});
  if (!grad.defined()) return;  // an operator has added it through the sink
  const auto is_same = [index](const Waiting& each) { return each.parameter == index; };
  if (std::any_of(waiting_.begin(), waiting_.end(), is_same)) move_waiting();
  waiting_.push_back({index, std::move(grad)});
  if (value.dim() != 1) move_waiting();
  added(index);
}

void DistributedDataParallel::Reducer::move_waiting() {
  std::vector<at::Tensor> stale, first, sums, more;
  for (Waiting& each : std::exchange(waiting_, {})) {
    const Arrival& arrival = arrivals_[each.parameter];
    const bool replaces = std::exchange(*arrival.is_stale, false);
    (replaces ? stale : sums).push_back(buckets_[arrival.bucket].buffer->grad_of(arrival.slot));
    (replaces ? first : more).push_back(std::move(each.grad));
  }
  copy_grads_(stale, first);
  if (!sums.empty()) at::_foreach_add_(sums, widened(more, sums));
}

void DistributedDataParallel::Reducer::added(size_t index) {
  Arrival& arrival = arrivals_[index];
  Bucket& bucket = buckets_[arrival.bucket];
  if (bucket.issued) {
    throw Error(CONCORD_STATUS_FAILED_PRECONDITION,
                fmt::format("a gradient of {} arrived after its bucket was reduced: call begin_step with the number of "
                            "micro-batches, and set uses to the gradients that each adds",
                            parameters_[index]->spec.name));
  }
  if (--arrival.missing > 0) return;
  if (arrival.missing == 0 && --bucket.missing == 0 && overlaps_ && !defers_reduction_) issue_ready();
}

void DistributedDataParallel::Reducer::issue_ready() {
  while (next_ < buckets_.size() && buckets_[next_].missing <= 0) issue(buckets_[next_++]);
}

ReduceOp DistributedDataParallel::Reducer::reduce_op() const {
  const DataParallelOptions& options = ddp_.options_;
  return options.ddp_average_in_collective && !options.calculate_per_token_loss ? ReduceOp::kAvg : ReduceOp::kSum;
}

// A loss is a mean over dp * cp ranks, so gradients are divided by their number. Expert parameters have processed the
// tokens of all of them, in edp parts: averaging in the collective would divide by edp only.
void DistributedDataParallel::Reducer::scale(const at::Tensor& grads, bool expert) const {
  if (ddp_.options_.calculate_per_token_loss) return;
  const RankLayout& layout = ddp_.job_->layout();
  const double ranks = static_cast<double>(layout.dp() * layout.cp());
  const double divided = expert ? static_cast<double>(layout.edp()) : ranks;
  const double factor = reduce_op() == ReduceOp::kAvg ? divided / ranks : 1 / ranks;
  if (factor != 1) grads.mul_(factor);
}

void DistributedDataParallel::Reducer::check_finite(const Bucket& bucket) const {
  const BucketPlan::Bucket& plan = bucket.buffer->plan().buckets[bucket.index];
  if (all_finite(GradBuffer::part(bucket.buffer->grads(), {plan.begin, plan.end}))) return;
  for (const BucketPlan::Slot& slot : plan.slots) {
    const at::Tensor grad = bucket.buffer->grad_of(slot);
    if (all_finite(grad)) continue;
    const bool nan = grad.isnan().any().item<bool>();
    throw Error(CONCORD_STATUS_FAILED_PRECONDITION,
                fmt::format("rank {}: the gradient of {} contains {} before reduction; check this rank's batch and the "
                            "learning rate, or set check_for_nan_in_loss_and_grad to false to skip such steps",
                            ddp_.job_->rank(), parameters_[slot.parameter]->spec.name, nan ? "NaN" : "Inf"));
  }
}

void DistributedDataParallel::Reducer::require_finite_grads() {
  const at::NoGradGuard no_grad;
  move_waiting();
  for (const Bucket& bucket : buckets_) check_finite(bucket);
}

void DistributedDataParallel::Reducer::issue(Bucket& bucket) {
  const at::NoGradGuard no_grad;
  move_waiting();
  settle(bucket);
  if (ddp_.options_.check_for_nan_in_grad) check_finite(bucket);
  GradBuffer& buffer = *bucket.buffer;
  const BucketPlan::Bucket& plan = buffer.plan().buckets[bucket.index];
  const at::Tensor grads = GradBuffer::part(buffer.grads(), {plan.begin, plan.end});
  scale(grads, buffer.plan().expert);
  if (buffer.plan().shards == 1) {
    bucket.reduction = buffer.group().all_reduce(grads, reduce_op());
  } else {
    const at::Tensor own = GradBuffer::part(buffer.grads(), buffer.shard(bucket.index, buffer.group().rank()));
    bucket.reduction = buffer.group().reduce_scatter(own, grads, reduce_op());
  }
  bucket.issued = true;
}

void DistributedDataParallel::Reducer::start_grad_sync() {
  for (; next_ < buckets_.size(); ++next_) issue(buckets_[next_]);
}

void DistributedDataParallel::Reducer::finish_grad_sync() {
  start_grad_sync();
  for (Bucket& bucket : buckets_) std::exchange(bucket.reduction, {}).wait();
}

void DistributedDataParallel::Reducer::gather_parameters() {
  const at::NoGradGuard no_grad;
  for (size_t i = buckets_.size(); i-- > 0;) {  // forward uses them from last to first
    Bucket& bucket = buckets_[i];
    const GradBuffer& buffer = *bucket.buffer;
    if (buffer.plan().shards == 1) continue;
    const BucketPlan::Bucket& plan = buffer.plan().buckets[bucket.index];
    bucket.gathering =
        buffer.group().all_gather(GradBuffer::part(buffer.values(), {plan.begin, plan.end}),
                                  GradBuffer::part(buffer.values(), buffer.shard(bucket.index, buffer.group().rank())));
    bucket.gathers = true;
  }
}

void DistributedDataParallel::Reducer::wait_for(size_t index) {
  Bucket& bucket = buckets_[arrivals_[index].bucket];
  if (std::exchange(bucket.gathers, false)) std::exchange(bucket.gathering, {}).wait();
}

void DistributedDataParallel::Reducer::finish_param_gather() {
  for (size_t i = buckets_.size(); i-- > 0;) {
    if (std::exchange(buckets_[i].gathers, false)) std::exchange(buckets_[i].gathering, {}).wait();
  }
}

}  // namespace concord
