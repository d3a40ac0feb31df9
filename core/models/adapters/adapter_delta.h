// What a LoRA adapter changes of the weights of its base model: scale * B A is added for each of its pairs, modules
// that it has whole replace the model's. Read from peft's files in parts, so that memory does not depend on the model.
// Needs no libtorch.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/models/adapters/adapter_config.h"
#include "core/safetensors/index.h"

namespace concord {

// Threads: any, at the same time; a Cursor belongs to one.
class AdapterDelta {
 public:
  // Of the adapter in |folder|. Throws ConfigError for what is not a pair of A and B, or has another rank than the
  // config says, with the file and the tensor.
  explicit AdapterDelta(const std::string& folder);

  int64_t size() const { return static_cast<int64_t>(pairs_.size() + whole_.size()); }  // weights that it changes
  bool changes(const std::string& weight) const { return pairs_.contains(weight); }
  // What replaces |weight|; null if nothing does.
  const safetensors::Weights::Tensor* replacement(const std::string& weight) const;

  // Throws ConfigError if |model| lacks the weight of a module, or it has another shape than B A.
  void check(const safetensors::Weights& model) const;

  // Reads the changes of one weight after another. Keeps the A that it used last.
  class Cursor {
   public:
    explicit Cursor(const AdapterDelta& delta) : delta_(&delta) {}
    // Elements [first, first + out.size()) of what is added to |weight| ("model.layers.0.mlp.up_proj.weight"), as peft
    // rounds it: the sum in |out|, which is of float32 values, times the scale. False if nothing is added.
    bool read(const std::string& weight, int64_t first, std::span<double> out);

    // The same, or elements of what replaces |weight|.
    bool read_any(const std::string& weight, int64_t first, std::span<double> out);

    // With DoRA, what the rows [first_row, end_row) of the sum are multiplied by; |source| is the weight. Else empty.
    std::vector<double> row_factors(const std::string& weight, const safetensors::Weights::Tensor& source,
                                    int64_t first_row, int64_t end_row);

   private:
    const AdapterDelta* delta_;
    std::string weight_;
    std::vector<double> a_;
  };

 private:
  struct Pair {
    safetensors::Weights::Tensor a, b;
    double scale;
    std::optional<safetensors::Weights::Tensor> magnitude = {};  // of DoRA
    int64_t rank() const { return a.info->shape[0]; }
    int64_t inputs() const { return a.info->shape[1]; }
    int64_t outputs() const { return b.info->shape[0]; }
  };

  safetensors::Weights weights_;
  std::map<std::string, Pair> pairs_;  // by the weight that they change
  std::map<std::string, safetensors::Weights::Tensor> whole_;
};

}  // namespace concord
