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
      const LowRankShape shape = context.adapter->find(of_expert(module.name, 0)).value();
      parts_.push_back({b, column, shape.rank, shape.scale});
    }
    column += module.columns;
  }
}

ExpertAdapter::ExpertAdapter(const LayerContext& context, const std::vector<std::string>& tensors, size_t index)
    : context_(&context), is_of_tensor_(true) {
  if (!context.adapter) return;
  const std::string wrapper = context.adapter->wrappers_of(tensors)[index];
  if (wrapper.empty()) return;
  const LowRankShape shape = context.adapter->find_parameter(tensors[index]).value();
  a_ = context.find(kAdapterPrefix + wrapper + ".lora_A.weight");
  parts_.push_back({context.find(kAdapterPrefix + wrapper + ".lora_B.weight"), 0, shape.rank, shape.scale});
}

Tensor ExpertAdapter::inner(const Tensor& rows, const Tensor& ends) const {
  if (!is_of_tensor_) return grouped_linear(rows, a_->used(), ends, a_->grad_sink());
  return grouped_linear(rows, a_->used().unflatten(0, {-1, parts_.front().rank}), ends);
}

Tensor ExpertAdapter::outer(const Part& part, const Tensor& z, const Tensor& ends) const {
  if (!is_of_tensor_) return grouped_linear(z, part.b->used(), ends, part.b->grad_sink());
  return grouped_linear(z, part.b->used().unflatten(1, {part.rank, -1}).permute({2, 0, 1}).contiguous(), ends);
}

Tensor ExpertAdapter::added_to(const Tensor& y, const Tensor& rows, const Tensor& ends) const {
  if (a_ == nullptr || context_->adapter_off) return y;
  const double p = context_->adapter->config().lora_dropout;
  Tensor input = rows;
  if (p > 0 && is_differentiating()) {
    const auto scope = context_->rng->fork(kExpertParallelRng);
    input = dropout(rows, p, context_->rng->current());
  }
  const Tensor z = inner(input, ends);
  std::vector<Tensor> all;
  int64_t next = 0, row = 0;
  const auto none_until = [&](int64_t column) {
    if (column > next) all.push_back(at::zeros({y.size(0), column - next}, z.options().requires_grad(false)));
  };
  for (const Part& part : parts_) {
    none_until(part.column);
    all.push_back(outer(part, z.narrow(1, row, part.rank).mul(part.scale), ends));
    next = part.column + all.back().size(1);
    row += part.rank;
  }
  none_until(y.size(1));
  return y.add(all.size() == 1 ? all.front() : at::cat(all, 1));
}

}  // namespace concord
