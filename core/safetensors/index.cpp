#include "core/safetensors/index.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <set>

#include "core/base/config_error.h"
#include "core/base/files/input_file.h"
#include "core/base/parse_json.h"
#include "core/base/quoted.h"

namespace concord::safetensors {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kMaxIndexBytes = 100'000'000;

[[noreturn]] void refuse_index(const std::string& file, const std::string& why) {
  throw ConfigError(fmt::format("{}: {}", file, why));
}

// Handles {"metadata": {...}, "weight_map": {"name": "file", ...}}; the metadata is ignored.
class IndexSax {
 public:
  using number_integer_t = nlohmann::json::number_integer_t;
  using number_unsigned_t = nlohmann::json::number_unsigned_t;
  using number_float_t = nlohmann::json::number_float_t;
  using string_t = nlohmann::json::string_t;
  using binary_t = nlohmann::json::binary_t;

  IndexSax(const std::string& file, std::map<std::string, std::string>& files) : file_(file), files_(files) {}

  bool start_object(size_t) {
    if (depth_ == 1 && in_map_) has_map_ = true;
    if (depth_ == 2 && in_map_) other("an object");
    return deeper();
  }
  bool start_array(size_t) {
    if (depth_ == 0 || in_map_) other("a list");
    return deeper();
  }
  bool end_object() { return --depth_, true; }
  bool end_array() { return --depth_, true; }

  bool key(const string_t& text) {
    if (depth_ == 1) {
      if (!keys_.insert(text).second) refuse_index(file_, fmt::format("duplicate key {}", quoted(text)));
      in_map_ = text == "weight_map";
    } else if (depth_ == 2 && in_map_) {
      tensor_ = text;
    }
    return true;
  }

  bool string(const string_t& text) {
    if (depth_ == 0 || (depth_ == 1 && in_map_)) other(fmt::format("the string {}", quoted(text)));
    if (!in_map_) return true;
    check_plain(text);
    if (!files_.emplace(tensor_, text).second) refuse_index(file_, fmt::format("duplicate tensor {}", quoted(tensor_)));
    return true;
  }

  bool number_unsigned(number_unsigned_t value) { return simple(fmt::format("the number {}", value)); }
  bool number_integer(number_integer_t value) { return simple(fmt::format("the number {}", value)); }
  bool number_float(number_float_t, const string_t& text) { return simple(fmt::format("the number {}", quoted(text))); }
  bool null() { return simple("null"); }
  bool boolean(bool value) { return simple(value ? "true" : "false"); }
  bool binary(binary_t&) { return simple("binary data"); }

  bool parse_error(size_t position, const std::string& token, const nlohmann::json::exception&) {
    refuse_index(file_, fmt::format("is not JSON: at byte {} after {}", position, quoted(token)));
  }

  bool has_map() const { return has_map_; }

 private:
  static constexpr int kMaxDepth = 16;

  bool deeper() {
    if (++depth_ > kMaxDepth) refuse_index(file_, fmt::format("is nested deeper than {}", kMaxDepth));
    return true;
  }
  bool simple(const std::string& what) {
    if (depth_ == 0 || in_map_) other(what);
    return true;
  }
  [[noreturn]] void other(const std::string& what) const {
    if (depth_ < 2) refuse_index(file_, fmt::format("expected {{\"weight_map\": {{tensor: file}}}}, got {}", what));
    refuse_index(file_, fmt::format("has {} as the file of tensor {}", what, quoted(tensor_)));
  }
  void check_plain(const string_t& name) const {
    if (name.empty() || name == "." || name == ".." || name.find('/') != std::string::npos ||
        name.find('\0') != std::string::npos) {
      refuse_index(file_,
                   fmt::format("tensor {} has the file name {}; must be a file in the same folder, without a '/'",
                               quoted(tensor_), quoted(name)));
    }
  }

  const std::string& file_;
  std::map<std::string, std::string>& files_;
  int depth_ = 0;
  bool in_map_ = false;
  bool has_map_ = false;
  std::set<std::string> keys_;
  std::string tensor_;
};

// The error for a folder without readable weights.
[[noreturn]] void refuse_folder(const std::string& folder, const std::string& stem) {
  std::vector<std::string> pickles, others;
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string(), suffix = entry.path().extension().string();
    if (suffix == ".bin" || suffix == ".pt" || suffix == ".pth" || suffix == ".ckpt") pickles.push_back(name);
    if (suffix == ".safetensors") others.push_back(name);
  }
  std::sort(pickles.begin(), pickles.end());
  std::sort(others.begin(), others.end());
  if (!others.empty()) {
    refuse_index(folder, fmt::format("has {}, but neither {} nor {}", fmt::join(others, ", "), single_file(stem),
                                     index_file(stem)));
  }
  if (!pickles.empty()) {
    refuse_index(folder,
                 fmt::format("has its weights as pickle ({}), which can run code when loaded and is therefore not "
                             "supported; if you trust it, convert it: python -c \"from transformers import "
                             "AutoModelForCausalLM as M; M.from_pretrained('FOLDER').save_pretrained('NEW_FOLDER')\"",
                             fmt::join(pickles, ", ")));
  }
  refuse_index(folder, fmt::format("has no weights: neither {} nor {}", single_file(stem), index_file(stem)));
}

}  // namespace

std::map<std::string, std::string> parse_index(std::string_view json, const std::string& file) {
  refuse_zero_byte(json, file);
  std::map<std::string, std::string> files;
  IndexSax sax(file, files);
  nlohmann::json::sax_parse(json.begin(), json.end(), &sax);
  if (!sax.has_map()) refuse_index(file, "has no weight_map");
  return files;
}

std::string index_json(const std::map<std::string, std::string>& files, uint64_t total_bytes) {
  const nlohmann::ordered_json json = {{"metadata", {{"total_size", total_bytes}}}, {"weight_map", files}};
  return json.dump(2) + "\n";
}

std::string single_file(const std::string& stem) { return stem + ".safetensors"; }
std::string index_file(const std::string& stem) { return stem + ".safetensors.index.json"; }

Weights::Weights(const std::string& path, const std::string& stem) : path_(path) {
  std::error_code ignored;
  if (!fs::is_directory(path, ignored)) {
    files_.push_back(std::make_unique<Reader>(path));
    add(*files_.back());
    return;
  }
  const std::string single = path + "/" + single_file(stem), index = path + "/" + index_file(stem);
  if (fs::exists(single, ignored)) {
    files_.push_back(std::make_unique<Reader>(single));
    add(*files_.back());
  } else if (fs::exists(index, ignored)) {
    open_indexed(index);
  } else {
    refuse_folder(path, stem);
  }
}

void Weights::open_indexed(const std::string& index) {
  const std::map<std::string, std::string> places =
      parse_index(InputFile(index).read(kMaxIndexBytes, "an index"), index);
  std::set<std::string> names;
  for (const auto& [tensor, file] : places) names.insert(file);
  std::map<std::string, const Reader*> readers;
  for (const std::string& name : names) {
    const std::string file = path_ + "/" + name;
    if (!fs::exists(file))
      refuse_index(index, fmt::format("refers to the file {}, which is not in {}", quoted(name), path_));
    files_.push_back(std::make_unique<Reader>(file));
    readers[name] = files_.back().get();
    for (const TensorInfo& tensor : files_.back()->tensors()) {
      const auto place = places.find(tensor.name);
      if (place == places.end() || place->second != name) {
        refuse_index(index, fmt::format("says that tensor {} is in {}, but it is in {}", quoted(tensor.name),
                                        place == places.end() ? "no file" : quoted(place->second), quoted(name)));
      }
    }
    add(*files_.back());
  }
  for (const auto& [tensor, name] : places) {
    if (readers.at(name)->find(tensor) == nullptr)
      refuse_index(index, fmt::format("says that tensor {} is in {}, but it is not", quoted(tensor), quoted(name)));
  }
}

void Weights::add(const Reader& file) {
  for (const TensorInfo& tensor : file.tensors()) tensors_.emplace(tensor.name, Tensor{&tensor, &file});
}

const Weights::Tensor* Weights::find(std::string_view name) const {
  const auto found = tensors_.find(name);
  return found == tensors_.end() ? nullptr : &found->second;
}

}  // namespace concord::safetensors
