// The LoRA matrices of one linear layer, and the layer together with them; the plain layer if the model has no adapter
// or the layer is not a target.
//
// With DoRA the rows of W' = W + scale * B A are scaled to trained lengths m: y = x W'^T * m / |W'| + bias, where the
// norms are constants in the gradient, as in peft. They are computed without W', from W A^T and A A^T. With dropout the
// length that A and B change is that of the product with the dropped input d, as in peft: with f = m / |W'|
//   y = W x + (f - 1) W d + f scale * B A d + bias = f (W d + scale * B A d) + W (x - d) + bias
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/models/layers/layer_context.h"
#include "core/parallel/low_rank.h"
#include "core/parallel/parallel_linear.h"

namespace concord {

class LayerAdapter {
 public:
  // A module of the layer and its columns of the output on this rank, in order.
  struct Module {
    std::string name;
    int64_t columns;
  };

  // Whether the layer has no adapter, or the pass runs without it.
  bool is_off() const { return a_ == nullptr || context_->adapter_off; }

  LayerAdapter() = default;
  // |draws_apart|: the ranks of the tensor-parallel group have different inputs. |context| has to outlive it.
  LayerAdapter(const LayerContext& context, const std::string& layer, const std::vector<Module>& modules,
               bool draws_apart);

  // The layer, cut by its outputs or by its inputs (core/parallel/parallel_linear.h). |bias| may be null.
  at::Tensor column(const at::Tensor& x, const Parameter& weight, const Parameter* bias,
                    const ParallelLinearOptions& options) const;
  at::Tensor row(const at::Tensor& x, const Parameter& weight, const Parameter* bias,
                 const ParallelLinearOptions& options) const;
  // The whole layer on every rank, applied to the rank's own tokens (routers, latents). Computes in |type|, by default
  // the model's.
  at::Tensor whole(const at::Tensor& x, const Parameter& weight, const Parameter* bias,
                   std::optional<c10::ScalarType> type = {}) const;

 private:
  struct Part {
    const Parameter* b;
    const Parameter* magnitude;  // null without DoRA
    int64_t column;
    double scale;
  };

  LowRank pair() const;
  // Returns the output of A and B for |x|, all columns.
  at::Tensor low_rank(const at::Tensor& x, int64_t columns) const;
  bool scales() const { return !is_off() && !parts_.empty() && parts_.front().magnitude != nullptr; }
  bool drops() const;
  at::Tensor dropped(const at::Tensor& x) const;
  // Returns the layer with DoRA. product(x, pair) is the layer without its bias, plus the output of |pair|.
  template <class Product>
  at::Tensor scaled(const at::Tensor& x, const Product& product, const Parameter* bias, const at::Tensor& weight,
                    bool cut_by_inputs) const;
  at::Tensor factors(const at::Tensor& weight, bool cut_by_inputs) const;
  at::Tensor norms_of(const Part& part, const at::Tensor& a_ri, const at::Tensor& weight, bool cut_by_inputs) const;

  const LayerContext* context_ = nullptr;
  ProcessGroup* tp_ = nullptr;
  const Parameter* a_ = nullptr;
  std::vector<Part> parts_;
  double dropout_ = 0;
  RngTracker* rng_ = nullptr;
  bool draws_apart_ = false;
};

// Returns the norms of the rows of |weight|, in fp32 or fp64. |group| has the ranks that share the columns; null: none.
at::Tensor row_norms(const at::Tensor& weight, ProcessGroup* group);

}  // namespace concord
