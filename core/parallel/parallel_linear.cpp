#include "core/parallel/parallel_linear.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>
#include <fmt/core.h>

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "core/base/config_error.h"
#include "core/ops/derivative.h"
#include "core/ops/linear.h"
#include "core/parallel/async_collectives.h"
#include "core/parallel/nf4_weight.h"
#include "core/parallel/wgrad.h"

namespace concord {
namespace {

// Shapes in names: i, o the input and output features of this rank (all of them on the side that is not split), s the
// tokens, p this rank's part of them under sequence parallelism, otherwise all. There may be more dims between tokens
// and features, such as the batch.

using at::Tensor;
using ops::Backward;
using ops::Forward;
using ops::Tensors;

void check(const Tensor& x, const Tensor& weight, const ProcessGroup& group, const ParallelLinearOptions& options) {
  const auto refuse = [&](const std::string& why) {
    throw ConfigError(
        fmt::format("layer {} over the {} ranks of group {}: {}", options.name, group.size(), group.name(), why));
  };
  if (x.dim() < 2 || weight.dim() != 2) {
    refuse(fmt::format("x has {} dims and the weight has {}; they must be [tokens, ..., in] and [out, in]", x.dim(),
                       weight.dim()));
  }
  if (x.size(-1) != weight.size(1)) {
    refuse(fmt::format("x has {} features on this rank, but its weight is [{}, {}]; the last dimensions must be equal",
                       x.size(-1), weight.size(0), weight.size(1)));
  }
  if (options.pieces < 1) refuse(fmt::format("pieces is {}; must be >= 1", options.pieces));
}

// An operand of the weight gradient; with sequence parallelism one of the two is this rank's part of the tokens.
struct Operand {
  Tensor value;
  bool is_share = false;

  Tensor whole(ProcessGroup& group) const { return is_share ? gather(value, group, 0).take() : value; }
};

bool is_deferred(const std::optional<GradSink>& sink) { return sink && sink->deferred != nullptr; }

// Defers the weight gradient. Keeps only this rank's part of operands that are split along tokens and gathers them
// again later, since the whole is larger by the number of ranks. Ranks of a group run deferred work in the same order.
void defer_wgrad(const GradSink& sink, ProcessGroup& group, Operand grad, Operand x, Fp8Layer* fp8) {
  grad.value = grad.value.detach();
  x.value = x.value.detach();
  sink.add(
      [&group, grad, x, fp8](Tensor& main) { add_linear_weight_grad(main, grad.whole(group), x.whole(group), fp8); });
}

// partial -> whole, or split along tokens with sequence parallelism.
PendingTensor combined(const Tensor& partial_so, ProcessGroup& group, bool sequence_parallel) {
  return sequence_parallel ? reduce_scatter(partial_so, group, 0) : all_reduce_(partial_so, group);
}

Tensor values_of(const Tensor& weight, const ParallelLinearOptions& options, c10::ScalarType type) {
  return options.nf4 == nullptr ? weight : options.nf4->dequantised(type);
}
// NF4 values are dequantised again in backward.
Tensor weight_to_keep(const Tensor& weight, const ParallelLinearOptions& options) {
  return options.nf4 == nullptr ? weight : Tensor();
}

// Returns the part of |x| that backward needs: undefined if everything it is multiplied with is frozen.
Tensor input_to_keep(const Tensor& x, const Tensor& weight, const LowRank& pair) {
  return weight.requires_grad() || (!pair.empty() && pair.a_ri.requires_grad()) ? x : Tensor();
}

// ---------------------------------------------------------------------------------------------------------- low rank
// The adapter's tensors follow those of the layer: z, A and the Bs after the saved tensors, A and the Bs after the
// inputs.

constexpr size_t kLayerInputs = 3;  // x, weight, bias
constexpr size_t kLayerSaved = 2;   // x, weight

Tensors inputs_with(const LowRank& pair, Tensors inputs) {
  if (pair.empty()) return inputs;
  inputs.push_back(pair.a_ri);
  for (const LowRank::Part& part : pair.parts) inputs.push_back(part.b);
  return inputs;
}

// Adds the adapter's output to forward->output. |move| communicates the inner activations.
template <class Move>
void add_pair(const LowRank& pair, LowRankProducts& products, const Tensor& x, const Move& move, Forward* forward) {
  if (pair.empty()) return;
  const Tensor z = move(products.inner(x, pair.a_ri));
  forward->saved.push_back(z);
  forward->saved.push_back(pair.a_ri);
  for (const LowRank::Part& part : pair.parts) forward->saved.push_back(part.b);
  products.add_outer(forward->output, z, &forward->saved[kLayerSaved + 2]);
}

// Appends the adapter's gradients to those of the layer. |move| is the inverse communication.
template <class Move>
void add_pair_grads(const Backward& b, const LowRankProducts& products, const Move& move, Tensors* result) {
  if (products.parts() == 0) return;
  const Tensor &z = b.saved[kLayerSaved], &a_ri = b.saved[kLayerSaved + 1];
  const Tensor grad = move(products.inner_grad(b.grad, &b.saved[kLayerSaved + 2]));
  if (b.needed[0]) products.add_input_grad((*result)[0], grad, a_ri);
  result->push_back(b.needed[kLayerInputs] ? products.inner_weight_grad(grad, b.saved[0]) : Tensor());
  for (size_t i = 0; i < products.parts(); ++i) {
    result->push_back(b.needed[kLayerInputs + 1 + i] ? products.outer_weight_grad(i, b.grad, z) : Tensor());
  }
}

// ------------------------------------------------------------------------------------------------------------ column

Tensors column_backward(const Backward& b, ProcessGroup& group, const ParallelLinearOptions& options,
                        const std::optional<GradSink>& sink) {
  const bool sequence_parallel = options.sequence_parallel;
  const Tensor& x_pi = b.saved[0];
  const bool now = b.needed[1] && !is_deferred(sink);
  std::optional<PendingTensor> gathered_si;
  if (sequence_parallel && now) gathered_si = gather(x_pi, group, 0);  // in parallel with the input gradient
  std::optional<PendingTensor> summed_pi;
  if (b.needed[0]) {
    const Tensor partial_si =
        linear_input_grad(b.grad, values_of(b.saved[1], options, b.grad.scalar_type()), options.fp8);
    summed_pi = combined(partial_si, group, sequence_parallel);
  }
  Tensors result(kLayerInputs);
  if (now) {  // in parallel with the reduction
    result[1] = accumulate_wgrad(sink, b.grad, gathered_si ? gathered_si->take() : x_pi, options.fp8);
  }
  if (b.needed[1] && !now) defer_wgrad(*sink, group, {b.grad}, {x_pi, sequence_parallel}, options.fp8);
  if (b.needed[2]) result[2] = linear_bias_grad(b.grad);
  if (summed_pi) result[0] = summed_pi->take();
  return result;
}

// --------------------------------------------------------------------------------------------------------------- row

// Splits tokens into |pieces| chunks such that the concatenated results are the rank's result: under sequence
// parallelism a chunk has some tokens of every rank's part.
std::vector<Tensor> pieces_of(const Tensor& x_si, int64_t pieces, int64_t shares) {
  const Tensor split = x_si.unflatten(0, {shares, pieces, x_si.size(0) / (shares * pieces)});
  std::vector<Tensor> parts;
  for (int64_t i = 0; i < pieces; ++i) parts.push_back(split.select(1, i).flatten(0, 1));
  return parts;
}

Tensor row_forward(const Tensor& x_si, const Tensor& weight_oi, ProcessGroup& group,
                   const ParallelLinearOptions& options) {
  const int64_t shares = options.sequence_parallel ? group.size() : 1;
  if (options.sequence_parallel)
    divide(x_si.size(0), group, fmt::format("the tokens of layer {}", options.name).c_str());
  const auto product = [&](const Tensor& x) { return concord::linear(x, weight_oi, {}, nullptr, options.fp8); };
  const bool whole = options.pieces == 1 || group.size() == 1 || x_si.size(0) % (shares * options.pieces) != 0;
  if (whole) return combined(product(x_si), group, options.sequence_parallel).take();
  std::vector<PendingTensor> sums;
  for (const Tensor& piece_si : pieces_of(x_si, options.pieces, shares)) {
    sums.push_back(combined(product(piece_si), group, options.sequence_parallel));
  }
  std::vector<Tensor> parts_po;
  for (PendingTensor& sum : sums) parts_po.push_back(sum.take());
  return at::cat(parts_po);
}

Tensors row_backward(const Backward& b, ProcessGroup& group, const ParallelLinearOptions& options,
                     const std::optional<GradSink>& sink) {
  const bool sequence_parallel = options.sequence_parallel;
  const Tensor grad_so = sequence_parallel ? gather(b.grad, group, 0).take() : b.grad;
  Tensors result(kLayerInputs);
  if (b.needed[0])
    result[0] = linear_input_grad(grad_so, values_of(b.saved[1], options, grad_so.scalar_type()), options.fp8);
  if (b.needed[1] && is_deferred(sink)) {
    defer_wgrad(*sink, group, {b.grad, sequence_parallel}, {b.saved[0]}, options.fp8);
  } else if (b.needed[1]) {
    result[1] = accumulate_wgrad(sink, grad_so, b.saved[0], options.fp8);
  }
  return result;
}

}  // namespace

Tensor column_parallel_linear(const Tensor& x_pi, const Tensor& weight_oi, const Tensor& bias_o, ProcessGroup& group,
                              const ParallelLinearOptions& options, const GradSink* sink, const LowRank& pair) {
  check(x_pi, weight_oi, group, options);
  if (group.size() == 1 && pair.empty() && options.nf4 == nullptr)
    return concord::linear(x_pi, weight_oi, bias_o, sink, options.fp8);
  const bool sequence_parallel = options.sequence_parallel;
  const auto products = std::make_shared<LowRankProducts>(pair);
  const auto run = [&] {
    const Tensor x_si = sequence_parallel ? gather(x_pi, group, 0).take() : x_pi;
    const Tensor values_oi = values_of(weight_oi, options, x_pi.scalar_type());
    Forward forward{linear(x_si, values_oi, bias_o, nullptr, options.fp8),
                    {input_to_keep(x_pi, weight_oi, pair), weight_to_keep(weight_oi, options)}};
    const auto move = [&](const Tensor& z_pr) { return sequence_parallel ? gather(z_pr, group, 0).take() : z_pr; };
    add_pair(pair, *products, x_pi, move, &forward);
    return forward;
  };
  return ops::differentiable("column_parallel_linear", inputs_with(pair, {x_pi, weight_oi, bias_o}), run,
                             [&group, options, products, kept = copy_of(sink)](const Backward& b) {
                               Tensors result = column_backward(b, group, options, kept);
                               const auto move = [&](const Tensor& grad_sr) {
                                 return combined(grad_sr, group, options.sequence_parallel).take();
                               };
                               add_pair_grads(b, *products, move, &result);
                               return result;
                             });
}

Tensor row_parallel_linear(const Tensor& x_si, const Tensor& weight_oi, const Tensor& bias_o, ProcessGroup& group,
                           const ParallelLinearOptions& options, const GradSink* sink, const LowRank& pair) {
  check(x_si, weight_oi, group, options);
  if (group.size() == 1 && pair.empty() && options.nf4 == nullptr)
    return concord::linear(x_si, weight_oi, bias_o, sink, options.fp8);
  const bool sequence_parallel = options.sequence_parallel;
  const auto products = std::make_shared<LowRankProducts>(pair);
  const auto run = [&] {
    Forward forward{row_forward(x_si, values_of(weight_oi, options, x_si.scalar_type()), group, options),
                    {input_to_keep(x_si, weight_oi, pair), weight_to_keep(weight_oi, options)}};
    const auto move = [&](const Tensor& z_sr) { return combined(z_sr, group, sequence_parallel).take(); };
    add_pair(pair, *products, x_si, move, &forward);
    return forward;
  };
  const Tensor y_po =
      ops::differentiable("row_parallel_linear", inputs_with(pair, {x_si, weight_oi, Tensor()}), run,
                          [&group, options, products, kept = copy_of(sink)](const Backward& b) {
                            Tensors result = row_backward(b, group, options, kept);
                            const auto move = [&](const Tensor& grad_pr) {
                              return options.sequence_parallel ? gather(grad_pr, group, 0).take() : grad_pr;
                            };
                            add_pair_grads(b, *products, move, &result);
                            return result;
                          });
  return bias_o.defined() ? y_po.add(bias_o) : y_po;
}

}  // namespace concord
