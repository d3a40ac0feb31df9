#include "core/optim/optimizer.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_norm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <exception>
#include <functional>
#include <optional>
#include <utility>

#include "core/base/config_error.h"
#include "core/checkpoint/read/read_state.h"
#include "core/mesh/agreement.h"
#include "core/ops/optimizer/adamw.h"
#include "core/optim/grad_norm.h"
#include "core/optim/muon.h"
#include "core/optim/narrow_state.h"
#include "core/optim/offload.h"
#include "core/optim/offload_memory.h"
#include "core/optim/state_precision.h"
#include "core/optim/update_rule.h"
#include "core/torch/host_copy.h"

namespace concord {
namespace {

constexpr const char* kMain = "main";                 // key of the fp32 main weights
constexpr const char* kAverage = "ema";               // key of their EMA
constexpr const char* kMomentum = "momentum_buffer";  // key of Muon's momentum

double host_fraction(const OptimizerOptions& options) {
  if (!options.optimizer_cpu_offload) return 0;
  const double fraction = options.optimizer_offload_fraction;
  if (fraction >= 0 && fraction <= 1) return fraction;
  throw ConfigError(fmt::format("optimizer_offload_fraction is {:g}; must be from 0 to 1", fraction));
}

GradSums sums_on_host(const std::vector<at::Tensor>& grads, bool count_zeros) {
  std::vector<GradPart> parts;
  for (const at::Tensor& grad : grads) parts.push_back({{grad.const_data_ptr(), flat_type(grad)}, grad.numel()});
  return sum_grads(parts, count_zeros);
}

at::Tensor squares_on_device(const std::vector<at::Tensor>& grads, const at::TensorOptions& options) {
  if (grads.empty()) return at::zeros({1}, options);
  return at::stack(at::_foreach_norm(grads, 2, at::kFloat)).square().sum().view({1});
}

at::Tensor zeros_on_device(const std::vector<at::Tensor>& grads, const at::TensorOptions& options) {
  at::Tensor zeros = at::zeros({1}, options.dtype(at::kLong));
  for (const at::Tensor& grad : grads) zeros.add_(grad.eq(0).sum());
  return zeros;
}

// Returns the exception that |body| throws; null if none.
std::exception_ptr error_of(const std::function<void()>& body) {
  try {
    body();
  } catch (...) {
    return std::current_exception();
  }
  return nullptr;
}

at::Tensor parameter_values(const Segment& segment) {
  return GradBuffer::part(segment.buffer->values(), segment.range);
}

// Whether the parameters are 16-bit, with separate fp32 main weights that are part of the state.
bool has_main(const GradBuffer& buffer) { return buffer.values().scalar_type() != at::kFloat; }
bool has_main(const Segment& segment) { return has_main(*segment.buffer); }

// Whether |b|, which follows |a|, is its neighbour in the buffer and can lie next to it in the tensors of the state: it
// is aligned there as in the buffer.
bool shares_memory(const Segment& a, const Segment& b, bool same_moments) {
  constexpr int64_t kAlignment = 64;
  return a.buffer == b.buffer && !a.on_host && !b.on_host && same_moments && a.range.end == b.range.begin &&
         a.range.begin % kAlignment == 0 && b.range.begin % kAlignment == 0;
}

c10::ScalarType square_sum_type(const Platform& platform) {
  const bool fp64 = Communicator::supports(platform, CommOp::kAllReduce, DType::kF64, ReduceOp::kSum);
  return fp64 ? at::kDouble : at::kFloat;
}

}  // namespace

Optimizer::Optimizer(DistributedDataParallel& ddp, OptimizerOptions options, const Multipliers& multipliers)
    : ddp_(ddp),
      options_(std::move(options)),
      rule_(make_rule(options_)),
      on_cpu_(ddp.job().torch_device().is_cpu()),
      sum_type_(square_sum_type(ddp.job().platform())) {
  if (!(options_.max_grad_norm >= 0)) {
    throw ConfigError(fmt::format("max_grad_norm is {:g}; must be > 0, or 0 for no clipping", options_.max_grad_norm));
  }
  create_segments(multipliers);
  reload_main_weights();
}

Optimizer::~Optimizer() = default;

// ---------------------------------------------------------------------------------------------------------- segments

void Optimizer::create_segments(const Multipliers& multipliers) {
  segments_ = cut_segments(ddp_, multipliers, host_fraction(options_), options_.offload_piece_elements);
  for (auto begin = segments_.begin(); begin != segments_.end();) {
    const auto end = std::adjacent_find(begin, segments_.end(), [&](const Segment& a, const Segment& b) {
      return !shares_memory(a, b, moments_of(*a.parameter) == moments_of(*b.parameter));
    });
    const auto next = end == segments_.end() ? end : end + 1;
    if (!begin->on_host) allocate({begin, next});
    begin = next;
  }
  std::vector<Segment*> on_host, kept, matrices;
  for (Segment& segment : segments_) {
    const bool is_matrix = uses_muon(*segment.parameter);
    if (is_matrix) matrices.push_back(&segment);
    if (segment.on_host) (is_matrix ? kept : on_host).push_back(&segment);
    if (!segment.on_host && !is_matrix) on_device_.push_back(&segment);
  }
  OffloadedState state{{}, keeps_average()};
  for (const std::string& key : rule_->moments()) state.moments.push_back(type_of(key));
  const OffloadedState of_matrices{{type_of(kMomentum)}, keeps_average()};
  if (options_.optimizer_cpu_offload) {
    check_offload_memory(ddp_.job(), offload_bytes(on_host, state) + kept_bytes(kept, of_matrices),
                         options_.optimizer_offload_fraction);
  }
  if (!on_host.empty() || !kept.empty()) {
    offload_ = std::make_unique<Offload>(ddp_.job().device(), std::move(on_host), state);
    offload_->keep(kept, of_matrices);
  }
  if (is_muon()) muon_ = std::make_unique<Muon>(ddp_, options_, matrices);
}

// Neighbours in the buffer get neighbouring parts of one tensor, so that a device can update them as one array.
void Optimizer::allocate(std::span<Segment> segments) const {
  const int64_t begin = segments.front().range.begin, size = segments.back().range.end - begin;
  const at::TensorOptions fp32 = segments.front().buffer->values().options().dtype(at::kFloat);
  const bool main = has_main(segments.front());
  const at::Tensor weights = main ? at::empty({size}, fp32) : at::Tensor();
  const at::Tensor average = options_.ema_decay > 0 ? at::empty({size}, fp32) : at::Tensor();
  std::vector<at::Tensor> moments;
  for (const std::string& key : moments_of(*segments.front().parameter)) {
    moments.push_back(at::zeros({size}, fp32.dtype(type_of(key))));
  }
  for (Segment& segment : segments) {
    const BufferRange range{segment.range.begin - begin, segment.range.end - begin};
    segment.grads = GradBuffer::part(segment.buffer->grads(), segment.range);
    segment.weights = main ? GradBuffer::part(weights, range) : parameter_values(segment);
    if (main) segment.values = parameter_values(segment);
    for (const at::Tensor& moment : moments) segment.moments.push_back(GradBuffer::part(moment, range));
    if (average.defined()) segment.average = GradBuffer::part(average, range);
  }
}

bool Optimizer::uses_muon(const Parameter& parameter) const { return is_muon() && Muon::takes(parameter); }

std::vector<std::string> Optimizer::moments_of(const Parameter& parameter) const {
  return uses_muon(parameter) ? std::vector<std::string>{kMomentum} : rule_->moments();
}

c10::ScalarType Optimizer::type_of(const std::string& key) const {
  return scalar_type(state_type(options_.precision, key));
}

bool Optimizer::has_main_weights() const {
  const auto buffers = ddp_.buffers();
  return std::any_of(buffers.begin(), buffers.end(), [](const GradBuffer* buffer) { return has_main(*buffer); });
}

void Optimizer::reload_main_weights() {
  const at::NoGradGuard no_grad;
  for (const Segment& segment : segments_) {
    if (segment.on_host || has_main(segment)) segment.weights.copy_(parameter_values(segment));
    if (segment.average.defined()) segment.average.copy_(segment.weights);
  }
}

// -------------------------------------------------------------------------------------------------------------- step

struct Optimizer::NormAndZeros {
  at::Tensor squares;
  HostCopy squares_on_host, zeros_on_host;
};

StepResult Optimizer::step(const StepSettings& settings) {
  const StepResult result = measure_and_launch_update(settings);
  if (result.updated) update(settings, result);
  return result;
}

StepResult Optimizer::measure(double grad_divisor) {
  const at::NoGradGuard no_grad;
  prepare();
  return result_of(norm_and_zeros(grad_divisor));
}

StepResult Optimizer::measure_and_launch_update(const StepSettings& settings, const std::optional<at::Tensor>& loss) {
  const at::NoGradGuard no_grad;
  prepare();
  const NormAndZeros sums = norm_and_zeros(settings.grad_divisor);
  if (on_cpu_ || muon_ || offload_ || !rule_->takes_factor()) return result_of(sums);
  RuleStep step = rule_step(settings, 1);
  step.factor = update_factor(sums.squares, loss, options_.max_grad_norm, settings.grad_divisor);
  rule_->step_on_device(on_device_, step);
  StepResult result = result_of(sums);
  result.is_launched = result.updated;
  return result;
}

void Optimizer::update(const StepSettings& settings, const StepResult& measured) {
  const at::NoGradGuard no_grad;
  if (!measured.is_launched) apply(rule_step(settings, clip_factor(measured.grad_norm, options_.max_grad_norm)));
  ++steps_;
  update_average();
  ddp_.gather_parameters();
}

void Optimizer::prepare() {
  ddp_.finish_param_gather();
  if (offload_) offload_->fetch();  // in parallel with the norm
}

StepResult Optimizer::result_of(const NormAndZeros& sums) {
  const double norm = std::sqrt(sums.squares_on_host.wait().item<double>());
  return {std::isfinite(norm), norm, sums.zeros_on_host.wait().item<int64_t>()};
}

// Sums over all ranks, so that all of them see a sum that is not finite. In fp64, so that the split over ranks does not
// affect the bits of the norm, except on platforms that cannot reduce fp64.
Optimizer::NormAndZeros Optimizer::norm_and_zeros(double grad_divisor) const {
  const std::vector<at::Tensor> grads = counted_grads(ddp_);
  const at::TensorOptions device(ddp_.job().torch_device());
  const double scale = 1 / (grad_divisor * grad_divisor);
  const bool count_zeros = options_.log_num_zeros_in_grad;
  at::Tensor squares, zeros;
  if (on_cpu_) {
    const GradSums sums = sums_on_host(grads, count_zeros);
    squares = at::full({1}, sums.squares * scale, device.dtype(sum_type_));
    zeros = at::full({1}, sums.zeros, device.dtype(at::kLong));
  } else {
    squares = squares_on_device(grads, device.dtype(at::kFloat)).mul_(scale).to(sum_type_);
    zeros = count_zeros ? zeros_on_device(grads, device) : at::zeros({1}, at::kLong);
  }
  ProcessGroup& group = ddp_.job().world_group();
  const Work summed = group.all_reduce(squares);
  if (count_zeros) group.all_reduce(zeros).wait();
  summed.wait();
  const Device& own = ddp_.job().device();
  return {squares, HostCopy(squares, own), HostCopy(zeros, own)};
}

RuleStep Optimizer::rule_step(const StepSettings& settings, double clip) const {
  return {settings.lr, settings.weight_decay, clip / settings.grad_divisor, steps_ + 1, settings.decoupled_lr};
}

void Optimizer::apply(const RuleStep& step) {
  if (on_cpu_) {
    rule_->step_on_host(on_device_, step);
  } else {
    rule_->step_on_device(on_device_, step);
  }
  if (muon_) muon_->step(step);
  if (offload_) offload_->step(*rule_, step);
}

double Optimizer::params_norm() const {
  const at::NoGradGuard no_grad;
  at::Tensor squares = at::zeros({1}, at::TensorOptions(ddp_.job().torch_device()).dtype(sum_type_));
  for (const Segment& segment : segments_) {
    for (const BufferRange& part : counted_parts(segment, ddp_.job().coordinates())) {
      const at::Tensor weights = segment.weights.narrow(0, part.begin - segment.range.begin, part.size());
      squares.add_(weights.square().sum(sum_type_).to(squares.device()));
    }
  }
  ddp_.job().world_group().all_reduce(squares).wait();
  return std::sqrt(squares.item<double>());
}

// --------------------------------------------------------------------------------------------------------------- EMA

void Optimizer::update_average() const {
  if (options_.ema_decay == 0) return;
  for (const Segment& segment : segments_) {
    if (steps_ <= options_.ema_start_step) {
      segment.average.copy_(segment.weights);
    } else {
      mix(segment.average, segment.weights, options_.ema_decay);
    }
  }
}

void Optimizer::swap_ema_weights() {
  const at::NoGradGuard no_grad;
  ddp_.finish_param_gather();
  if (offload_) offload_->wait();
  for (const Segment& segment : segments_) {
    const at::Tensor weights = segment.weights.clone();
    segment.weights.copy_(segment.average);
    segment.average.copy_(weights);
    if (segment.on_host || has_main(segment)) parameter_values(segment).copy_(segment.weights);
  }
  ddp_.gather_parameters();
  ddp_.finish_param_gather();
}

// ------------------------------------------------------------------------------------------------------------- state

int64_t Optimizer::state_bytes() const {
  int64_t bytes = offload_ ? offload_->state_bytes() : 0;
  for (const Segment& segment : segments_) {
    if (segment.on_host) continue;
    for (const auto& [key, tensor] : tensors_of(segment)) bytes += static_cast<int64_t>(tensor.nbytes());
  }
  return bytes;
}

// Returns where the elements [begin, end) of |segment| are in the tensors of the model.
std::vector<ShardRun> Optimizer::runs_of(const Segment& segment, int64_t begin, int64_t end) const {
  const ParallelContext& job = ddp_.job();
  const auto runs = shard_runs(segment.parameter->spec, shard_place(job.layout(), job.rank()));
  return cut_runs(runs, segment.local_begin + begin, segment.local_begin + end);
}

std::vector<std::pair<std::string, at::Tensor>> Optimizer::tensors_of(const Segment& segment) const {
  std::vector<std::pair<std::string, at::Tensor>> tensors;
  const std::vector<std::string> names = moments_of(*segment.parameter);
  for (size_t i = 0; i < names.size(); ++i) tensors.emplace_back(names[i], segment.moments[i]);
  if (has_main(segment)) tensors.emplace_back(kMain, segment.weights);
  if (segment.average.defined()) tensors.emplace_back(kAverage, segment.average);
  return tensors;
}

OptimizerState Optimizer::state() const {
  OptimizerState state{steps_, {}};
  for (const Segment& segment : segments_) {
    for (const auto& [key, tensor] : tensors_of(segment)) {
      state.entries.push_back({key, runs_of(segment, 0, segment.size()),
                               tensor.detach().cpu().to(at::kFloat, /*non_blocking=*/false, /*copy=*/true)});
    }
  }
  return state;
}

std::vector<OptimizerState::Entry> Optimizer::saved_state(const std::optional<RankRange>& writers) const {
  std::vector<OptimizerState::Entry> entries;
  for (const Segment& segment : segments_) {
    for (const BufferRange& part : saved_parts(segment, ddp_.job().layout(), ddp_.job().rank(), writers)) {
      const int64_t begin = part.begin - segment.range.begin;
      const std::vector<ShardRun> runs = runs_of(segment, begin, begin + part.size());
      for (const auto& [key, tensor] : tensors_of(segment)) {
        entries.push_back({key, runs, tensor.detach().narrow(0, begin, part.size())});
      }
    }
  }
  return entries;
}

std::vector<StateTensor> Optimizer::state_tensors() const {
  std::vector<StateTensor> tensors;
  for (const GradBuffer* buffer : ddp_.buffers()) {
    for (const Parameter* parameter : buffer->parameters()) {
      std::vector<std::string> keys = moments_of(*parameter);
      if (has_main(*buffer)) keys.emplace_back(kMain);
      if (options_.ema_decay > 0) keys.emplace_back(kAverage);
      for (const std::string& key : keys) tensors.push_back({key, parameter, type_of(key)});
    }
  }
  return tensors;
}

void Optimizer::load_state(const StateSource& source, bool share_reads) {
  const at::NoGradGuard no_grad;
  read(source, share_reads, Part::all);
  for (Segment& segment : segments_) {
    if (has_main(segment)) {
      parameter_values(segment).copy_(segment.weights);
    } else if (segment.on_host) {
      segment.weights.copy_(parameter_values(segment));  // fp32 parameters are not part of the state
    }
  }
  steps_ = source.steps();
  if (!has_main_weights()) return;  // the parameters were not changed
  ddp_.gather_parameters();
  ddp_.finish_param_gather();
}

void Optimizer::load_average(const StateSource& source, bool share_reads) {
  const at::NoGradGuard no_grad;
  read(source, share_reads, Part::average);
}

void Optimizer::read(const StateSource& source, bool share_reads, Part part) {
  if (share_reads) return read_with_others(source, part);
  read_state(source, state_targets(nullptr, part), ddp_.job().device());
}

// Returns the tensors to read for the segments in |buffer|, or for all segments if it is null.
std::vector<StateTarget> Optimizer::state_targets(const GradBuffer* buffer, Part part) const {
  std::vector<StateTarget> targets;
  for (const Segment& segment : segments_) {
    if (buffer != nullptr && segment.buffer != buffer) continue;
    const std::vector<ShardRun> runs = runs_of(segment, 0, segment.size());
    for (const auto& [key, tensor] : tensors_of(segment)) {
      if (part == Part::all || key == kAverage) targets.push_back({key, runs, tensor.detach()});
    }
  }
  return targets;
}

// All ranks of a buffer's group have the same state, unless it is distributed over them.
void Optimizer::read_with_others(const StateSource& source, Part part) {
  std::exception_ptr error;
  for (const GradBuffer* buffer : ddp_.buffers()) {
    const Device& device = ddp_.job().device();
    const std::vector<StateTarget> targets = state_targets(buffer, part);
    const std::exception_ptr own = buffer->plan().shards > 1
                                       ? error_of([&] { read_state(source, targets, device); })
                                       : read_state_shared(source, targets, buffer->group(), device);
    if (!error) error = own;
  }
  run_and_propagate_errors(ddp_.job(), [&] {
    if (error) std::rethrow_exception(error);
  });
}

}  // namespace concord
