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
  // The A and B of tensor |index| of |tensors|, each of which has the weights of all experts of a layer
  // (target_parameters).
  ExpertAdapter(const LayerContext& context, const std::vector<std::string>& tensors, size_t index);

  // Returns |y|, the experts' results for |rows|, plus the output of the adapter. |ends| as for grouped_linear.
  at::Tensor added_to(const at::Tensor& y, const at::Tensor& rows, const at::Tensor& ends) const;

 private:
  struct Part {
    const Parameter* b;  // [experts, columns, rank], or of a tensor [columns, rank * experts]
    int64_t column;
    int64_t rank;
    double scale;
  };

  at::Tensor inner(const at::Tensor& rows, const at::Tensor& ends) const;
  at::Tensor outer(const Part& part, const at::Tensor& z, const at::Tensor& ends) const;

  const LayerContext* context_ = nullptr;
  bool is_of_tensor_ = false;
  const Parameter* a_ = nullptr;  // [experts, ranks of all parts, in], or of a tensor [experts * rank, in]
  std::vector<Part> parts_;
};

}  // namespace concord
