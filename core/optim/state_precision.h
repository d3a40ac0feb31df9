// The types of the optimizer's state: one value that names the type of every class of state tensor, and the plan that
// follows from it, which `concord plan --buckets` prints. Updates are computed in fp32; core/optim/narrow_state.h
// converts. Pure values; needs no libtorch.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/optim/optimizer_options.h"

namespace concord {

// Returns the type of the state |key| (OptimizerState::Entry::key), which is not that of main weights.
StateType state_type(const StatePrecision& precision, std::string_view key);

// The state of one element of a parameter.
struct StatePlan {
  struct Tensor {
    std::string key;
    StateType type;                              // of its decoded values
    MainParamsType main = MainParamsType::fp32;  // of main weights

    std::string_view type_name() const;
    bool is_narrow() const { return type != StateType::fp32 || main != MainParamsType::fp32; }
    int64_t bytes(int64_t elements) const;
    bool operator==(const Tensor&) const = default;
  };
  std::vector<Tensor> tensors;

  double bytes() const;  // per element
  bool operator==(const StatePlan&) const = default;
};

// Returns the plan for a parameter that |options|.optimizer updates; for muon that of AdamW, which updates parameters
// that are not matrices. Tensors that are too small for blocks of codes (takes_blocks) are not distinguished. With
// |has_main| the parameter is 16-bit, with fp32 main weights.
StatePlan plan_state(const OptimizerOptions& options, bool has_main);
// Returns tensors, types and bytes as text: "exp_avg bf16 2 + exp_avg_sq fp32 4 + main fp32 4". Main weights without an
// fp32 copy take what is kept in addition to the parameter: "main remainder 2".
std::string to_text(const StatePlan& plan);

// Whether moments of a parameter that consists of tensors with these numbers of elements can be blocks of codes: as in
// bitsandbytes all have at least 4,096 elements, and as in torchao multiples of a block. Other moments stay in fp32,
// under every layout.
bool takes_blocks(std::span<const int64_t> elements);
// Returns the first parameter alignment of DataParallelOptions with which shards are whole blocks; 0: any.
int64_t state_alignment(const StatePrecision& precision);

// Throws ConfigError if a moment in bf16 would not decay: rounding to nearest would restore it.
void check_state_precision(const OptimizerOptions& options);

}  // namespace concord
