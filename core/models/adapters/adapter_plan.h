// Plans the LoRA parameters of a stage; their names and shapes are in core/models/parameter_plan.h.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/models/plan_list.h"

namespace concord {

class AdapterPlan {
 public:
  using Dim = ShardSpec::Dim;
  using Piece = ShardSpec::Piece;

  // Appends to |list|, which has to outlive it. Without an adapter only the names of the modules are collected.
  explicit AdapterPlan(PlanList& list) : list_(list) {}

  // A module and its rows of the layer's weight.
  struct Module {
    std::string name;
    Dim rows;
    std::vector<Piece> joined = {};  // parts of the rows, if files store them as one tensor
  };
  // Plans A and B of a layer that is replicated or split by its outputs, and that a micro-batch uses |uses| times.
  void add_column(const std::string& layer, const std::vector<Module>& modules, int64_t inputs, int64_t uses = 1);
  // Plans A and B of a layer that is split by its inputs.
  void add_row(const std::string& module, int64_t inputs);
  // Plans A and B of every expert in |stack|; module names have {} for the index of the expert. Throws ConfigError if
  // experts of a layer differ, or if the adapter has options that experts do not support.
  void add_experts(const std::string& stack, const std::vector<Module>& modules, Dim inputs);

  // Returns the names of all modules that can have an adapter.
  std::vector<std::string> take_modules() { return std::move(modules_); }

 private:
  std::optional<LowRankShape> find(const std::string& module);
  std::optional<LowRankShape> find_experts(const std::string& module);
  void check_experts(const std::string& module) const;
  ParameterPlan& add(const std::string& name, std::vector<Dim> dims, WeightInit init, std::vector<Piece> pieces = {});
  ParameterPlan* add_magnitude(const std::string& module, Dim rows, const std::string& layer, int64_t first_row);
  void add_expert(const std::string& name, Dim rows, Dim columns, WeightInit init, std::vector<Piece> pieces);

  PlanList& list_;
  std::vector<std::string> modules_;
};

}  // namespace concord
