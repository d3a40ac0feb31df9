// The parameter plans of a stage while they are collected. Only for the sources behind parameter_plan.h.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "core/models/parameter_plan.h"

namespace concord {

class PlanList {
 public:
  using Dim = ShardSpec::Dim;
  using Piece = ShardSpec::Piece;

  // |config| and |options| have to outlive the list.
  PlanList(const ModelConfig& config, const ParameterPlanOptions& options) : config_(config), options_(options) {}

  // Appends a parameter that is replicated over dp_cp, and over tp unless one of |dims| is split. It is frozen if an
  // adapter is trained that does not save the module. The reference is valid until the next call.
  ParameterPlan& add(const std::string& name, std::vector<Dim> dims, WeightInit init, std::vector<Piece> pieces = {});
  // Like add(), for a parameter of the experts of a layer: a dimension of experts, split over ep, precedes |dims|.
  ParameterPlan& add_experts(const std::string& name, std::vector<Dim> dims, WeightInit init,
                             std::vector<Piece> pieces = {});

  int64_t size() const { return static_cast<int64_t>(plans_.size()); }
  // Multiplies the uses of the parameters whose index is at least |first|.
  void multiply_uses(int64_t first, int64_t factor) {
    for (auto plan = plans_.begin() + first; plan != plans_.end(); ++plan) plan->uses *= factor;
  }

  // Gives the tensors of these parameters other names in files.
  void rename_in_files(int64_t first, const std::function<std::string(const std::string&)>& renamed) {
    for (auto plan = plans_.begin() + first; plan != plans_.end(); ++plan) {
      ShardSpec& spec = plan->spec;
      if (spec.pieces.empty()) spec.pieces = {{spec.name, spec.dims[spec.fused_dim].size}};
      for (Piece& piece : spec.pieces) piece.name = renamed(piece.name);
    }
  }

  // Whether ranks of tp have different tokens between layers, so that gradients of replicated parameters are partial.
  bool splits_tokens() const { return options_.sequence_parallel && options_.tp > 1; }

  const ModelConfig& config() const { return config_; }
  const ParameterPlanOptions& options() const { return options_; }
  std::vector<ParameterPlan> take() { return std::move(plans_); }

 private:
  const ModelConfig& config_;
  const ParameterPlanOptions& options_;
  std::vector<ParameterPlan> plans_;
};

// Returns the module of a parameter: its name without the part after the last '.'.
inline std::string module_of(const std::string& parameter) { return parameter.substr(0, parameter.rfind('.')); }

}  // namespace concord
