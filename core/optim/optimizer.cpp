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
#include <optional>
#include <utility>

#include "core/base/code_map.h"
#include "core/base/config_error.h"
#include "core/mesh/agreement.h"
#include "core/ops/optimizer/adamw.h"
#include "core/optim/grad_norm.h"
#include "core/optim/main_weights.h"
#include "core/optim/narrow_state.h"
#include "core/optim/offload.h"
#include "core/optim/offload_memory.h"
#include "core/optim/rules/muon.h"
#include "core/optim/rules/update_rule.h"
#include "core/optim/shared_embedding.h"
#include "core/optim/state_precision.h"
#include "core/optim/state_stream.h"
#include "core/torch/host_copy.h"

namespace concord {
namespace {

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

// Whether |b|, which follows |a|, is its neighbour in the buffer and can lie next to it in the tensors of the state: it
// is aligned there as in the buffer.
bool shares_memory(const Segment& a, const Segment& b, bool same_moments) {
  constexpr int64_t kAlignment = 64;
  return a.buffer == b.buffer && !a.on_host && !b.on_host && same_moments && a.range.end == b.range.begin &&
         a.range.begin % kAlignment == 0 && b.range.begin % kAlignment == 0;
}

// The type must be the same on all ranks, and not every platform has fp64.
c10::ScalarType square_sum_type(ParallelContext& job) {
  const bool fp64 = Communicator::supports(job.platform(), CommOp::kAllReduce, DType::kF64, ReduceOp::kSum);
  return fp64 && !job.platforms().is_mixed() ? at::kDouble : at::kFloat;
}

}  // namespace

Optimizer::Optimizer(DistributedDataParallel& ddp, OptimizerOptions options, const Multipliers& multipliers)
    : ddp_(ddp),
      options_(std::move(options)),
      rule_(make_rule(options_)),
      on_cpu_(ddp.job().torch_device().is_cpu()),
      sum_type_(square_sum_type(ddp.job())) {
  if (!(options_.max_grad_norm >= 0)) {
    throw ConfigError(fmt::format("max_grad_norm is {:g}; must be > 0, or 0 for no clipping", options_.max_grad_norm));
  }
  create_segments(multipliers);
  reload_main_weights();
}

Optimizer::~Optimizer() = default;

// ---------------------------------------------------------------------------------------------------------- segments

void Optimizer::create_segments(const Multipliers& multipliers) {
  segments_ = cut_segments(ddp_, multipliers,
                           {.fraction = host_fraction(options_),
                            .piece = options_.host_piece(),
                            .unit = std::max<int64_t>(1, state_alignment(options_.precision))});
  check_blocks();
  if (options_.precision.main_params_dtype == MainParamsType::bf16_stochastic_round) {
    for (Segment& segment : segments_) segment.runs = runs_of(segment, 0, segment.size());
  }
  const auto types = [&](const Parameter& parameter) {
    std::vector<std::pair<std::string, c10::ScalarType>> all;
    for (const std::string& key : moments_of(parameter)) all.emplace_back(key, type_of(key, parameter));
    return all;
  };
  for (auto begin = segments_.begin(); begin != segments_.end();) {
    const auto end = std::adjacent_find(begin, segments_.end(), [&](const Segment& a, const Segment& b) {
      return !shares_memory(a, b, types(*a.parameter) == types(*b.parameter));
    });
    const auto next = end == segments_.end() ? end : end + 1;
    if (!begin->on_host) allocate({begin, next});
    begin = next;
  }
  offload();
  std::vector<Segment*> matrices;
  for (Segment& segment : segments_) {
    const bool is_matrix = uses_muon(*segment.parameter);
    if (is_matrix) matrices.push_back(&segment);
    if (!segment.on_host && !is_matrix) on_device_.push_back(&segment);
    if (segment.average.defined() && !segment.streamed) averaged_.push_back(&segment);
  }
  if (is_muon()) muon_ = std::make_unique<Muon>(ddp_, options_, matrices);
}

// Sets the tensors of segments on the host.
void Optimizer::offload() {
  if (!options_.optimizer_cpu_offload) return;
  std::vector<Segment*> on_host, streamed, kept;
  for (Segment& segment : segments_) {
    if (!segment.on_host) continue;
    const bool is_matrix = uses_muon(*segment.parameter);
    segment.streamed = !is_matrix && options_.optimizer_offload_update == OffloadUpdate::device;
    (is_matrix ? kept : segment.streamed ? streamed : on_host).push_back(&segment);
  }
  const auto type = [this](const std::string& key, const Parameter& parameter) { return type_of(key, parameter); };
  const OffloadedState state{rule_->moments(), type, options_.precision, keeps_average()},
      of_matrices{{Muon::kMomentum}, type, options_.precision, keeps_average()};
  const int64_t elements = options_.offload_chunk_elements;
  const int64_t bytes = offload_bytes(on_host, state) + kept_bytes(kept, of_matrices) +
                        host_bytes(stream_chunks(streamed, state, elements));
  check_offload_memory(ddp_.job(), {.bytes = bytes, .fraction = options_.optimizer_offload_fraction},
                       options_.host_memory_limit);
  const Device& device = ddp_.job().device();
  if (!streamed.empty()) stream_ = std::make_unique<StateStream>(device, std::move(streamed), state, elements);
  if (on_host.empty() && kept.empty()) return;
  offload_ = std::make_unique<Offload>(device, std::move(on_host), state);
  offload_->keep(kept, of_matrices);
}

// Neighbours in the buffer get neighbouring parts of one tensor, so that a device can update them as one array.
void Optimizer::allocate(std::span<Segment> segments) const {
  const int64_t begin = segments.front().range.begin, size = segments.back().range.end - begin;
  const at::TensorOptions fp32 = segments.front().buffer->values().options().dtype(at::kFloat);
  const bool main = has_main(segments.front());
  const c10::ScalarType kept = main_type(*segments.front().buffer);
  const bool is_narrow = kept != at::kFloat, has_remainder = is_narrow && kept != at::ScalarType::Undefined;
  const at::Tensor weights = main && !is_narrow ? at::empty({size}, fp32) : at::Tensor();
  const at::Tensor remainder = has_remainder ? at::empty({size}, fp32.dtype(kept)) : at::Tensor();
  const at::Tensor average = options_.ema_decay > 0 ? at::empty({size}, fp32) : at::Tensor();
  std::vector<at::Tensor> moments, scales;
  for (const std::string& key : moments_of(*segments.front().parameter)) {
    const c10::ScalarType type = type_of(key, *segments.front().parameter);
    moments.push_back(at::empty({size}, fp32.dtype(type)));
    scales.push_back(has_scales(type) ? at::empty({size / kStateBlock}, fp32) : at::Tensor());
    zero_moment(moments.back(), scales.back(), key);
  }
  for (Segment& segment : segments) {
    const BufferRange range{segment.range.begin - begin, segment.range.end - begin};
    segment.grads = GradBuffer::part(segment.buffer->grads(), segment.range);
    if (weights.defined()) segment.weights = GradBuffer::part(weights, range);
    if (remainder.defined()) segment.remainder = GradBuffer::part(remainder, range);
    (main ? segment.values : segment.weights) = parameter_values(segment);
    for (const at::Tensor& moment : moments) segment.moments.push_back(GradBuffer::part(moment, range));
    const BufferRange blocks{range.begin / kStateBlock, range.end / kStateBlock};
    for (const at::Tensor& each : scales) {
      segment.scales.push_back(each.defined() ? GradBuffer::part(each, blocks) : at::Tensor());
    }
    if (average.defined()) segment.average = GradBuffer::part(average, range);
  }
}

bool Optimizer::uses_muon(const Parameter& parameter) const { return is_muon() && Muon::takes(parameter); }

std::vector<std::string> Optimizer::moments_of(const Parameter& parameter) const {
  return uses_muon(parameter) ? std::vector<std::string>{Muon::kMomentum} : rule_->moments();
}

c10::ScalarType Optimizer::type_of(const std::string& key, const Parameter& parameter) const {
  const StateType type = state_type(options_.precision, key);
  return scalar_type(has_scales(type) && !takes_blocks(parameter.spec) ? StateType::fp32 : type);
}

// Throws ConfigError if the layout splits a block of a moment in codes.
void Optimizer::check_blocks() const {
  for (const Segment& segment : segments_) {
    for (const std::string& key : moments_of(*segment.parameter)) {
      if (!has_scales(type_of(key, *segment.parameter))) continue;
      scale_runs(runs_of(segment, 0, segment.size()));
      if (segment.size() % kStateBlock == 0) continue;
      throw ConfigError(
          fmt::format("8-bit state has blocks of {} elements, but a rank has {} elements of {}, padding included; use "
                      "bf16 for exp_avg_dtype and exp_avg_sq_dtype, or another make_vocab_size_divisible_by",
                      kStateBlock, segment.size(), segment.parameter->spec.name));
    }
  }
}

bool Optimizer::has_main_weights() const {
  const auto buffers = ddp_.buffers();
  return std::any_of(buffers.begin(), buffers.end(), [](const GradBuffer* buffer) { return has_main(*buffer); });
}

c10::ScalarType Optimizer::main_type(const GradBuffer& buffer) const {
  return main_weights_type(options_.precision, buffer.values().scalar_type());
}

void Optimizer::reload_main_weights() {
  const at::NoGradGuard no_grad;
  wait_for_state();
  for (const Segment& segment : segments_) {
    if (segment.has_narrow_main()) {
      if (!holds_parameter(segment)) segment.values.copy_(parameter_values(segment));
      if (segment.remainder.defined()) segment.remainder.zero_();
    } else if (has_main(segment) || (segment.on_host && !segment.streamed)) {
      segment.weights.copy_(parameter_values(segment));
    }
    if (!segment.average.defined()) continue;
    for (const Segment& piece : pieces_of(segment)) piece.average.copy_(wide_weights(piece));
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
  if (on_cpu_ || muon_ || offload_ || stream_ || !rule_->takes_factor(ddp_.job().torch_device()))
    return result_of(sums);
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
  sync_shared_embedding(segments_, ddp_.job());
  ++steps_;
  update_average(averaged_, steps_);
  ddp_.gather_parameters();
}

void Optimizer::prepare() {
  ddp_.finish_param_gather();
  // In parallel with the norm.
  if (offload_) offload_->fetch();
  if (stream_) stream_->prefetch();
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
  const auto update = [&](std::span<Segment* const> segments) {
    on_cpu_ ? rule_->step_on_host(segments, step) : rule_->step_on_device(segments, step);
  };
  update(on_device_);
  if (muon_) muon_->step(step);
  if (offload_) offload_->step(*rule_, step);
  if (!stream_) return;
  stream_->step([&](std::span<Segment* const> segments) {
    update(segments);
    if (keeps_average()) update_average(segments, step.t);
  });
}

double Optimizer::params_norm() const {
  const at::NoGradGuard no_grad;
  wait_for_state();
  at::Tensor squares = at::zeros({1}, at::TensorOptions(ddp_.job().torch_device()).dtype(sum_type_));
  for (const Segment& segment : segments_) {
    for (const BufferRange& part : counted_parts(segment, ddp_.job().coordinates())) {
      const Segment counted = part_of(segment, part.begin - segment.range.begin, part.size());
      for (const Segment& piece : pieces_of(counted)) {
        squares.add_(wide_weights(piece).square().sum(sum_type_).to(squares.device()));
      }
    }
  }
  ddp_.job().world_group().all_reduce(squares).wait();
  return std::sqrt(squares.item<double>());
}

// --------------------------------------------------------------------------------------------------------------- EMA

void Optimizer::wait_for_state() const {
  if (offload_) offload_->wait();
  if (stream_) stream_->wait();
}

void Optimizer::update_average(std::span<Segment* const> segments, int64_t updates) const {
  for (const Segment* segment : segments) {
    for (const Segment& piece : pieces_of(*segment)) {
      const at::Tensor weights = wide_weights(piece).to(piece.average.device());
      if (updates <= options_.ema_start_step) {
        piece.average.copy_(weights);
      } else {
        mix(piece.average, weights, options_.ema_decay);
      }
    }
  }
}

void Optimizer::swap_ema_weights() {
  const at::NoGradGuard no_grad;
  ddp_.finish_param_gather();
  wait_for_state();
  for (const Segment& segment : segments_) {
    for (const Segment& piece : pieces_of(segment)) swap_weights(piece, is_swapped_);
    if (segment.on_host || has_main(segment)) set_parameter(segment);
  }
  is_swapped_ = !is_swapped_;
  ddp_.gather_parameters();
  ddp_.finish_param_gather();
}

}  // namespace concord
