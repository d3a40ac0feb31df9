#include "core/models/plan_list.h"

namespace concord {

ParameterPlan& PlanList::add(const std::string& name, std::vector<Dim> dims, WeightInit init,
                             std::vector<Piece> pieces) {
  ParameterPlan& plan = plans_.emplace_back(ParameterPlan{{}, init});
  plan.frozen = options_.adapter != nullptr && !options_.adapter->saves(module_of(name));
  bool cut = false;
  for (const Dim& dim : dims) cut |= dim.cut.has_value();
  plan.spec.name = name;
  plan.spec.dims = std::move(dims);
  plan.spec.pieces = std::move(pieces);
  if (!cut) plan.spec.replicated_over.push_back(GroupKind::tp);
  plan.spec.replicated_over.push_back(GroupKind::dp_cp);
  return plan;
}

ParameterPlan& PlanList::add_experts(const std::string& name, std::vector<Dim> dims, WeightInit init,
                                     std::vector<Piece> pieces) {
  dims.insert(dims.begin(), {config_.experts.num_experts, ShardAxis::ep});
  ParameterPlan& plan = add(name, std::move(dims), init, std::move(pieces));
  plan.spec.replicated_over = {GroupKind::edp};
  plan.expert = true;
  return plan;
}

}  // namespace concord
