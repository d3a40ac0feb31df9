#include "core/checkpoint/optimizer_files.h"

#include <fmt/core.h>

#include <set>
#include <span>

#include "core/base/config_error.h"
#include "core/checkpoint/hf_plan.h"

namespace concord {
namespace {

std::string file_tensor(const std::string& key, const std::string& tensor) { return fmt::format("{}.{}", key, tensor); }

}  // namespace

SavedTensors saved_tensors(const std::vector<std::pair<std::string, const Parameter*>>& tensors,
                           std::vector<OptimizerState::Entry> entries) {
  SavedTensors saved{.stem = kOptimizerStem, .tensors = {}, .parts = {}};
  std::set<std::string> names;  // a tied embedding can be on both ends of one rank
  for (const auto& [key, parameter] : tensors) {
    for (GlobalTensor& tensor : global_tensors(parameter->spec)) {
      const std::string name = file_tensor(key, tensor.name);
      if (names.insert(name).second) {
        saved.tensors.push_back({name, safetensors::DType::kF32, std::move(tensor.shape)});
      }
    }
  }
  for (OptimizerState::Entry& entry : entries) {
    for (ShardRun& run : entry.runs) run.tensor = file_tensor(entry.key, run.tensor);
    saved.parts.push_back({std::move(entry.runs), std::move(entry.values)});
  }
  return saved;
}

void OptimizerFiles::read(const std::string& key, const std::vector<ShardRun>& runs, const at::Tensor& values) const {
  float* const out = values.data_ptr<float>();
  for (const ShardRun& run : runs) {
    const std::string name = file_tensor(key, run.tensor);
    const safetensors::Weights::Tensor* tensor = files_.find(name);
    if (tensor == nullptr) {
      throw ConfigError(
          fmt::format("{}: has no {}; it was saved with another optimizer or model", files_.path(), name));
    }
    const int64_t last =
        run.offset + (run.count - 1) / run.run_length * run.run_stride + (run.count - 1) % run.run_length;
    const uint64_t bytes = tensor->file->data(*tensor->info).size();
    if (tensor->info->dtype != safetensors::DType::kF32 || bytes / sizeof(float) <= static_cast<uint64_t>(last)) {
      throw ConfigError(fmt::format("{}: {} has {} bytes of {}, but element {} of 32-bit floats is needed",
                                    tensor->file->path(), name, bytes, to_string(tensor->info->dtype), last));
    }
    bytes_read_ += static_cast<uint64_t>(run.count) * sizeof(float);
    for (int64_t i = 0, length = 0; i < run.count; i += length) {
      length = std::min(run.run_length - i % run.run_length, run.count - i);
      const int64_t global = run.offset + i / run.run_length * run.run_stride;
      tensor->file->read(*tensor->info, static_cast<uint64_t>(global) * sizeof(float),
                         std::as_writable_bytes(std::span(out + run.local + i, static_cast<size_t>(length))));
    }
  }
}

}  // namespace concord
