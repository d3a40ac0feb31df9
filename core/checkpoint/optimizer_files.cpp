#include "core/checkpoint/optimizer_files.h"

#include <c10/util/BFloat16.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <optional>
#include <set>
#include <span>
#include <vector>

#include "core/base/code_map.h"
#include "core/base/config_error.h"
#include "core/checkpoint/hf_dtype.h"
#include "core/checkpoint/hf_plan.h"

namespace concord {
namespace {

using FileType = safetensors::DType;

int64_t product_of(const std::vector<int64_t>& shape) {
  return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<int64_t>());
}

std::string file_tensor(const std::string& key, const std::string& tensor) { return fmt::format("{}.{}", key, tensor); }

// Returns the type in files; nullopt unless state can have it.
std::optional<FileType> state_file_type(c10::ScalarType type) {
  return type == at::kByte ? FileType::kU8 : file_type(type);
}

// Reads |count| elements of |tensor|, which are T, beginning at index |begin|.
template <class T>
std::vector<T> elements_of(const safetensors::Weights::Tensor& tensor, int64_t begin, size_t count) {
  std::vector<T> values(count);
  tensor.file->read(*tensor.info, static_cast<uint64_t>(begin) * sizeof(T), std::as_writable_bytes(std::span(values)));
  return values;
}

// Elements of a tensor in a file, and the scales of its codes.
struct Stored {
  const safetensors::Weights::Tensor& tensor;
  const safetensors::Weights::Tensor* scales = nullptr;
  CodeMap map = {};

  void read(int64_t begin, std::span<float> out) const {
    switch (tensor.info->dtype) {
      case FileType::kF32:
        return tensor.file->read(*tensor.info, static_cast<uint64_t>(begin) * sizeof(float),
                                 std::as_writable_bytes(out));
      case FileType::kBF16:
        return void(std::ranges::copy(elements_of<c10::BFloat16>(tensor, begin, out.size()), out.begin()));
      default: return decode(begin, out);
    }
  }

  void decode(int64_t begin, std::span<float> out) const {
    const std::vector<uint8_t> codes = elements_of<uint8_t>(tensor, begin, out.size());
    const int64_t first = begin / kStateBlock, last = (begin + static_cast<int64_t>(out.size()) - 1) / kStateBlock;
    const std::vector<float> factors = elements_of<float>(*scales, first, static_cast<size_t>(last - first + 1));
    const auto& fractions = code_fractions(map);
    for (size_t i = 0; i < out.size(); ++i) {
      const int64_t block = (begin + static_cast<int64_t>(i)) / kStateBlock;
      out[i] = fractions[codes[i]] * factors[static_cast<size_t>(block - first)];
    }
  }
};

}  // namespace

SavedTensors saved_tensors(const std::vector<StateTensor>& tensors, std::vector<OptimizerState::Entry> entries) {
  SavedTensors saved{.stem = kOptimizerStem, .tensors = {}, .parts = {}};
  std::set<std::string> names;  // a tied embedding can be on both ends of one rank
  for (const auto& [key, parameter, type, is_scales] : tensors) {
    for (GlobalTensor& tensor : global_tensors(parameter->spec)) {
      const std::string name = file_tensor(key, tensor.name);
      if (is_scales) tensor.shape = {product_of(tensor.shape) / kStateBlock};
      if (names.insert(name).second) {
        saved.tensors.push_back({name, state_file_type(type).value(), std::move(tensor.shape)});
      }
    }
  }
  for (OptimizerState::Entry& entry : entries) {
    for (ShardRun& run : entry.runs) run.tensor = file_tensor(entry.key, run.tensor);
    saved.parts.push_back({std::move(entry.runs), std::move(entry.values)});
  }
  return saved;
}

// Returns the tensor |name|, which has to have an element |last|.
const safetensors::Weights::Tensor& OptimizerFiles::find(const std::string& name, int64_t last) const {
  const safetensors::Weights::Tensor* const tensor = files_.find(name);
  if (tensor == nullptr) {
    throw ConfigError(fmt::format("{}: has no {}; it was saved with another optimizer or model", files_.path(), name));
  }
  const FileType type = tensor->info->dtype;
  const uint64_t bytes = tensor->file->data(*tensor->info).size();
  const bool is_known = type == FileType::kF32 || type == FileType::kBF16 || type == FileType::kU8;
  if (!is_known || bytes / static_cast<uint64_t>(size_of(type)) <= static_cast<uint64_t>(last)) {
    throw ConfigError(fmt::format("{}: {} has {} bytes of {}, but element {} of F32, BF16 or U8 is needed",
                                  tensor->file->path(), name, bytes, to_string(type), last));
  }
  return *tensor;
}

void OptimizerFiles::read(const std::string& key, const std::vector<ShardRun>& runs, const at::Tensor& values) const {
  const bool wants_codes = values.scalar_type() == at::kByte;
  for (const ShardRun& run : runs) {
    const int64_t last =
        run.offset + (run.count - 1) / run.run_length * run.run_stride + (run.count - 1) % run.run_length;
    Stored stored{find(file_tensor(key, run.tensor), last), nullptr, code_map_of(key)};
    if (stored.tensor.info->dtype == FileType::kU8) {
      stored.scales = &find(file_tensor(key + std::string(kScaleKey), run.tensor), last / kStateBlock);
    }
    bytes_read_ += static_cast<uint64_t>(run.count * size_of(stored.tensor.info->dtype));
    for (int64_t i = 0, length = 0; i < run.count; i += length) {
      length = std::min(run.run_length - i % run.run_length, run.count - i);
      const int64_t global = run.offset + i / run.run_length * run.run_stride;
      const auto count = static_cast<size_t>(length);
      if (wants_codes) {
        std::ranges::copy(elements_of<uint8_t>(stored.tensor, global, count),
                          values.data_ptr<uint8_t>() + run.local + i);
      } else {
        stored.read(global, {values.data_ptr<float>() + run.local + i, count});
      }
    }
  }
}

bool OptimizerFiles::has_codes(const std::string& key, const std::string& tensor) const {
  const safetensors::Weights::Tensor* const found = files_.find(file_tensor(key, tensor));
  return found != nullptr && found->info->dtype == FileType::kU8;
}

std::string OptimizerFiles::conversions(const std::vector<StateTensor>& tensors) const {
  std::set<std::string> texts;
  for (const auto& [key, parameter, type, is_scales] : tensors) {
    for (const GlobalTensor& tensor : global_tensors(parameter->spec)) {
      const safetensors::Weights::Tensor* const stored = files_.find(file_tensor(key, tensor.name));
      if (is_scales || stored == nullptr || stored->info->dtype == state_file_type(type)) continue;
      texts.insert(
          fmt::format("{} from {} to {}", key, to_string(stored->info->dtype), to_string(*state_file_type(type))));
    }
  }
  return fmt::format("{}", fmt::join(texts, ", "));
}

}  // namespace concord
