#include "core/models/adapters/expert_adapter.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/zeros.h>

#include "core/ops/dropout.h"
#include "core/ops/moe/grouped_linear.h"
#include "core/parallel/recompute.h"

namespace concord {

using at::Tensor;

ExpertAdapter::ExpertAdapter(const LayerContext& context, const std::string& stack,
                             const std::vector<LayerAdapter::Module>& modules)
    : context_(&context) {
  if (!context.adapter) return;
  a_ = context.find(kAdapterPrefix + stack + ".lora_A.weight");
  int64_t column = 0;
  for (const LayerAdapter::Module& module : modules) {
    if (const Parameter* b = context.find(kAdapterPrefix + module.name + ".lora_B.weight")) {
      parts_.push_back({b, column, context.adapter->find(of_expert(module.name, 0)).value().scale});
    }
    column += module.columns;
  }
}

Tensor ExpertAdapter::added_to(const Tensor& y, const Tensor& rows, const Tensor& ends) const {
  if (a_ == nullptr || context_->adapter_off) return y;
  const double p = context_->adapter->config().lora_dropout;
  Tensor input = rows;
  if (p > 0 && is_differentiating()) {
    const auto scope = context_->rng->fork(kExpertParallelRng);
    input = dropout(rows, p, context_->rng->current());
  }
  const Tensor z = grouped_linear(input, a_->used(), ends, a_->grad_sink());
  std::vector<Tensor> all;
  int64_t next = 0, row = 0;
  const auto none_until = [&](int64_t column) {
    if (column > next) all.push_back(at::zeros({y.size(0), column - next}, z.options().requires_grad(false)));
  };
  for (const Part& part : parts_) {
    none_until(part.column);
    const int64_t rank = part.b->value.size(2);
    const Tensor own = z.narrow(1, row, rank).mul(part.scale);
    all.push_back(grouped_linear(own, part.b->used(), ends, part.b->grad_sink()));
    next = part.column + part.b->value.size(1);
    row += rank;
  }
  none_until(y.size(1));
  return y.add(all.size() == 1 ? all.front() : at::cat(all, 1));
}

}  // namespace concord
