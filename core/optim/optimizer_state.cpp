// The state of an optimizer under global names: what is saved, and reading it.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <exception>
#include <functional>
#include <utility>

#include "core/base/code_map.h"
#include "core/checkpoint/read/read_state.h"
#include "core/mesh/agreement.h"
#include "core/optim/main_weights.h"
#include "core/optim/narrow_state.h"
#include "core/optim/offload.h"
#include "core/optim/optimizer.h"
#include "core/optim/state_stream.h"

namespace concord {
namespace {

std::string scales_of(const std::string& key) { return key + std::string(kScaleKey); }
std::string remainders_key() { return kMainKey + std::string(kRemainderKey); }
bool is_scales(const std::string& key) { return key.ends_with(kScaleKey); }

// Returns the exception that |body| throws; null if none.
std::exception_ptr error_of(const std::function<void()>& body) {
  try {
    body();
  } catch (...) {
    return std::current_exception();
  }
  return nullptr;
}

}  // namespace

int64_t Optimizer::state_bytes() const {
  int64_t bytes = (offload_ ? offload_->state_bytes() : 0) + (stream_ ? stream_->state_bytes() : 0);
  for (const Segment& segment : segments_) {
    if (segment.on_host) continue;
    for (const auto& [key, tensor] : tensors_of(segment)) {
      if (key == kMainKey && segment.has_narrow_main()) continue;  // the parameter
      bytes += static_cast<int64_t>(tensor.nbytes());
    }
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
  for (size_t i = 0; i < names.size(); ++i) {
    tensors.emplace_back(names[i], segment.moments[i]);
    if (segment.scales[i].defined()) tensors.emplace_back(scales_of(names[i]), segment.scales[i]);
  }
  if (segment.has_narrow_main()) {
    tensors.emplace_back(kMainKey, segment.values);
    if (segment.remainder.defined()) tensors.emplace_back(remainders_key(), segment.remainder);
  } else if (has_main(segment)) {
    tensors.emplace_back(kMainKey, segment.weights);
  }
  if (segment.average.defined()) tensors.emplace_back(kAverageKey, segment.average);
  return tensors;
}

OptimizerState Optimizer::state() const {
  wait_for_state();
  OptimizerState state{steps_, {}};
  for (const Segment& segment : segments_) {
    const std::vector<std::string> names = moments_of(*segment.parameter);
    for (const auto& [key, tensor] : tensors_of(segment)) {
      if (is_scales(key) || key == remainders_key()) continue;
      const auto moment = std::ranges::find(names, key);
      const auto i = static_cast<size_t>(moment - names.begin());
      at::Tensor values = moment == names.end() ? tensor : wide_moment(segment, i, key);
      if (key == kMainKey) values = wide_weights(segment);
      state.entries.push_back({key, runs_of(segment, 0, segment.size()), values.detach().cpu().clone()});
    }
  }
  return state;
}

std::vector<OptimizerState::Entry> Optimizer::saved_state(const std::optional<RankRange>& writers) const {
  wait_for_state();
  std::vector<OptimizerState::Entry> entries;
  for (const Segment& segment : segments_) {
    for (const BufferRange& part : saved_parts(segment, ddp_.job().layout(), ddp_.job().rank(), writers)) {
      const int64_t begin = part.begin - segment.range.begin, end = begin + part.size();
      // The rank that writes the first code of a block writes its scale.
      const auto block = [](int64_t element) { return (element + kStateBlock - 1) / kStateBlock; };
      const int64_t first = block(begin), blocks = block(end) - first;
      const std::vector<ShardRun> runs = runs_of(segment, begin, end);
      for (const auto& [key, tensor] : tensors_of(segment)) {
        if (!is_scales(key)) {
          entries.push_back({key, runs, tensor.detach().narrow(0, begin, part.size())});
        } else if (blocks > 0) {
          entries.push_back({key, scale_runs(runs_of(segment, first * kStateBlock, (first + blocks) * kStateBlock)),
                             tensor.detach().narrow(0, first, blocks)});
        }
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
      if (options_.ema_decay > 0) keys.emplace_back(kAverageKey);
      const c10::ScalarType main = main_type(*buffer);
      if (has_main(*buffer)) tensors.push_back({kMainKey, parameter, main == at::kFloat ? main : at::kBFloat16});
      if (main == at::kShort || main == at::kBFloat16) tensors.push_back({remainders_key(), parameter, main});
      for (const std::string& key : keys) {
        tensors.push_back({key, parameter, type_of(key, *parameter)});
        if (has_scales(tensors.back().type)) tensors.push_back({scales_of(key), parameter, at::kFloat, true});
      }
    }
  }
  return tensors;
}

void Optimizer::load_state(const StateSource& source, bool share_reads) {
  const at::NoGradGuard no_grad;
  read(source, share_reads, Part::all);
  for (Segment& segment : segments_) {
    if (has_main(segment)) {
      set_parameter(segment);
    } else if (segment.on_host && !segment.streamed) {
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

struct Optimizer::Reads {
  struct Coded {
    const Segment* segment;
    size_t moment;
    std::string key;
    at::Tensor wide;
  };
  std::vector<StateTarget> targets;
  std::vector<Coded> coded;
  std::vector<std::pair<const Segment*, at::Tensor>> weights;  // with a compensation, and their fp32 form

  void finish(int64_t steps) const {
    for (const Coded& each : coded) store_moment(*each.segment, each.moment, each.key, each.wide);
    for (const auto& [segment, wide] : weights) store_weights(*segment, wide, steps);
  }
};

void Optimizer::read(const StateSource& source, bool share_reads, Part part) {
  wait_for_state();
  if (share_reads) return read_with_others(source, part);
  const Reads reads = reads_of(source, nullptr, part);
  read_state(source, reads.targets, ddp_.job().device());
  reads.finish(source.steps());
}

// Returns what to read for the segments in |buffer|, or for all segments if it is null.
Optimizer::Reads Optimizer::reads_of(const StateSource& source, const GradBuffer* buffer, Part part) const {
  Reads reads;
  for (const Segment& segment : segments_) {
    if (buffer != nullptr && segment.buffer != buffer) continue;
    const std::vector<ShardRun> runs = runs_of(segment, 0, segment.size());
    const std::vector<std::string> names = moments_of(*segment.parameter);
    for (size_t i = 0; part == Part::all && i < names.size(); ++i) {
      const at::Tensor& moment = segment.moments[i];
      if (!has_scales(moment.scalar_type())) {
        reads.targets.push_back({names[i], runs, moment});
      } else if (!runs.empty() && source.has_codes(names[i], runs.front().tensor, moment.scalar_type())) {
        reads.targets.push_back({names[i], runs, moment});
        reads.targets.push_back({scales_of(names[i]), scale_runs(runs), segment.scales[i]});
      } else {
        const at::Tensor wide = at::zeros({segment.size()}, segment.scales[i].options());
        reads.targets.push_back({names[i], runs, wide});
        reads.coded.push_back({&segment, i, names[i], wide});
      }
    }
    const bool reads_main = part == Part::all && has_main(segment);
    if (reads_main && !segment.has_narrow_main()) {
      reads.targets.push_back({kMainKey, runs, segment.weights.detach()});
    } else if (reads_main && !segment.remainder.defined()) {
      reads.targets.push_back({kMainKey, runs, segment.values.detach()});
    } else if (reads_main && segment.remainder.scalar_type() == at::kBFloat16) {
      const at::Tensor wide = at::zeros({segment.size()}, segment.values.options().dtype(at::kFloat));
      reads.targets.push_back({kMainKey, runs, wide});
      reads.weights.emplace_back(&segment, wide);
    } else if (reads_main) {
      reads.targets.push_back({kMainKey, runs, segment.values.detach(), /*splits=*/true});
      reads.targets.push_back({kMainKey, runs, segment.remainder, /*splits=*/true});
    }
    if (segment.average.defined()) reads.targets.push_back({kAverageKey, runs, segment.average});
  }
  return reads;
}

// All ranks of a buffer's group have the same state, unless it is distributed over them.
void Optimizer::read_with_others(const StateSource& source, Part part) {
  std::exception_ptr error;
  for (const GradBuffer* buffer : ddp_.buffers()) {
    const Device& device = ddp_.job().device();
    const Reads reads = reads_of(source, buffer, part);
    const std::exception_ptr own = buffer->plan().shards > 1
                                       ? error_of([&] { read_state(source, reads.targets, device); })
                                       : read_state_shared(source, reads.targets, buffer->group(), device);
    if (!own) reads.finish(source.steps());
    if (!error) error = own;
  }
  run_and_propagate_errors(ddp_.job(), [&] {
    if (error) std::rethrow_exception(error);
  });
}

}  // namespace concord
