#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/from_blob.h>
#include <fmt/core.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <map>
#include <memory>
#include <optional>
#include <unordered_set>

#include "core/base/config_error.h"
#include "core/base/quoted.h"
#include "core/checkpoint/hf_dtype.h"
#include "core/checkpoint/hf_plan.h"
#include "core/checkpoint/hf_weights.h"
#include "core/checkpoint/read/block_scales.h"
#include "core/checkpoint/read/mxfp4.h"
#include "core/checkpoint/read/parallel_load.h"
#include "core/mesh/agreement.h"
#include "core/safetensors/index.h"

namespace concord {
namespace {

using safetensors::Reader;
using safetensors::TensorInfo;
using safetensors::Weights;

constexpr uint64_t kMinMappedBytes = 1 << 18;  // smaller values are not worth their own mapping
constexpr size_t kMinReadBytes = 1 << 16;      // rows shorter than this are not worth a system call each

// A block of a tensor in a file, |rows| of |length| elements at a distance of |stride|, and its destination.
struct FileBlock {
  const Reader* file;
  const TensorInfo* tensor;
  const BlockScales* scales;  // scales of an FP8 tensor
  const Mxfp4Weight* packed;  // the MXFP4 weight whose blocks are |tensor|; both null: plain
  const at::Tensor* to;       // flat
  int64_t from;               // first element in the tensor of the file
  int64_t local;              // first element in |to|
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

std::string without_part(const std::string& name) {
  for (const TextPart& part : kTextParts) {
    if (name.starts_with(part.there)) return std::string(part.here) + name.substr(part.there.size());
  }
  return name;
}

const Weights::Tensor* find_named(const Weights& weights, const std::string& name) {
  const Weights::Tensor* found = weights.find(name);
  for (const TextPart& part : kTextParts) {
    if (found == nullptr) found = weights.find(part.in_files(name));
  }
  return found;
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

// The contiguous range of a file that holds the whole parameter in order: the gate and up pieces do, in files written
// by transformers.
struct Stretch {
  const Reader* file = nullptr;
  const TensorInfo* tensor = nullptr;  // the tensor in which it starts
  int64_t from = 0;                    // first element in that tensor
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

// Returns the value as a mapping of its file; undefined if it must be copied.
at::Tensor map_value(const Parameter& parameter, const ShardPlace& place, const Found& found) {
  const at::Tensor& value = parameter.value;
  const safetensors::DType dtype = found.begin()->second.info->dtype;
  const auto bytes = static_cast<uint64_t>(value.numel() * value.element_size());
  if (bytes < kMinMappedBytes || !value.device().is_cpu() || float_type(dtype) != value.scalar_type()) return {};
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

// Splits a run into blocks, each of at most |window_bytes| of the file, unless a single row is longer.
void cut_run(const ShardRun& run, FileBlock block, int64_t window_bytes, std::vector<FileBlock>& blocks) {
  const int64_t element = block.is_decoded() ? int64_t{sizeof(float)} : size_of(block.tensor->dtype);
  const int64_t window = window_bytes / element;
  const bool is_contiguous = run.run_stride == run.run_length;
  const int64_t row_length = is_contiguous ? run.count : run.run_length;
  const int64_t stride = is_contiguous ? run.count : run.run_stride;
  const int64_t rows = run.count / row_length;
  const int64_t rows_at_once = std::max<int64_t>(1, window / std::max(stride, row_length));
  for (int64_t row = 0; row < rows; row += rows_at_once) {
    block.rows = std::min(rows_at_once, rows - row);
    const int64_t columns_at_once = block.rows > 1 ? row_length : window;
    for (int64_t column = 0; column < row_length; column += columns_at_once) {
      block.length = std::min(columns_at_once, row_length - column);
      block.stride = block.rows > 1 ? stride : block.length;
      block.from = run.offset + row * stride + column;
      block.local = run.local + row * row_length + column;
      blocks.push_back(block);
    }
  }
}

// Copies the bytes of |block| as stored in the file, row after row. |to| must be large enough.
void copy_rows(const FileBlock& block, std::byte* to) {
  const auto size = static_cast<size_t>(size_of(block.tensor->dtype));
  const std::byte* from = block.data().data();
  const size_t row_bytes = static_cast<size_t>(block.length) * size;
  for (int64_t row = 0; row < block.rows; ++row)
    std::memcpy(to + static_cast<size_t>(row) * row_bytes, from + static_cast<size_t>(row * block.stride) * size,
                row_bytes);
}

// Like copy_rows(), without the mapping, whose page faults cost as much as the copy.
void read_rows(const FileBlock& block, std::byte* to) {
  const auto size = static_cast<uint64_t>(size_of(block.tensor->dtype));
  const auto row_bytes = static_cast<size_t>(block.length) * size;
  for (int64_t row = 0; row < block.rows; ++row) {
    block.file->read(*block.tensor, static_cast<uint64_t>(block.from + row * block.stride) * size, {to, row_bytes});
    to += row_bytes;
  }
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
  if (!is_plain(block)) {
    copy_converted(block);
  } else {
    std::byte* const to = static_cast<std::byte*>(block.to->data_ptr()) + block.local * block.to->element_size();
    if (static_cast<size_t>(block.length * block.to->element_size()) >= kMinReadBytes) return read_rows(block, to);
    copy_rows(block, to);
  }
  block.file->release(block.data());
}

// Copies in file order, so that a disk reads sequentially.
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

// The files of a folder and the tensors that a rank needs from them.
class FolderLoad {
 public:
  // Checks everything.
  FolderLoad(const std::string& folder, std::span<Parameter* const> parameters, const ShardPlace& place,
             const HfLoadOptions& options)
      : weights_(folder, options.stem), options_(options), place_(place) {
    check_extra(weights_, options);
    for (Parameter* parameter : parameters) {
      check_value(*parameter, local_shape(parameter->spec, place));
      targets_.push_back({.parameter = parameter,
                          .found = find_all(weights_, *parameter, !options.weight_block_size.empty()),
                          .value = parameter->value.detach().view({-1}),
                          .runs = shard_runs(parameter->spec, place)});
      for (const auto& [name, tensor] : targets_.back().found) add_scales(name, tensor, *parameter);
    }
  }

  void read_alone() {
    std::vector<FileBlock> blocks;
    for (Target& target : targets_) {
      if (options_.map_files) target.mapped = map_value(*target.parameter, place_, target.found);
      if (!target.mapped.defined()) add_blocks(target, target.runs, target.value, &blocks);
    }
    read(blocks);
  }

  // Loads together with the ranks that need the same tensors; returns the error of this rank (read_and_all_gather).
  std::exception_ptr read_with(ParallelContext& job) {
    std::exception_ptr error;
    const auto keep_first = [&](const std::exception_ptr& later) { error = error ? error : later; };
    for (const GroupKind kind : {GroupKind::dp_cp, GroupKind::edp}) keep_first(read_in(job.group(kind), kind, job));
    return error;
  }

  // Returns the bytes of tensors that were read.
  int64_t finish() {
    const at::NoGradGuard no_grad;
    for (const Target& target : targets_) {
      if (target.mapped.defined()) {
        target.parameter->value.set_data(target.mapped);
      } else {
        clear_padding(target.parameter->value, target.parameter->spec, place_);
      }
    }
    return bytes_read_;
  }

 private:
  struct Target {
    Parameter* parameter;
    Found found;
    at::Tensor value;  // flat
    std::vector<ShardRun> runs;
    at::Tensor mapped = {};  // the new value, if it need not be read
  };

  // |name| is the name in the parameter's runs.
  void add_scales(const std::string& name, const Weights::Tensor& tensor, const Parameter& parameter) {
    if (is_scaled(tensor)) scales_.try_emplace(tensor.info->name, weights_, tensor, options_.weight_block_size);
    if (!is_packed(tensor)) return;
    std::vector<int64_t> shape;
    for (const ShardSpec::Dim& dim : parameter.spec.dims) shape.push_back(dim.size);
    packed_.try_emplace(name, weights_, name, shape);
  }

  static bool is_packed(const Weights::Tensor& tensor) { return tensor.info->dtype == safetensors::DType::kU8; }

  // |to| holds the elements of |runs|, and must not move.
  void add_blocks(const Target& target, const std::vector<ShardRun>& runs, const at::Tensor& to,
                  std::vector<FileBlock>* blocks) const {
    for (const ShardRun& run : runs) {
      const Weights::Tensor& tensor = target.found.at(run.tensor);
      cut_run(run,
              {.file = tensor.file,
               .tensor = tensor.info,
               .scales = is_scaled(tensor) ? &scales_.at(tensor.info->name) : nullptr,
               .packed = is_packed(tensor) ? &packed_.at(run.tensor) : nullptr,
               .to = &to,
               .from = 0,
               .local = 0,
               .rows = 0,
               .length = 0,
               .stride = 0},
              options_.window_bytes, *blocks);
    }
  }

  void read(std::vector<FileBlock>& blocks) {
    copy_all(blocks);
    for (const FileBlock& block : blocks) bytes_read_ += block.rows * block.length * size_of(block.tensor->dtype);
  }

  // Reads the targets that are replicated over the group |kind|.
  std::exception_ptr read_in(ProcessGroup& group, GroupKind kind, ParallelContext& job) {
    std::vector<const Target*> shared;
    std::vector<at::Tensor> values;
    for (const Target& target : targets_) {
      const std::vector<GroupKind>& over = target.parameter->spec.replicated_over;
      if (std::find(over.begin(), over.end(), kind) == over.end()) continue;
      shared.push_back(&target);
      values.push_back(target.value);
    }
    return read_and_all_gather(
        group, job.torch_device(), values, [&](std::span<const ReadShard> pieces, std::byte* share) {
          std::vector<at::Tensor> parts;
          parts.reserve(pieces.size());  // blocks point to them
          std::vector<FileBlock> blocks;
          for (const ReadShard& piece : pieces) {
            const Target& target = *shared[piece.tensor];
            parts.push_back(at::from_blob(share + piece.at, {piece.end - piece.begin}, target.value.scalar_type()));
            add_blocks(target, cut_runs(target.runs, piece.begin, piece.end), parts.back(), &blocks);
          }
          read(blocks);
        });
  }

  const Weights weights_;
  const HfLoadOptions options_;
  const ShardPlace place_;
  std::vector<Target> targets_;
  std::map<std::string, BlockScales> scales_;  // FP8 tensors, by name
  std::map<std::string, Mxfp4Weight> packed_;  // MXFP4 weights, by name
  int64_t bytes_read_ = 0;
};

// Checks that every parameter is replicated over one of the two groups.
void check_groups(std::span<Parameter* const> parameters) {
  for (const Parameter* parameter : parameters) {
    const std::vector<GroupKind>& over = parameter->spec.replicated_over;
    const auto has = [&](GroupKind kind) { return std::count(over.begin(), over.end(), kind); };
    if (has(GroupKind::dp_cp) + has(GroupKind::edp) != 1)
      throw ConfigError(
          fmt::format("parameter {}: it is not known which ranks need the same elements", parameter->spec.name));
  }
}

}  // namespace

int64_t load_hf_weights(const std::string& folder, std::span<Parameter* const> parameters, const ShardPlace& place,
                        const HfLoadOptions& options) {
  std::optional<FolderLoad> load;
  if (options.sharing == nullptr) {
    load.emplace(folder, parameters, place, options);
    load->read_alone();
    return load->finish();
  }
  run_and_propagate_errors(*options.sharing, [&] {
    check_groups(parameters);
    load.emplace(folder, parameters, place, options);
  });
  const std::exception_ptr error = load->read_with(*options.sharing);
  run_and_propagate_errors(*options.sharing, [&] {
    if (error) std::rethrow_exception(error);
  });
  return load->finish();
}

}  // namespace concord
