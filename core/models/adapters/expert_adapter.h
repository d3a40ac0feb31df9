// LoRA matrices of a stack of experts: each expert has its own A and B, like its linear layer in peft. Returns its
// input unchanged without an adapter or if experts are not targets.
//
// Dropout is drawn from the expert-parallel stream: each rank has other rows, or other parts of them. peft has none.
//
// Over the expert-tensor-parallel group the matrices are split like the stack: gate and up have A whole and B split,
// down has A split and B whole. The ranks of that group add up their results anyway, so nothing more is communicated;
// gradients of whole matrices are partial over it.
#pragma once

#include <string>
#include <vector>

#include "core/models/adapters/layer_adapter.h"

namespace concord {

class ExpertAdapter {
 public:
  ExpertAdapter() = default;
  // |stack| is the name of A; in the names of |modules|, {} is the index of the expert. |context| has to outlive it.
  ExpertAdapter(const LayerContext& context, const std::string& stack,
                const std::vector<LayerAdapter::Module>& modules);

  // Returns |y|, the experts' results for |rows|, plus the output of the adapter. |ends| as for grouped_linear.
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
