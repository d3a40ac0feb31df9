// The MLP of a layer with experts: x -> the weighted sum of the MLPs of the experts that the router chose for a token,
// plus the shared expert, all applied to norm(x).
//
// Each rank routes its own tokens. The experts' inner size is split over the expert-tensor-parallel group (etp): each
// of its ranks processes all tokens of the group and computes summands of their results, as in a dense MLP. Experts are
// split over the expert-parallel group (ep): rows for experts on another rank are sent there and come back
// (core/parallel/moe_dispatch.h). run_experts() is independent of this dispatch.
#pragma once

#include <optional>

#include "core/models/adapters/expert_adapter.h"
#include "core/models/layers/mlp.h"
#include "core/ops/moe/moe_router.h"
#include "core/parallel/moe_dispatch.h"

namespace concord {

class MoeMlp {
 public:
  // Uses the parameters of layer |number| of the model. |context| must outlive this object and every backward.
  MoeMlp(const LayerContext& context, int64_t number);
  // Returns the residual stream with this layer's output as its pending branch. The branch pending in |stream| has been
  // added.
  Residual forward(const Residual& stream, const SharedInputs& inputs) const;

 private:
  at::Tensor branch(const at::Tensor& normed_pbh, const SharedInputs& inputs) const;  // -> pbh
  at::Tensor router_logits(const at::Tensor& normed_pbh) const;
  Routing route(const at::Tensor& normed_pbh, const SharedInputs& inputs) const;
  bool has_capacity() const { return context_.moe.expert_capacity_factor > 0; }
  // Drops choices beyond the capacity of their expert: their weight becomes 0 and their expert an index past the last.
  void drop_choices(Routing* routing, const SharedInputs& inputs) const;
  // The ranks that must agree on a number of tokens: those whose tokens are combined, and if rows are padded to it,
  // those that rows are sent to.
  ProcessGroup& sharing() const { return context_.moe.pad_expert_input_to_capacity ? *context_.tp_ep : *context_.etp; }
  // Returns the maximum number of tokens on the ranks of sharing(). Waits: on the host, in one layer of a micro-batch,
  // if numbers may differ.
  int64_t max_tokens_per_rank(const at::Tensor& normed_pbh, const SharedInputs& inputs) const;
  // Returns the expert capacity in rows, for |tokens| distinct tokens per ETP rank.
  int64_t capacity_per_expert(int64_t tokens) const;
  // The two halves of the shared expert; each overlaps one all-to-all (dispatch, combine). Without other ranks they run
  // in the same order.
  struct SharedHalves {
    OverlappedWork first, second;
  };
  // Returns the outputs of the chosen experts for this rank's tokens, padded to |rows| rows.
  at::Tensor chosen_experts(const at::Tensor& normed_pbh, int64_t rows, const Routing& routing,
                            const SharedHalves& shared) const;
  // Returns the experts' outputs for |rows| [n, h], which are sorted by expert, until |ends|. Rows after these, which
  // no expert takes, become 0; an expert has at most |room| rows. Waits: on the host, if ep has several ranks and rows
  // are not padded.
  at::Tensor dispatch_and_combine(const at::Tensor& rows, const at::Tensor& ends, int64_t room,
                                  const SharedHalves& shared) const;
  at::Tensor dispatched(const at::Tensor& rows, const MoeDispatch& plan, const SharedHalves& shared) const;
  // Runs this rank's experts; arguments as in dispatch_and_combine.
  at::Tensor run_experts(const at::Tensor& rows, const at::Tensor& ends) const;
  at::Tensor expert_linear(const at::Tensor& rows, const Parameter& stack, const ExpertAdapter& adapter,
                           const at::Tensor& ends) const;
  at::Tensor shared_output(const at::Tensor& both_sbc, const at::Tensor& normed_pbh) const;

  const LayerContext& context_;
  int64_t number_;
  const Parameter *norm_, *router_, *router_bias_, *bias_, *gate_up_, *gate_up_bias_, *down_, *down_bias_,
      *shared_gate_;
  LayerAdapter router_adapter_, shared_gate_adapter_;
  ExpertAdapter gate_up_adapter_, down_adapter_;
  std::optional<GatedMlp> shared_;
  bool split_tokens_;   // ranks of etp have different tokens
  bool uneven_tokens_;  // ranks that must agree perhaps have different numbers of them
};

}  // namespace concord
