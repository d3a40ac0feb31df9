// The low-rank pairs beside a stack of experts: each expert has a pair of its own, as its linear layer has in peft.
// Nothing where the model has no adapter or the experts are no targets.
//
// Over the expert-tensor-parallel group pairs are split as the stack is: gate and up have A whole and B cut, down has A
// cut and B whole. Ranks of that group add up their results anyway, so nothing more moves between them; gradients of
// what is whole are partial over it.
#pragma once

#include <string>
#include <vector>

#include "core/models/adapters/layer_adapter.h"

namespace concord {

class ExpertAdapter {
 public:
  ExpertAdapter() = default;
  // |stack| is what the pairs' A is called by; in the names of |modules|, {} is the number of the expert. |context| has
  // to outlive it.
  ExpertAdapter(const LayerContext& context, const std::string& stack,
                const std::vector<LayerAdapter::Module>& modules);

  // |y|, the experts' results for |rows|, with what the pairs add. |ends| as for grouped_linear.
  at::Tensor added_to(const at::Tensor& y, const at::Tensor& rows, const at::Tensor& ends) const;

 private:
  struct Part {
    const Parameter* b;  // [experts, columns, rank]
    int64_t column;
    double scale;
  };

  const LayerContext* context_ = nullptr;
  const Parameter* a_ = nullptr;  // [experts, ranks of all parts, in]
  std::vector<Part> parts_;
};

}  // namespace concord
