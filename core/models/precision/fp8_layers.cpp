#include "core/models/precision/fp8_layers.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <fmt/core.h>

#include <filesystem>
#include <span>

#include "core/base/config_error.h"
#include "core/safetensors/index.h"

namespace concord {
namespace {

constexpr const char* kStem = "fp8";

bool has_files(const std::string& folder) {
  std::error_code ignored;
  return std::filesystem::exists(std::filesystem::path(folder) / fmt::format("{}.safetensors", kStem), ignored);
}

std::string file_tensor(const std::string& layer) { return layer + ".amax_history"; }

Fp8Layer layer_for(const Fp8Args& args) {
  Fp8Layer layer;
  if (args.format == Fp8Formats::hybrid) layer.grad.format = Fp8Format::e5m2;
  if (args.recipe != Fp8Recipe::blockwise) return layer;
  layer.input.unit = layer.grad.unit = Fp8Scaling::Unit::row_blocks;
  layer.weight.unit = Fp8Scaling::Unit::square_blocks;
  layer.grad.format = Fp8Format::e4m3;
  return layer;
}

void check(const Fp8Args& args) {
  if (args.amax_history_len < 1) {
    throw ConfigError(fmt::format("fp8_amax_history_len is {}; must be >= 1", args.amax_history_len));
  }
}

}  // namespace

Fp8Layers::Fp8Layers(const Fp8Args& args, c10::Device device) : args_(args), device_(device) { check(args); }

Fp8Layer* Fp8Layers::add(const std::string& name) {
  layers_.push_back({name, std::make_unique<Fp8Layer>(layer_for(args_))});
  return layers_.back().layer.get();
}

// For what is seen, once all layers are here.
void Fp8Layers::make_room() {
  const auto count = static_cast<int64_t>(layers_.size());
  if (!args_.remembers() || (seen_.defined() && seen_.size(0) == count)) return;
  const auto options = at::TensorOptions(at::kFloat).device(device_);
  history_ = at::zeros({count, args_.amax_history_len, kTensors}, options);
  amax_ = at::zeros({count, kTensors}, options);
  seen_ = at::zeros({count, kTensors}, options);
  follow();
}

// Lets the layers see the current tensors.
void Fp8Layers::follow() {
  for (size_t i = 0; i < layers_.size(); ++i) {
    Fp8Layer& layer = *layers_[i].layer;
    int64_t column = 0;
    for (Fp8Scaling* each : {&layer.input, &layer.weight, &layer.grad}) {
      const auto own = [&](const at::Tensor& all) { return all[static_cast<int64_t>(i)].narrow(0, column, 1); };
      each->seen = own(seen_);
      each->amax = has_history_ ? own(amax_) : at::Tensor();
      ++column;
    }
  }
}

void Fp8Layers::forget_weights() {
  for (const Named& each : layers_) each.layer->forget_weight();
}

void Fp8Layers::count_inputs(bool count) {
  make_room();
  for (const Named& each : layers_) each.layer->count_inputs(count);
}

void Fp8Layers::end_step(bool updated, ProcessGroup& group) {
  forget_weights();
  if (!args_.remembers() || layers_.empty()) return;
  make_room();
  const at::NoGradGuard no_grad;
  if (updated) {
    if (group.size() > 1) group.all_reduce(seen_, ReduceOp::kMax).wait();
    const at::Tensor newest = at::where(at::isfinite(seen_), seen_, amax_).unsqueeze(1);
    history_ = at::cat({newest, history_.narrow(1, 0, args_.amax_history_len - 1)}, 1);
    amax_.copy_(history_.amax(1));
    has_history_ = true;
  }
  seen_.zero_();
  follow();
}

SavedTensors Fp8Layers::saved(bool writes) const {
  SavedTensors saved{.stem = kStem, .tensors = {}, .parts = {}};
  if (!has_history_) return saved;
  const int64_t each = args_.amax_history_len * kTensors;
  std::vector<ShardRun> runs;
  for (size_t i = 0; i < layers_.size(); ++i) {
    const std::string name = file_tensor(layers_[i].name);
    saved.tensors.push_back({name, safetensors::DType::kF32, {args_.amax_history_len, kTensors}});
    runs.push_back({.tensor = name,
                    .local = static_cast<int64_t>(i) * each,
                    .count = each,
                    .offset = 0,
                    .run_length = each,
                    .run_stride = each});
  }
  if (writes) saved.parts.push_back({std::move(runs), history_.flatten()});
  return saved;
}

void Fp8Layers::load(const std::string& folder) {
  forget_weights();
  if (!args_.remembers() || layers_.empty() || !has_files(folder)) return;
  make_room();
  const safetensors::Weights files(folder, kStem);
  const int64_t each = args_.amax_history_len * kTensors;
  const at::Tensor values = at::zeros(history_.sizes(), at::kFloat);
  for (size_t i = 0; i < layers_.size(); ++i) {
    const std::string name = file_tensor(layers_[i].name);
    const safetensors::Weights::Tensor* const found = files.find(name);
    const std::vector<int64_t> shape = {args_.amax_history_len, kTensors};
    if (found == nullptr || found->info->dtype != safetensors::DType::kF32 || found->info->shape != shape) {
      throw ConfigError(
          fmt::format("{}: has no {} of 32-bit floats [{}, {}]; it was saved with another model or another "
                      "fp8_amax_history_len",
                      files.path(), name, shape[0], shape[1]));
    }
    const std::span numbers(values.data_ptr<float>() + static_cast<int64_t>(i) * each, static_cast<size_t>(each));
    found->file->read(*found->info, 0, std::as_writable_bytes(numbers));
  }
  const at::NoGradGuard no_grad;
  history_.copy_(values);
  amax_.copy_(history_.amax(1));
  has_history_ = true;
  follow();
}

}  // namespace concord
