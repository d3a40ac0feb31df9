#include "core/models/convert.h"

#include <fmt/core.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <stdexcept>
#include <vector>

#include "core/base/bytes_text.h"
#include "core/base/config_error.h"
#include "core/base/files/input_file.h"
#include "core/base/files/paths.h"
#include "core/base/parse_json.h"
#include "core/base/quoted.h"
#include "core/base/threads.h"
#include "core/checkpoint/auxiliary_files.h"
#include "core/checkpoint/hf_plan.h"
#include "core/checkpoint/read/mxfp4.h"
#include "core/checkpoint/save_folder.h"
#include "core/models/adapters/adapter_delta.h"
#include "core/models/config.h"
#include "core/safetensors/decode.h"
#include "core/safetensors/encode.h"
#include "core/safetensors/index.h"
#include "core/safetensors/writer.h"

namespace concord {
namespace {

namespace fs = std::filesystem;
using safetensors::FilePart;
using safetensors::Weights;

constexpr int64_t kPieceElements = 1 << 19;
constexpr const char* kConfigFile = "config.json";
constexpr uint64_t kMaxConfigBytes = 16 << 20;
constexpr int64_t kMaxWriters = 4;

void check_folders(const std::string& from, const std::string& to) {
  std::error_code ignored;
  if (!fs::is_directory(from, ignored)) {
    throw ConfigError(fmt::format("{}: is not a folder; --from takes a checkpoint or a Hugging Face folder", from));
  }
  if (has_adapter(from)) {
    throw ConfigError(
        fmt::format("{}: holds an adapter, not a model's weights; `concord merge --adapter {} --out {}` adds it to its "
                    "base model",
                    from, from, to));
  }
  if (lies_in(to, from)) throw ConfigError(fmt::format("{}: lies in {}; choose a folder outside of it", to, from));
  if (fs::exists(fs::symlink_status(to, ignored)) && !(fs::is_directory(to, ignored) && fs::is_empty(to, ignored))) {
    throw ConfigError(fmt::format("{}: already exists; choose another folder, or remove it", to));
  }
}

class Conversion {
 public:
  Conversion(const ConvertOptions& options, const ConvertProgress& progress)
      : from_(without_trailing_slashes(options.from)),
        to_(without_trailing_slashes(options.to)),
        options_(options),
        progress_(progress) {}

  Converted run() {
    check_folders(from_, to_);
    find_other_files();
    weights_ = std::make_unique<Weights>(from_);
    check_types();
    if (options_.average) open_average();
    if (!options_.adapter.empty()) {
      adapter_.emplace(without_trailing_slashes(options_.adapter));
      adapter_->check(*weights_);
    }
    plan_ = plan_hf_folder(planned_tensors(), options_.max_shard_bytes);
    check_space();
    remove_abandoned_saves(fs::path(to_).parent_path().string());
    const std::string nonce = make_nonce();
    SaveFolder folder(to_, nonce);
    temporary_ = temporary_folder(to_, nonce);
    create_files();
    write_tensors();
    for (const auto& file : files_) file->sync();
    files_.clear();
    write_other_files();
    folder.publish();
    return {.files = static_cast<int64_t>(plan_.files.size()),
            .tensors = static_cast<int64_t>(plan_.file_of.size()),
            .changed = adapter_ ? adapter_->size() : 0,
            .bytes = plan_.total_bytes};
  }

 private:
  struct Piece {
    const Weights::Tensor* source;
    FilePart* file;
    safetensors::DType dtype;  // to write
    uint64_t place;            // offset of the tensor in the file
    int64_t first, count;
  };

  static bool is_packed(const Weights::Tensor& tensor) {
    return tensor.info->dtype == safetensors::DType::kU8 && !Mxfp4Weight::weight_of(tensor.info->name).empty();
  }
  void check_types() const {
    for (const auto& [name, tensor] : weights_->tensors()) {
      const bool merges = !options_.adapter.empty();
      const bool is_scaled = tensor.info->dtype == safetensors::DType::kF8E4M3 || is_packed(tensor);
      if ((!options_.dtype && !merges) || !is_scaled) continue;
      throw ConfigError(
          fmt::format("{}: tensor {} has type {}; such weights have scales, which {} does not apply. "
                      "`concord train --model {}` reads them, and saves them in its own type",
                      tensor.file->path(), quoted(name), to_string(tensor.info->dtype),
                      merges ? "a merge" : "a conversion", from_));
    }
  }

  // A checkpoint has the average among the optimizer's state (core/optim/optimizer.h), as "ema.<tensor>" in F32.
  void open_average() {
    averages_ = std::make_unique<Weights>(from_, safetensors::kOptimizerStem);
    for (const auto& [name, tensor] : weights_->tensors()) {
      const Weights::Tensor* average = averages_->find(fmt::format("ema.{}", name));
      if (average == nullptr) continue;  // it was not trained
      if (average->info->shape == tensor.info->shape) {
        has_average_ = true;
        continue;
      }
      throw ConfigError(fmt::format("{}: the average of {} and the weight differ in shape; the checkpoint is damaged",
                                    average->file->path(), quoted(name)));
    }
    if (!has_average_) {
      throw ConfigError(fmt::format("{}: has no average of the weights; it was saved without ema_decay", from_));
    }
  }

  safetensors::DType target_of(safetensors::DType dtype) const {
    return options_.dtype && safetensors::is_weight_type(dtype) ? *options_.dtype : dtype;
  }

  std::vector<safetensors::TensorShape> planned_tensors() const {
    std::vector<safetensors::TensorShape> tensors;
    for (const auto& [name, tensor] : weights_->tensors()) {
      tensors.push_back({std::string(name), target_of(tensor.info->dtype), tensor.info->shape});
    }
    return tensors;
  }

  // Not every file system reserves space when a file is made.
  void check_space() const {
    fs::path existing = fs::absolute(to_);
    std::error_code error;
    while (!fs::exists(existing, error) && existing.has_relative_path()) existing = existing.parent_path();
    const fs::space_info space = fs::space(existing, error);
    if (error || space.available >= plan_.total_bytes) return;
    throw std::runtime_error(
        fmt::format("{}: needs {}, but only {} are free there; free some space or choose another --to", to_,
                    bytes_text(plan_.total_bytes), bytes_text(space.available)));
  }

  const Weights::Tensor* source_of(const std::string& tensor) const {
    if (averages_) {
      const Weights::Tensor* average = averages_->find("ema." + tensor);
      if (average != nullptr) return average;
    }
    const Weights::Tensor* replaced = adapter_ ? adapter_->replacement(tensor) : nullptr;
    return replaced != nullptr ? replaced : weights_->find(tensor);
  }

  void create_files() {
    for (const HfFolderPlan::File& file : plan_.files) {
      FilePart& part = *files_.emplace_back(
          std::make_unique<FilePart>(temporary_ + "/" + file.name, FilePart::Mode::create, file.plan.file_bytes));
      part.write(0, std::as_bytes(std::span(file.plan.head)));
      for (const safetensors::TensorInfo& tensor : file.plan.tensors) {
        for (int64_t first = 0; first < tensor.elements(); first += kPieceElements) {
          pieces_.push_back({source_of(tensor.name), &part, tensor.dtype, file.plan.place_of(tensor), first,
                             std::min(kPieceElements, tensor.elements() - first)});
        }
      }
    }
  }

  void write_tensors() {
    run_on_threads(cores_for_each(1, kMaxWriters), [this] { work(); });
  }

  void work() {
    try {
      convert_pieces();
    } catch (...) {
      next_ = pieces_.size();  // nobody begins another one
      throw;
    }
  }

  void convert_pieces() {
    std::vector<std::byte> from, to;
    std::vector<double> values, change;
    std::optional<AdapterDelta::Cursor> cursor;
    if (adapter_) cursor.emplace(*adapter_);
    for (size_t next = next_++; next < pieces_.size(); next = next_++) {
      const Piece& piece = pieces_[next];
      const safetensors::DType dtype = piece.source->info->dtype;
      from.resize(static_cast<size_t>(piece.count * size_of(dtype)));
      piece.source->file->read(*piece.source->info, static_cast<uint64_t>(piece.first * size_of(dtype)), from);
      change.resize(static_cast<size_t>(piece.count));
      const bool changes = cursor && cursor->read(piece.source->info->name, piece.first, change);
      if (dtype != piece.dtype || changes) {
        values.resize(static_cast<size_t>(piece.count));
        to.resize(static_cast<size_t>(piece.count * size_of(piece.dtype)));
        safetensors::decode(from, dtype, values);
        if (changes) add_change(change, piece, &*cursor, &values);
        safetensors::encode(values, piece.dtype, to);
      }
      const std::vector<std::byte>& result = dtype == piece.dtype && !changes ? from : to;
      piece.file->write(piece.place + static_cast<uint64_t>(piece.first * size_of(piece.dtype)), result);
      report(result.size());
    }
  }

  static void add_change(const std::vector<double>& change, const Piece& piece, AdapterDelta::Cursor* cursor,
                         std::vector<double>* values) {
    for (size_t i = 0; i < change.size(); ++i) (*values)[i] += change[i];
    const int64_t inputs = piece.source->info->shape[1], first_row = piece.first / inputs;
    const int64_t end_row = (piece.first + piece.count + inputs - 1) / inputs;
    const std::vector<double> factors =
        cursor->row_factors(piece.source->info->name, *piece.source, first_row, end_row);
    for (size_t i = 0; !factors.empty() && i < values->size(); ++i) {
      (*values)[i] *= factors[static_cast<size_t>((piece.first + static_cast<int64_t>(i)) / inputs - first_row)];
    }
  }

  void report(uint64_t bytes) {
    const std::lock_guard lock(mutex_);
    done_ += bytes;
    if (progress_) progress_(done_, plan_.total_bytes);
  }

  // Refuses files that cannot be copied before a tensor is written.
  void find_other_files() {
    other_files_ = auxiliary_files_in(from_);
    std::error_code ignored;
    if (!fs::exists(fs::symlink_status(from_ + "/" + kConfigFile, ignored))) return;
    InputFile(from_ + "/" + kConfigFile);
    other_files_.emplace_back(kConfigFile);
  }

  void write_other_files() {
    if (plan_.has_index()) {
      write_file_durably(temporary_ + "/" + safetensors::kIndexFile,
                         safetensors::index_json(plan_.file_of, plan_.total_bytes));
    }
    for (const std::string& name : other_files_) {
      const std::string source = from_ + "/" + name, target = temporary_ + "/" + name;
      if (name != kConfigFile || !options_.dtype) {
        copy_file_durably(source, target);
        continue;
      }
      const std::string text = InputFile(source).read(kMaxConfigBytes, "a model's config");
      if (!parse_json<nlohmann::json>(text, source).is_object()) {
        throw ConfigError(fmt::format("{}: is not a JSON object", source));
      }
      write_file_durably(target, with_dtype(text, torch_name(*options_.dtype)));
    }
  }

  const std::string from_, to_;
  const ConvertOptions& options_;
  const ConvertProgress& progress_;
  std::unique_ptr<Weights> weights_;
  std::unique_ptr<Weights> averages_;
  bool has_average_ = false;
  std::optional<AdapterDelta> adapter_;
  std::vector<std::string> other_files_;  // names of the files to copy besides tensors
  HfFolderPlan plan_;
  std::string temporary_;
  std::vector<std::unique_ptr<FilePart>> files_;
  std::vector<Piece> pieces_;
  std::atomic<size_t> next_{0};
  std::mutex mutex_;
  uint64_t done_ = 0;
};

}  // namespace

const char* torch_name(safetensors::DType dtype) {
  switch (dtype) {
    case safetensors::DType::kF32: return "float32";
    case safetensors::DType::kBF16: return "bfloat16";
    case safetensors::DType::kF16: return "float16";
    default: throw std::logic_error("torch_name: not a type to convert to");
  }
}

Converted convert_weights(const ConvertOptions& options, const ConvertProgress& progress) {
  return Conversion(options, progress).run();
}

}  // namespace concord
