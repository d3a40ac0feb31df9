#include "core/checkpoint/optimizer_files.h"

#include <ATen/ops/from_blob.h>
#include <c10/util/BFloat16.h>
#include <c10/util/Float8_e4m3fn.h>
#include <c10/util/Half.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <functional>
#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <span>
#include <vector>

#include "core/base/code_map.h"
#include "core/base/config_error.h"
#include "core/checkpoint/hf_dtype.h"
#include "core/checkpoint/hf_plan.h"
#include "core/torch/remainder.h"

namespace concord {
namespace {

using FileType = safetensors::DType;

int64_t product_of(const std::vector<int64_t>& shape) {
  return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<int64_t>());
}

std::string file_tensor(const std::string& key, const std::string& tensor) { return fmt::format("{}.{}", key, tensor); }

// Returns the type in files; nullopt unless state can have it.
std::optional<FileType> state_file_type(c10::ScalarType type) {
  if (type == at::kShort) return FileType::kI16;
  if (type == at::kFloat8_e4m3fn) return FileType::kF8E4M3;
  return type == at::kByte ? FileType::kU8 : file_type(type);
}

bool has_block_scales(FileType type) {
  return type == FileType::kU8 || type == FileType::kF8E4M3 || type == FileType::kF16;
}

std::string type_text(FileType type, std::optional<FileType> remainders) {
  if (!remainders) return std::string(to_string(type));
  return fmt::format("{} with {}", to_string(type), *remainders == FileType::kBF16 ? "compensations" : "remainders");
}

// Reads |count| elements of |tensor|, which are T, beginning at index |begin|.
template <class T>
std::vector<T> elements_of(const safetensors::Weights::Tensor& tensor, int64_t begin, size_t count) {
  std::vector<T> values(count);
  tensor.file->read(*tensor.info, static_cast<uint64_t>(begin) * sizeof(T), std::as_writable_bytes(std::span(values)));
  return values;
}

// Elements of a tensor in a file, and the scales of its codes or their remainders: 16 more bits, or bf16 compensations.
struct Stored {
  const safetensors::Weights::Tensor& tensor;
  const safetensors::Weights::Tensor* scales = nullptr;
  const safetensors::Weights::Tensor* remainders = nullptr;
  CodeMap map = {};

  void read(int64_t begin, std::span<float> out) const {
    switch (tensor.info->dtype) {
      case FileType::kF32:
        return tensor.file->read(*tensor.info, static_cast<uint64_t>(begin) * sizeof(float),
                                 std::as_writable_bytes(out));
      case FileType::kBF16:
        if (remainders != nullptr) return join(begin, out);
        return void(std::ranges::copy(elements_of<c10::BFloat16>(tensor, begin, out.size()), out.begin()));
      default: return decode(begin, out);
    }
  }

  void join(int64_t begin, std::span<float> out) const {
    std::vector<c10::BFloat16> high = elements_of<c10::BFloat16>(tensor, begin, out.size());
    if (remainders->info->dtype == FileType::kBF16) {
      const auto rest = elements_of<c10::BFloat16>(*remainders, begin, out.size());
      for (size_t i = 0; i < out.size(); ++i) out[i] = static_cast<float>(high[i]) + static_cast<float>(rest[i]);
      return;
    }
    std::vector<int16_t> low = elements_of<int16_t>(*remainders, begin, out.size());
    const auto count = static_cast<int64_t>(out.size());
    join_remainder(at::from_blob(high.data(), {count}, at::kBFloat16), at::from_blob(low.data(), {count}, at::kShort),
                   at::from_blob(out.data(), {count}, at::kFloat));
  }

  void decode(int64_t begin, std::span<float> out) const {
    if (tensor.info->dtype == FileType::kF16) {
      const std::vector<c10::Half> codes = elements_of<c10::Half>(tensor, begin, out.size());
      return scale(begin, out, [&](size_t i) { return static_cast<float>(codes[i]); });
    }
    const std::vector<uint8_t> codes = elements_of<uint8_t>(tensor, begin, out.size());
    if (tensor.info->dtype == FileType::kF8E4M3) {
      return scale(begin, out, [&](size_t i) {
        return static_cast<float>(c10::Float8_e4m3fn(codes[i], c10::Float8_e4m3fn::from_bits()));
      });
    }
    const auto& fractions = code_fractions(map);
    scale(begin, out, [&](size_t i) { return fractions[codes[i]]; });
  }

  // Sets the elements from |begin| on to value(i) times the scale of their block.
  template <class Value>
  void scale(int64_t begin, std::span<float> out, const Value& value) const {
    const int64_t first = begin / kStateBlock, last = (begin + static_cast<int64_t>(out.size()) - 1) / kStateBlock;
    const std::vector<float> factors = elements_of<float>(*scales, first, static_cast<size_t>(last - first + 1));
    for (size_t i = 0; i < out.size(); ++i) {
      const int64_t block = (begin + static_cast<int64_t>(i)) / kStateBlock;
      out[i] = value(i) * factors[static_cast<size_t>(block - first)];
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
  const bool is_known =
      type == FileType::kF32 || type == FileType::kBF16 || has_block_scales(type) || type == FileType::kI16;
  if (!is_known || bytes / static_cast<uint64_t>(size_of(type)) <= static_cast<uint64_t>(last)) {
    throw ConfigError(
        fmt::format("{}: {} has {} bytes of {}, but element {} of F32, BF16, F16, U8, F8_E4M3 or I16 is needed",
                    tensor->file->path(), name, bytes, to_string(type), last));
  }
  return *tensor;
}

void OptimizerFiles::read(const std::string& key, const std::vector<ShardRun>& runs, const at::Tensor& values) const {
  const auto code_bytes = static_cast<int64_t>(values.element_size());
  const bool wants_codes = code_bytes < static_cast<int64_t>(sizeof(float));
  for (const ShardRun& run : runs) {
    const int64_t last =
        run.offset + (run.count - 1) / run.run_length * run.run_stride + (run.count - 1) % run.run_length;
    Stored stored{.tensor = find(file_tensor(key, run.tensor), last), .map = code_map_of(key)};
    if (has_block_scales(stored.tensor.info->dtype)) {
      stored.scales = &find(file_tensor(key + std::string(kScaleKey), run.tensor), last / kStateBlock);
    }
    if (has_remainders(key, run.tensor)) {
      stored.remainders = &find(file_tensor(key + std::string(kRemainderKey), run.tensor), last);
    }
    bytes_read_ += static_cast<uint64_t>(run.count * size_of(stored.tensor.info->dtype));
    for (int64_t i = 0, length = 0; i < run.count; i += length) {
      length = std::min(run.run_length - i % run.run_length, run.count - i);
      const int64_t global = run.offset + i / run.run_length * run.run_stride;
      const auto count = static_cast<size_t>(length);
      if (wants_codes) {
        auto* const out = static_cast<std::byte*>(values.data_ptr()) + (run.local + i) * code_bytes;
        stored.tensor.file->read(*stored.tensor.info, static_cast<uint64_t>(global * code_bytes),
                                 std::span(out, count * static_cast<size_t>(code_bytes)));
      } else {
        stored.read(global, {values.data_ptr<float>() + run.local + i, count});
      }
    }
  }
}

bool OptimizerFiles::has_codes(const std::string& key, const std::string& tensor, c10::ScalarType type) const {
  const safetensors::Weights::Tensor* const found = files_.find(file_tensor(key, tensor));
  return found != nullptr && found->info->dtype == state_file_type(type);
}

bool OptimizerFiles::has_remainders(const std::string& key, const std::string& tensor) const {
  return files_.find(file_tensor(key + std::string(kRemainderKey), tensor)) != nullptr;
}

std::string OptimizerFiles::conversions(const std::vector<StateTensor>& tensors) const {
  std::map<std::pair<std::string, const Parameter*>, FileType> remainders;  // of |tensors|
  for (const auto& [key, parameter, type, is_scales] : tensors) {
    if (key.ends_with(kRemainderKey)) remainders[{key, parameter}] = *state_file_type(type);
  }
  std::set<std::string> texts;
  for (const auto& [key, parameter, type, is_scales] : tensors) {
    if (is_scales || key.ends_with(kRemainderKey)) continue;
    const std::string remainder_key = key + std::string(kRemainderKey);
    const auto own = remainders.find({remainder_key, parameter});
    const auto to =
        type_text(*state_file_type(type), own == remainders.end() ? std::nullopt : std::optional(own->second));
    for (const GlobalTensor& tensor : global_tensors(parameter->spec)) {
      const safetensors::Weights::Tensor* const stored = files_.find(file_tensor(key, tensor.name));
      if (stored == nullptr) continue;
      const safetensors::Weights::Tensor* const rest = files_.find(file_tensor(remainder_key, tensor.name));
      const auto from =
          type_text(stored->info->dtype, rest == nullptr ? std::nullopt : std::optional(rest->info->dtype));
      if (from != to) texts.insert(fmt::format("{} from {} to {}", key, from, to));
    }
  }
  return fmt::format("{}", fmt::join(texts, ", "));
}

}  // namespace concord
