#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/from_blob.h>
#include <fmt/core.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <unordered_set>

#include "core/config_error.h"
#include "core/models/block_scales.h"
#include "core/models/hf_dtype.h"
#include "core/models/hf_plan.h"
#include "core/models/hf_weights.h"
#include "core/models/mxfp4.h"
#include "core/quoted.h"
#include "core/safetensors/index.h"

namespace concord {
namespace {

using safetensors::Reader;
using safetensors::TensorInfo;
using safetensors::Weights;

constexpr int64_t kWindowBytes = 8 << 20;        // of a file, mapped at a time per thread
constexpr uint64_t kLeastMappedBytes = 1 << 18;  // smaller values are not worth their own mapping

// A block of a tensor in a file, |rows| of |length| elements at a distance of |stride|, and where it goes.
struct FileBlock {
  const Reader* file;
  const TensorInfo* tensor;
  const BlockScales* scales;  // of 8-bit floats
  const Mxfp4Weight* packed;  // the weight that |tensor| has the blocks of; both null: the tensor is as it is
  const at::Tensor* to;       // flat
  int64_t from;               // element of the tensor in the file
  int64_t local;              // element of |to|
  int64_t rows;
  int64_t length;
  int64_t stride;

  int64_t span() const { return (rows - 1) * stride + length; }  // elements in the file from first to last
  bool is_decoded() const { return scales != nullptr || packed != nullptr; }
  std::span<const std::byte> data() const {
    if (packed != nullptr) return packed->bytes(from, span());
    const int64_t size = size_of(tensor->dtype);
    return file->data(*tensor).subspan(static_cast<size_t>(from * size), static_cast<size_t>(span() * size));
  }
};

// In the files of a model with images, before the names of its text model.
constexpr std::string_view kTextPart = "language_model.";

std::string without_part(const std::string& name) {
  return name.starts_with(kTextPart) ? name.substr(kTextPart.size()) : name;
}

const Weights::Tensor* find_named(const Weights& weights, const std::string& name) {
  const Weights::Tensor* found = weights.find(name);
  return found != nullptr ? found : weights.find(std::string(kTextPart) + name);
}

bool is_expendable(const std::string& name, const HfLoadOptions& options) {
  const auto begins_name = [&](const std::string& beginning) { return name.starts_with(beginning); };
  return name.ends_with("rotary_emb.inv_freq") || (options.tied_embeddings && name == "lm_head.weight") ||
         std::any_of(options.unused.begin(), options.unused.end(), begins_name);
}

bool is_scaled(const Weights::Tensor& tensor) { return tensor.info->dtype == safetensors::DType::kF8E4M3; }

void check_extra(const Weights& weights, const HfLoadOptions& options) {
  if (options.model_tensors.empty()) return;
  const std::unordered_set<std::string> known(options.model_tensors.begin(), options.model_tensors.end());
  const auto is_scale = [&](const std::string& name) {
    const Weights::Tensor* weight = weights.find(BlockScales::weight_of(name));
    return !options.weight_block_size.empty() && weight != nullptr && is_scaled(*weight) &&
           known.count(without_part(weight->info->name)) != 0;
  };
  const auto is_packed = [&](const std::string& name) {
    return known.count(std::string(Mxfp4Weight::weight_of(name))) != 0;
  };
  for (const auto& [name, tensor] : weights.tensors()) {
    const std::string own = without_part(tensor.info->name);
    if (known.count(own) != 0 || is_scale(tensor.info->name) || is_packed(own) || is_expendable(own, options)) continue;
    throw ConfigError(
        fmt::format("{}: tensor {} of {} does not belong to any parameter of the model, which has {} tensors; is this "
                    "the folder of another model?",
                    tensor.file->path(), quoted(name), safetensors::shape_text(tensor.info->shape), known.size()));
  }
}

const Weights::Tensor& find_checked(const Weights& weights, const GlobalTensor& wanted, const Parameter& parameter,
                                    bool takes_scaled) {
  const Weights::Tensor* found = find_named(weights, wanted.name);
  if (found == nullptr) {
    const Weights::Tensor* blocks = Mxfp4Weight::blocks_of(weights, wanted.name);
    if (blocks != nullptr) return *blocks;  // Mxfp4Weight checks them
  }
  if (found == nullptr) {
    throw ConfigError(fmt::format("{}: has no tensor {}, which parameter {} needs in shape {}", weights.path(),
                                  quoted(wanted.name), parameter.spec.name, safetensors::shape_text(wanted.shape)));
  }
  const std::string where = fmt::format("{}: tensor {}", found->file->path(), quoted(wanted.name));
  if (found->info->shape != wanted.shape) {
    throw ConfigError(fmt::format("{} has shape {}, but parameter {} needs {}", where,
                                  safetensors::shape_text(found->info->shape), parameter.spec.name,
                                  safetensors::shape_text(wanted.shape)));
  }
  if (!float_type(found->info->dtype) && !(takes_scaled && is_scaled(*found))) {
    throw ConfigError(
        fmt::format("{} has type {}; parameter {}, {} on this rank, can be read from F64, F32, F16 or BF16", where,
                    to_string(found->info->dtype), parameter.spec.name, c10::toString(parameter.value.scalar_type())));
  }
  return *found;
}

void check_value(const Parameter& parameter, const std::vector<int64_t>& shape) {
  const at::Tensor& value = parameter.value;
  if (!value.defined() || value.sizes() != c10::IntArrayRef(shape) || !value.is_contiguous() ||
      !c10::isFloatingType(value.scalar_type())) {
    throw ConfigError(fmt::format("parameter {}: the value must be a contiguous float tensor of {}, but it is {}",
                                  parameter.spec.name, safetensors::shape_text(shape),
                                  value.defined() ? fmt::format("{} of {}", c10::toString(value.scalar_type()),
                                                                safetensors::shape_text(value.sizes().vec()))
                                                  : "undefined"));
  }
}

// Where the whole parameter is contiguous and in order in one file: the gate and up pieces are, in files written by
// transformers.
struct Stretch {
  const Reader* file = nullptr;
  const TensorInfo* tensor = nullptr;  // in which it begins
  int64_t from = 0;                    // element of that tensor
  const std::byte* end = nullptr;      // in file->data()
};

using Found = std::map<std::string, Weights::Tensor>;

std::optional<Stretch> stretch_of(const Parameter& parameter, const ShardPlace& place, const Found& found) {
  std::optional<Stretch> whole;
  int64_t elements = 0;
  for (const ShardRun& run : shard_runs(parameter.spec, place)) {
    const Weights::Tensor& tensor = found.at(run.tensor);
    const auto size = size_of(tensor.info->dtype);
    const std::byte* begin = tensor.file->data(*tensor.info).data() + run.offset * size;
    const bool follows = whole ? whole->file == tensor.file && whole->end == begin : true;
    const bool plain = run.run_length == run.count || run.run_stride == run.run_length;
    if (!follows || !plain || run.local != elements || tensor.info->dtype != found.begin()->second.info->dtype)
      return {};
    if (!whole) whole = Stretch{.file = tensor.file, .tensor = tensor.info, .from = run.offset};
    whole->end = begin + run.count * size;
    elements += run.count;
  }
  return elements == parameter.value.numel() ? whole : std::nullopt;
}

// The value as a mapping of its file; undefined if it must be copied.
at::Tensor map_value(const Parameter& parameter, const ShardPlace& place, const Found& found) {
  const at::Tensor& value = parameter.value;
  const safetensors::DType dtype = found.begin()->second.info->dtype;
  const auto bytes = static_cast<uint64_t>(value.numel() * value.element_size());
  if (bytes < kLeastMappedBytes || !value.device().is_cpu() || float_type(dtype) != value.scalar_type()) return {};
  const std::optional<Stretch> whole = stretch_of(parameter, place, found);
  if (!whole || !Reader::is_aligned({whole->end, 0}, dtype)) return {};  // then its begin is too
  const auto memory =
      whole->file->map_private(*whole->tensor, static_cast<uint64_t>(whole->from * size_of(dtype)), bytes);
  return at::from_blob(memory.get(), value.sizes(), [memory](void*) {}, value.options().requires_grad(false));
}

Found find_all(const Weights& weights, const Parameter& parameter, bool takes_scaled) {
  Found found;
  for (const GlobalTensor& tensor : global_tensors(parameter.spec))
    found.emplace(tensor.name, find_checked(weights, tensor, parameter, takes_scaled));
  return found;
}

// The blocks of a run, none of which covers more than a window of the file, unless a single row does.
void cut_run(const ShardRun& run, FileBlock block, std::vector<FileBlock>& blocks) {
  const int64_t window = kWindowBytes / (block.is_decoded() ? sizeof(float) : size_of(block.tensor->dtype));
  const int64_t rows = run.count / run.run_length;
  const int64_t rows_at_once = std::max<int64_t>(1, window / std::max(run.run_stride, run.run_length));
  for (int64_t row = 0; row < rows; row += rows_at_once) {
    block.rows = std::min(rows_at_once, rows - row);
    const int64_t columns_at_once = block.rows > 1 ? run.run_length : window;
    for (int64_t column = 0; column < run.run_length; column += columns_at_once) {
      block.length = std::min(columns_at_once, run.run_length - column);
      block.stride = block.rows > 1 ? run.run_stride : block.length;
      block.from = run.offset + row * run.run_stride + column;
      block.local = run.local + row * run.run_length + column;
      blocks.push_back(block);
    }
  }
}

// Reads the bytes of |block| as stored in the file, row after row. |to| must be large enough.
void copy_rows(const FileBlock& block, std::byte* to) {
  const auto size = static_cast<size_t>(size_of(block.tensor->dtype));
  const std::byte* from = block.data().data();
  const size_t row_bytes = static_cast<size_t>(block.length) * size;
  for (int64_t row = 0; row < block.rows; ++row)
    std::memcpy(to + static_cast<size_t>(row) * row_bytes, from + static_cast<size_t>(row * block.stride) * size,
                row_bytes);
}

// Whether the file's bytes can be copied to the parameter's memory unchanged.
bool is_plain(const FileBlock& block) {
  return block.to->device().is_cpu() && float_type(block.tensor->dtype) == block.to->scalar_type();
}

void copy_decoded(const FileBlock& block, const at::Tensor& to) {
  const auto length = static_cast<size_t>(block.length), stride = static_cast<size_t>(block.stride);
  const auto values = std::make_unique_for_overwrite<float[]>(static_cast<size_t>(block.rows) * length);
  const std::span<const std::byte> data = block.data();
  for (int64_t row = 0; row < block.rows; ++row) {
    const auto number = static_cast<size_t>(row);
    const std::span<float> out{values.get() + number * length, length};
    const int64_t first = block.from + row * block.stride;
    if (block.packed != nullptr) {
      block.packed->decode(first, out);
    } else {
      block.scales->decode(data.subspan(number * stride, length), first, out);
    }
  }
  to.copy_(at::from_blob(values.get(), {block.rows, block.length}, at::kFloat));
}

void copy_converted(const FileBlock& block) {
  const at::Tensor to = block.to->narrow(0, block.local, block.rows * block.length).view({block.rows, block.length});
  if (block.is_decoded()) return copy_decoded(block, to);
  const c10::ScalarType type = *float_type(block.tensor->dtype);
  const std::span<const std::byte> data = block.data();
  if (Reader::is_aligned(data, block.tensor->dtype)) {
    to.copy_(at::from_blob(const_cast<std::byte*>(data.data()), {block.rows, block.length}, {block.stride, 1}, type));
    return;
  }
  const size_t bytes = static_cast<size_t>(block.rows * block.length * size_of(block.tensor->dtype));
  const auto staging = std::make_unique_for_overwrite<std::byte[]>(bytes);
  copy_rows(block, staging.get());
  to.copy_(at::from_blob(staging.get(), {block.rows, block.length}, type));
}

void copy(const FileBlock& block) {
  if (is_plain(block)) {
    copy_rows(block, static_cast<std::byte*>(block.to->data_ptr()) + block.local * block.to->element_size());
  } else {
    copy_converted(block);
  }
  block.file->release(block.data());
}

// In file order, so that a disk reads sequentially.
void copy_all(std::vector<FileBlock>& blocks) {
  std::sort(blocks.begin(), blocks.end(), [](const FileBlock& a, const FileBlock& b) {
    return std::pair(a.file, a.data().data()) < std::pair(b.file, b.data().data());
  });
  const bool on_host =
      std::all_of(blocks.begin(), blocks.end(), [](const FileBlock& b) { return b.to->device().is_cpu(); });
  const auto copy_range = [&](int64_t begin, int64_t end) {
    const at::NoGradGuard no_grad;
    for (int64_t i = begin; i < end; ++i) copy(blocks[static_cast<size_t>(i)]);
  };
  const auto count = static_cast<int64_t>(blocks.size());
  if (on_host) {
    at::parallel_for(0, count, 1, copy_range);
  } else {
    copy_range(0, count);  // a device's current stream belongs to this thread
  }
}

}  // namespace

void load_hf_weights(const std::string& folder, std::span<Parameter* const> parameters, const ShardPlace& place,
                     const HfLoadOptions& options) {
  const Weights weights(folder, options.stem);
  check_extra(weights, options);
  std::vector<at::Tensor> values(parameters.size()), mapped(parameters.size());
  std::vector<FileBlock> blocks;
  std::map<std::string, BlockScales> scales;  // of tensors that have them, by name
  const auto scales_of = [&](const Weights::Tensor& tensor) -> const BlockScales* {
    if (!is_scaled(tensor)) return nullptr;
    return &scales.try_emplace(tensor.info->name, weights, tensor, options.weight_block_size).first->second;
  };
  std::map<std::string, Mxfp4Weight> packed;  // the same of weights
  const auto packed_of = [&](const ShardRun& run, const Weights::Tensor& tensor,
                             const Parameter& parameter) -> const Mxfp4Weight* {
    if (tensor.info->dtype != safetensors::DType::kU8) return nullptr;
    std::vector<int64_t> shape;
    for (const ShardSpec::Dim& dim : parameter.spec.dims) shape.push_back(dim.size);
    return &packed.try_emplace(run.tensor, weights, run.tensor, shape).first->second;
  };
  for (size_t i = 0; i < parameters.size(); ++i) {
    const Parameter& parameter = *parameters[i];
    check_value(parameter, local_shape(parameter.spec, place));
    const Found found = find_all(weights, parameter, !options.weight_block_size.empty());
    if (options.map_files) mapped[i] = map_value(parameter, place, found);
    if (mapped[i].defined()) continue;
    values[i] = parameter.value.detach().view({-1});
    for (const ShardRun& run : shard_runs(parameter.spec, place)) {
      const Weights::Tensor& tensor = found.at(run.tensor);
      cut_run(run,
              {.file = tensor.file,
               .tensor = tensor.info,
               .scales = scales_of(tensor),
               .packed = packed_of(run, tensor, parameter),
               .to = &values[i],
               .from = 0,
               .local = 0,
               .rows = 0,
               .length = 0,
               .stride = 0},
              blocks);
    }
  }
  copy_all(blocks);
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < parameters.size(); ++i) {
    if (mapped[i].defined()) {
      parameters[i]->value.set_data(mapped[i]);
    } else {
      clear_padding(parameters[i]->value, parameters[i]->spec, place);
    }
  }
}

}  // namespace concord
