// The weights of a Hugging Face folder: model.safetensors, or several files and model.safetensors.index.json, which
// says which tensor is in which.
//
// Threads: any, at the same time. Errors: ConfigError with the folder or file, the tensor and both values.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/safetensors/reader.h"

namespace concord::safetensors {

// What the names of the files begin with: "model" for weights, as transformers has it,
// "optimizer" for the state of one in a checkpoint.
inline constexpr const char* kModelStem = "model";
inline constexpr const char* kOptimizerStem = "optimizer";
inline constexpr const char* kSingleFile = "model.safetensors";
inline constexpr const char* kIndexFile = "model.safetensors.index.json";
std::string single_file(const std::string& stem);  // kSingleFile of the stem "model"
std::string index_file(const std::string& stem);   // kIndexFile

// Tensor name -> name of the file that has it. |file| is named in errors. Refuses what is not JSON or has another form,
// a tensor twice, and files that are not plain names within the folder: those with a '/', "..", an empty one. Pure.
std::map<std::string, std::string> parse_index(std::string_view json, const std::string& file);
// What an index file says; the other direction of parse_index. |total_bytes|: of all tensors.
std::string index_json(const std::map<std::string, std::string>& files, uint64_t total_bytes);

// All tensors of a folder, or of a single file.
class Weights {
 public:
  struct Tensor {
    const TensorInfo* info;
    const Reader* file;
  };

  // |path| is a folder or a safetensors file. As transformers does, model.safetensors goes before an index. All files
  // are opened and checked, none is read: an index has to name each tensor of each of its files, and nothing else.
  // Links are followed, because the hub's cache is made of them. Pickle files, which can run code, are refused.
  explicit Weights(const std::string& path, const std::string& stem = kModelStem);

  const std::string& path() const { return path_; }
  const std::map<std::string_view, Tensor>& tensors() const { return tensors_; }
  const Tensor* find(std::string_view name) const;  // null if there is none
  std::span<const std::unique_ptr<Reader>> files() const { return files_; }

 private:
  void open_indexed(const std::string& index);
  void add(const Reader& file);

  std::string path_;
  std::vector<std::unique_ptr<Reader>> files_;
  std::map<std::string_view, Tensor> tensors_;  // into files_
};

}  // namespace concord::safetensors
