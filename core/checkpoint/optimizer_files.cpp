#include "core/checkpoint/optimizer_files.h"

#include <c10/util/BFloat16.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>
#include <span>
#include <vector>

#include "core/base/config_error.h"
#include "core/checkpoint/hf_dtype.h"
#include "core/checkpoint/hf_plan.h"

namespace concord {
namespace {

using FileType = safetensors::DType;

std::string file_tensor(const std::string& key, const std::string& tensor) { return fmt::format("{}.{}", key, tensor); }

// Reads elements of |tensor| from index |begin| on and widens them.
void read_elements(const safetensors::Weights::Tensor& tensor, int64_t begin, std::span<float> out) {
  const auto read = [&](auto values) {
    tensor.file->read(*tensor.info, static_cast<uint64_t>(begin) * sizeof(values[0]), std::as_writable_bytes(values));
  };
  if (tensor.info->dtype == FileType::kF32) return read(out);
  std::vector<c10::BFloat16> narrow(out.size());
  read(std::span(narrow));
  std::ranges::copy(narrow, out.begin());
}

}  // namespace

SavedTensors saved_tensors(const std::vector<StateTensor>& tensors, std::vector<OptimizerState::Entry> entries) {
  SavedTensors saved{.stem = kOptimizerStem, .tensors = {}, .parts = {}};
  std::set<std::string> names;  // a tied embedding can be on both ends of one rank
  for (const auto& [key, parameter, type] : tensors) {
    for (GlobalTensor& tensor : global_tensors(parameter->spec)) {
      const std::string name = file_tensor(key, tensor.name);
      if (names.insert(name).second) {
        saved.tensors.push_back({name, file_type(type).value(), std::move(tensor.shape)});
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
    const FileType dtype = tensor->info->dtype;
    const auto size = static_cast<uint64_t>(size_of(dtype));
    if ((dtype != FileType::kF32 && dtype != FileType::kBF16) || bytes / size <= static_cast<uint64_t>(last)) {
      throw ConfigError(fmt::format("{}: {} has {} bytes of {}, but element {} of F32 or BF16 is needed",
                                    tensor->file->path(), name, bytes, to_string(dtype), last));
    }
    bytes_read_ += static_cast<uint64_t>(run.count) * size;
    for (int64_t i = 0, length = 0; i < run.count; i += length) {
      length = std::min(run.run_length - i % run.run_length, run.count - i);
      const int64_t global = run.offset + i / run.run_length * run.run_stride;
      read_elements(*tensor, global, {out + run.local + i, static_cast<size_t>(length)});
    }
  }
}

std::string OptimizerFiles::conversions(const std::vector<StateTensor>& tensors) const {
  std::set<std::string> texts;
  for (const auto& [key, parameter, type] : tensors) {
    for (const GlobalTensor& tensor : global_tensors(parameter->spec)) {
      const safetensors::Weights::Tensor* const stored = files_.find(file_tensor(key, tensor.name));
      if (stored == nullptr || stored->info->dtype == file_type(type)) continue;
      texts.insert(fmt::format("{} from {} to {}", key, to_string(stored->info->dtype), to_string(*file_type(type))));
    }
  }
  return fmt::format("{}", fmt::join(texts, ", "));
}

}  // namespace concord
