#include "core/optim/rules/muon.h"

#include <ATen/ops/addmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/zeros.h>
#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "core/base/config_error.h"
#include "core/checkpoint/hf_plan.h"
#include "core/optim/main_weights.h"
#include "core/optim/narrow_state.h"
#include "core/optim/plan/state_of_parameter.h"

namespace concord {
namespace {

// Calls body(part of |flat|, part of |whole|), with equal shapes, for all elements of |run|; |whole| begins with the
// run's tensor.
template <class Body>
void each_row_block(const ShardRun& run, const at::Tensor& flat, const at::Tensor& whole, const Body& body) {
  const int64_t rows = run.count / run.run_length, rest = run.count % run.run_length;
  const at::Tensor own = flat.narrow(0, run.local, run.count);
  if (rows > 0) {
    body(own.narrow(0, 0, rows * run.run_length).view({rows, run.run_length}),
         whole.as_strided({rows, run.run_length}, {run.run_stride, 1}, whole.storage_offset() + run.offset));
  }
  if (rest > 0) {
    body(own.narrow(0, rows * run.run_length, rest), whole.narrow(0, run.offset + rows * run.run_stride, rest));
  }
}

}  // namespace

at::Tensor orthogonalised(const at::Tensor& x, int64_t steps) {
  constexpr double kA = 3.4445, kB = -4.7750, kC = 2.0315, kMinNorm = 1e-7;
  const bool is_tall = x.size(0) > x.size(1);  // transposed, so that A is the smaller of the two products
  at::Tensor y = is_tall ? x.t() : x;
  // X = u / |u|
  y = y.div(y.norm().clamp_min(kMinNorm));
  for (int64_t i = 0; i < steps; ++i) {
    // A = X X^T
    const at::Tensor a = at::matmul(y, y.t());
    // X = a X + (b A + c A^2) X
    y = at::addmm(y, at::addmm(a, a, a, kB, kC), y, kA);
  }
  return is_tall ? y.t() : y;
}

double muon_scale(MuonScaleMode mode, int64_t rows, int64_t columns) {
  const auto r = static_cast<double>(rows), c = static_cast<double>(columns);
  if (mode == MuonScaleMode::shape_scaling) return std::sqrt(std::max(1.0, r / c));
  if (mode == MuonScaleMode::spectral) return std::sqrt(std::max(r, c));
  return std::sqrt(r / c);
}

bool Muon::takes(const Parameter& parameter) { return takes_muon(parameter.spec); }

Muon::Muon(const DistributedDataParallel& ddp, const OptimizerOptions& options, std::span<Segment* const> segments)
    : job_(ddp.job()), options_(options) {
  if (!(options.muon_momentum >= 0 && options.muon_momentum < 1) || options.muon_num_ns_steps < 1) {
    throw ConfigError(fmt::format("muon_momentum is {:g} and muon_num_ns_steps {}; must be from 0 to below 1, and >= 1",
                                  options.muon_momentum, options.muon_num_ns_steps));
  }
  for (const GradBuffer* buffer : ddp.buffers()) {
    for (const BucketPlan::Bucket& bucket : buffer->plan().buckets) {
      for (const BucketPlan::Slot& slot : bucket.slots) {
        const Parameter& parameter = *buffer->parameters()[slot.parameter];
        if (takes(parameter)) tasks_.push_back(task_of(*buffer, parameter, segments));
      }
    }
  }
}

// Returns the task of |parameter|, which is equal on all ranks of its groups except for the parts.
Muon::Task Muon::task_of(const GradBuffer& buffer, const Parameter& parameter, std::span<Segment* const> segments) {
  const ShardPlace place = shard_place(job_.layout(), job_.rank());
  const std::vector<ShardRun> runs = shard_runs(parameter.spec, place);
  Task task;
  task.options = buffer.values().options().dtype(at::kFloat);
  for (const ShardSpec::Dim& dim : parameter.spec.dims) {
    if (dim.cut == ShardAxis::tp) task.groups.push_back(&job_.group(GroupKind::tp));
    if (dim.cut == ShardAxis::etp) task.groups.push_back(&job_.group(GroupKind::etp));
    if (dim.cut == ShardAxis::ep && !parameter.spec.stacked) task.groups.push_back(&job_.group(GroupKind::ep));
  }
  if (buffer.plan().shards > 1) task.groups.push_back(&buffer.group());
  int64_t ranks = 1, own = 0;
  for (const ProcessGroup* group : task.groups) {
    own += ranks * group->rank();
    ranks *= group->size();
  }
  for (const GlobalTensor& tensor : global_tensors(parameter.spec)) {
    const bool is_here =
        std::any_of(runs.begin(), runs.end(), [&](const ShardRun& run) { return run.tensor == tensor.name; });
    if (!is_here) continue;  // belongs to another ep rank
    task.matrices.push_back({tensor.name, tensor.shape[0], tensor.shape[1], task.elements, assigned_++ % ranks == own});
    task.elements += tensor.shape[0] * tensor.shape[1];
  }
  for (Segment* segment : segments) {
    if (segment->parameter != &parameter) continue;
    task.parts.push_back({segment, cut_runs(runs, segment->local_begin, segment->local_begin + segment->size())});
    for (ShardRun& run : task.parts.back().runs) {
      const auto matrix = std::find_if(task.matrices.begin(), task.matrices.end(),
                                       [&](const Matrix& each) { return each.tensor == run.tensor; });
      run.offset += matrix->begin;
    }
  }
  return task;
}

// Updates the momentum and returns all matrices of |task|, concatenated.
at::Tensor Muon::momentum_of(const Task& task, double grad_scale) const {
  at::Tensor whole = at::zeros({task.elements}, task.options);
  for (const Part& part : task.parts) {
    const at::Tensor grads = part.segment->grads.to(at::kFloat).mul(grad_scale);
    const at::Tensor kept = wide_moment(*part.segment, 0, kMomentum);
    const at::Tensor momentum = kept.to(grads.device());  // itself, unless it is offloaded
    // m_t = mu m + (1 - mu) g
    mix(momentum, grads, options_.muon_momentum);
    if (!momentum.is_same(kept)) kept.copy_(momentum);
    store_moment(*part.segment, 0, kMomentum, kept);
    at::Tensor update = momentum;
    if (options_.muon_use_nesterov) {
      // u = mu m_t + (1 - mu) g
      update = momentum.clone();
      mix(update, grads, options_.muon_momentum);
    }
    for (const ShardRun& run : part.runs) {
      each_row_block(run, update, whole, [](const at::Tensor& own, const at::Tensor& there) { there.copy_(own); });
    }
  }
  for (ProcessGroup* group : task.groups) group->all_reduce(whole).wait();
  return whole;
}

void Muon::iterate(const Task& task, const at::Tensor& whole) const {
  for (const Matrix& matrix : task.matrices) {
    const at::Tensor own = whole.narrow(0, matrix.begin, matrix.rows * matrix.columns);
    if (!matrix.is_own) {
      own.zero_();
      continue;
    }
    const double scale =
        muon_scale(options_.muon_scale_mode, matrix.rows, matrix.columns) * options_.muon_extra_scale_factor;
    const at::Tensor shaped = own.view({matrix.rows, matrix.columns});
    shaped.copy_(orthogonalised(shaped, options_.muon_num_ns_steps).mul(scale));
  }
}

void Muon::apply(const Task& task, const at::Tensor& whole, const RuleStep& step) const {
  for (ProcessGroup* group : task.groups) group->all_reduce(whole).wait();
  for (const Part& part : task.parts) {
    const Segment& segment = *part.segment;
    const at::Tensor update = at::empty({segment.size()}, task.options);
    for (const ShardRun& run : part.runs) {
      each_row_block(run, update, whole, [](const at::Tensor& own, const at::Tensor& there) { own.copy_(there); });
    }
    const double lr = step.lr_of(segment.multipliers);
    // w_t = (1 - lr weight_decay) w - lr scale X
    const at::Tensor weights = wide_weights(segment).to(update.device());  // itself, unless offloaded or narrow
    weights.mul_(1 - lr * step.weight_decay_of(segment.multipliers)).sub_(update.mul_(lr));
    store_weights(segment, weights, step.t);
    if (segment.has_narrow_main()) continue;
    if (segment.values.defined()) segment.values.copy_(weights);
  }
}

void Muon::step(const RuleStep& step) {
  for (size_t begin = 0, end = 0; begin < tasks_.size(); begin = end) {
    std::vector<at::Tensor> wholes;
    for (int64_t elements = 0; end < tasks_.size() && (end == begin || elements < options_.muon_batch_elements);
         ++end) {
      elements += tasks_[end].elements;
      wholes.push_back(momentum_of(tasks_[end], step.grad_scale));
    }
    for (size_t i = begin; i < end; ++i) iterate(tasks_[i], wholes[i - begin]);
    for (size_t i = begin; i < end; ++i) apply(tasks_[i], wholes[i - begin], step);
  }
}

}  // namespace concord
