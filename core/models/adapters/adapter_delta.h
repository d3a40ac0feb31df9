// The changes that a LoRA adapter makes to the weights of its base model: adds scale * B A for each target module, and
// replaces modules that the adapter stores whole. Reads peft's files in parts, so that memory does not depend on the
// model size. Needs no libtorch.
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
  // Opens the adapter in |folder|. Throws ConfigError, with the file and the tensor, if a tensor is not part of an A
  // and B of the rank in the config.
  explicit AdapterDelta(const std::string& folder);

  int64_t size() const { return static_cast<int64_t>(pairs_.size() + whole_.size()); }  // weights that it changes
  bool changes(const std::string& weight) const { return pairs_.contains(weight); }
  // Returns the tensor that replaces |weight|; null if it is not replaced.
  const safetensors::Weights::Tensor* replacement(const std::string& weight) const;

  // Throws ConfigError if |model| lacks the weight of a module, or its shape differs from B A.
  void check(const safetensors::Weights& model) const;

  // Reads the changes of one weight after another. Keeps the A that it used last.
  class Cursor {
   public:
    explicit Cursor(const AdapterDelta& delta) : delta_(&delta) {}
    // Elements [first, first + out.size()) of what is added to |weight| ("model.layers.0.mlp.up_proj.weight"), as peft
    // rounds it: the sum in |out|, which is of float32 values, times the scale. False if nothing is added.
    bool read(const std::string& weight, int64_t first, std::span<double> out);

    // Like read(), but also returns elements of the tensor that replaces |weight|.
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
