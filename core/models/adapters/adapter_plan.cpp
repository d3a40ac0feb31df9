#include "core/models/adapters/adapter_plan.h"

#include <fmt/core.h>

#include <cmath>
#include <utility>

#include "core/base/config_error.h"
#include "core/base/refused_combinations.h"

namespace concord {
namespace {

std::string lora_name(const std::string& module, const char* side) {
  return fmt::format("{}{}.lora_{}.weight", kAdapterPrefix, module, side);
}

// kaiming_uniform(a = sqrt 5), peft's initialisation of A; B is 0.
WeightInit a_init(int64_t inputs) { return uniform_init(1 / std::sqrt(static_cast<double>(inputs))); }

}  // namespace

std::optional<LowRankShape> AdapterPlan::find(const std::string& module) {
  modules_.push_back(module);
  const AdapterModules* adapter = list_.options().adapter;
  return adapter == nullptr ? std::nullopt : adapter->find(module);
}

ParameterPlan& AdapterPlan::add(const std::string& name, std::vector<Dim> dims, WeightInit init,
                                std::vector<Piece> pieces) {
  ParameterPlan& plan = list_.add(name, std::move(dims), init, std::move(pieces));
  plan.frozen = false;
  plan.adapter = true;
  return plan;
}

// Adds DoRA's magnitude of a module whose rows in the weight of |layer| begin at |first_row|. Returns null without
// DoRA.
ParameterPlan* AdapterPlan::add_magnitude(const std::string& module, Dim rows, const std::string& layer,
                                          int64_t first_row) {
  if (!list_.options().adapter->config().use_dora) return nullptr;
  ParameterPlan& plan =
      add(fmt::format("{}{}.lora_magnitude_vector", kAdapterPrefix, module), {rows}, constant_init(1));
  plan.norms_of = layer + ".weight";
  plan.first_row = first_row;
  return &plan;
}

void AdapterPlan::add_column(const std::string& layer, const std::vector<Module>& modules, int64_t inputs,
                             int64_t uses) {
  struct Outer {
    const Module* module;
    int64_t rank, first_row;
  };
  std::vector<Piece> inner;
  std::vector<Outer> outer;
  int64_t ranks = 0, row = 0;
  for (const Module& module : modules) {
    const int64_t first_row = std::exchange(row, row + module.rows.size);
    const std::optional<LowRankShape> shape = find(module.name);
    if (!shape) continue;
    inner.push_back({lora_name(module.name, "A"), shape->rank});
    outer.push_back({&module, shape->rank, first_row});
    ranks += shape->rank;
  }
  if (inner.empty()) return;
  ParameterPlan& a = add(lora_name(layer, "A"), {{ranks}, {inputs}}, a_init(inputs), inner);
  a.partial_over_tp = list_.splits_tokens();
  a.uses = uses;
  for (const auto& [module, rank, first_row] : outer) {
    const bool is_cut = module->rows.cut.has_value();
    ParameterPlan& b = add(lora_name(module->name, "B"), {module->rows, {rank}}, constant_init(0), module->joined);
    b.spec.joined = !module->joined.empty();
    b.partial_over_tp = !is_cut && list_.splits_tokens();
    b.uses = uses;
    const int64_t own_row = is_cut ? first_row / list_.options().tp : first_row;
    ParameterPlan* const magnitude = add_magnitude(module->name, module->rows, layer, own_row);
    if (magnitude == nullptr) continue;
    magnitude->partial_over_tp = !is_cut && list_.splits_tokens();
    magnitude->uses = uses;
    magnitude->spec.pieces = module->joined;
    magnitude->spec.joined = !module->joined.empty();
  }
}

void AdapterPlan::add_row(const std::string& module, int64_t inputs) {
  const std::optional<LowRankShape> shape = find(module);
  if (!shape) return;
  const int64_t hidden = list_.config().hidden_size;
  add(lora_name(module, "A"), {{shape->rank}, {inputs, ShardAxis::tp}}, a_init(inputs));
  add(lora_name(module, "B"), {{hidden}, {shape->rank}}, constant_init(0)).partial_over_tp = list_.splits_tokens();
  if (ParameterPlan* const magnitude = add_magnitude(module, {hidden}, module, 0)) {
    magnitude->partial_over_tp = list_.splits_tokens();
  }
}

// Returns the shape that all experts of a layer have; |module| has {} for the index of the expert.
std::optional<LowRankShape> AdapterPlan::find_experts(const std::string& module) {
  const std::optional<LowRankShape> first = find(of_expert(module, 0));
  for (int64_t i = 1; i < list_.config().experts.num_experts; ++i) {
    const std::optional<LowRankShape> other = find(of_expert(module, i));
    const bool is_equal = first.has_value() == other.has_value() &&
                          (!first || (first->rank == other->rank && first->scale == other->scale));
    if (is_equal) continue;
    throw ConfigError(
        fmt::format("the adapter has another pair for {} than for {}; experts of a layer must be targets with "
                    "the same rank and alpha, or none of them",
                    of_expert(module, 0), of_expert(module, i)));
  }
  if (first) check_experts(module);
  return first;
}

void AdapterPlan::check_experts(const std::string& module) const {
  const AdapterConfig& adapter = list_.options().adapter->config();
  if (adapter.use_dora) {
    throw ConfigError(refusal_message(Refused::dora_of_experts, fmt::format("use_dora for experts ({})", module)));
  }
  if (adapter.modifies_base_weights()) {
    throw ConfigError(refusal_message(Refused::init_of_experts, fmt::format("init_lora_weights {} for experts ({})",
                                                                            adapter.init_lora_weights, module)));
  }
}

void AdapterPlan::add_expert(const std::string& name, Dim rows, Dim columns, WeightInit init,
                             std::vector<Piece> pieces) {
  const bool is_cut = rows.cut.has_value() || columns.cut.has_value();
  ParameterPlan& plan = list_.add_experts(name, {rows, columns}, init, std::move(pieces));
  plan.spec.stacked = true;
  plan.spec.fused_dim = 1;
  plan.frozen = false;
  plan.adapter = true;
  if (is_cut) return;
  plan.spec.replicated_over = {GroupKind::etp, GroupKind::edp};
  plan.partial_over_tp = list_.options().etp > 1;
}

void AdapterPlan::add_experts(const std::string& stack, const std::vector<Module>& modules, Dim inputs) {
  std::vector<Piece> inner;
  std::vector<std::pair<const Module*, int64_t>> outer;
  int64_t ranks = 0;
  for (const Module& module : modules) {
    const std::optional<LowRankShape> shape = find_experts(module.name);
    if (!shape) continue;
    inner.push_back({lora_name(module.name, "A"), shape->rank});
    outer.emplace_back(&module, shape->rank);
    ranks += shape->rank;
  }
  if (inner.empty()) return;
  add_expert(lora_name(stack, "A"), {ranks}, inputs, a_init(inputs.size), inner);
  for (const auto& [module, rank] : outer) {
    const std::string name = lora_name(module->name, "B");
    add_expert(name, module->rows, {rank}, constant_init(0), {{name, module->rows.size}});
  }
}

}  // namespace concord
