// The weights of a Hugging Face folder: model.safetensors, or several files with model.safetensors.index.json, which
// maps tensors to files.
//
// Threads: any, concurrently. Throws ConfigError with the folder or file, the tensor and both values.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/safetensors/reader.h"

namespace concord::safetensors {

// Prefixes of file names: "model" for weights, as in transformers, "optimizer" for the optimizer state in a checkpoint.
inline constexpr const char* kModelStem = "model";
inline constexpr const char* kOptimizerStem = "optimizer";
inline constexpr const char* kSingleFile = "model.safetensors";
inline constexpr const char* kIndexFile = "model.safetensors.index.json";
std::string single_file(const std::string& stem);  // kSingleFile for the stem "model"
std::string index_file(const std::string& stem);   // kIndexFile

// Returns the file of each tensor. |file| is used in messages. Throws ConfigError for invalid JSON, a different
// structure, duplicate tensors, and file names that are not plain names within the folder (with a '/', "..", empty).
// Pure.
std::map<std::string, std::string> parse_index(std::string_view json, const std::string& file);
// Returns the content of an index file: the inverse of parse_index(). |total_bytes| is the size of all tensors.
std::string index_json(const std::map<std::string, std::string>& files, uint64_t total_bytes);

// All tensors of a folder, or of a single file.
class Weights {
 public:
  struct Tensor {
    const TensorInfo* info;
    const Reader* file;
  };

  // |path| is a folder or a safetensors file. As in transformers, model.safetensors takes precedence over an index.
  // Opens and checks all files without reading their data: an index must list each tensor of each of its files, and
  // nothing else. Follows links, of which the hub's cache consists. Rejects pickle files, which can run code.
  explicit Weights(const std::string& path, const std::string& stem = kModelStem);

  const std::string& path() const { return path_; }
  const std::map<std::string_view, Tensor>& tensors() const { return tensors_; }
  const Tensor* find(std::string_view name) const;  // null if it does not exist
  std::span<const std::unique_ptr<Reader>> files() const { return files_; }

 private:
  void open_indexed(const std::string& index);
  void add(const Reader& file);

  std::string path_;
  std::vector<std::unique_ptr<Reader>> files_;
  std::map<std::string_view, Tensor> tensors_;  // points into files_
};

}  // namespace concord::safetensors
