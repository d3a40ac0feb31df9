#include "core/parallel/parallel_linear.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>
#include <fmt/core.h>

#include <optional>
#include <utility>
#include <vector>

#include "core/config_error.h"
#include "core/ops/derivative.h"
#include "core/ops/linear.h"
#include "core/parallel/moves.h"

namespace concord {
namespace {

// Shapes in names: i, o the features in and out that this rank has (all of them on the side that is not cut), s the
// tokens, p this rank's share of them under sequence parallelism, else all. Between tokens and features there may be
// more dims, the batch.

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

std::optional<GradSink> copy_of(const GradSink* sink) { return sink == nullptr ? std::nullopt : std::optional(*sink); }

// The weight's half: into the sink, or as a gradient for autograd.
Tensor weight_half(const std::optional<GradSink>& sink, const Tensor& grad_so, const Tensor& x_si) {
  if (!sink) return linear_weight_grad(grad_so, x_si);
  add_linear_weight_grad(*sink, grad_so, x_si);
  return {};
}

// An operand of the weight gradient; with sequence parallelism one of the two is this rank's share of the tokens.
struct Operand {
  Tensor value;
  bool is_share = false;

  Tensor whole(ProcessGroup& group) const { return is_share ? gather(value, group, 0).take() : value; }
};

bool is_put_off(const std::optional<GradSink>& sink) { return sink && sink->later != nullptr; }

// If the weight gradient is deferred, so are its operands: only the share is kept and gathered again later, since the
// whole is as large as that of all ranks. Ranks of a group run deferred work in the same order.
void put_off_weight_half(const GradSink& sink, ProcessGroup& group, Operand grad, Operand x) {
  grad.value = grad.value.detach();
  x.value = x.value.detach();
  sink.add([&group, grad, x](Tensor& main) { add_linear_weight_grad(main, grad.whole(group), x.whole(group)); });
}

Tensor bias_half(const Tensor& grad_so) { return grad_so.flatten(0, -2).sum(0); }

// ------------------------------------------------------------------------------------------------------------ column

Tensors column_backward(const Backward& b, ProcessGroup& group, bool sequence_parallel,
                        const std::optional<GradSink>& sink) {
  const Tensor &x_pi = b.saved[0], &weight_oi = b.saved[1];
  const bool now = b.needed[1] && !is_put_off(sink);
  std::optional<Moving> gathered_si;
  if (sequence_parallel && now) gathered_si = gather(x_pi, group, 0);  // beside the input's half
  std::optional<Moving> summed_pi;
  if (b.needed[0]) {
    const Tensor partial_si = linear_input_grad(b.grad, weight_oi);
    summed_pi = sequence_parallel ? reduce_scatter(partial_si, group, 0) : sum_in_place(partial_si, group);
  }
  Tensors result(3);
  if (now) result[1] = weight_half(sink, b.grad, gathered_si ? gathered_si->take() : x_pi);  // beside the sum
  if (b.needed[1] && !now) put_off_weight_half(*sink, group, {b.grad}, {x_pi, sequence_parallel});
  if (b.needed[2]) result[2] = bias_half(b.grad);
  if (summed_pi) result[0] = summed_pi->take();
  return result;
}

// --------------------------------------------------------------------------------------------------------------- row

Moving combined(const Tensor& partial_so, ProcessGroup& group, bool sequence_parallel) {
  return sequence_parallel ? reduce_scatter(partial_so, group, 0) : sum_in_place(partial_so, group);
}

// Tokens in |pieces| parts such that the parts of the result, put behind each other, are the rank's result: under
// sequence parallelism a part has some tokens of every rank's share.
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
  const bool whole = options.pieces == 1 || group.size() == 1 || x_si.size(0) % (shares * options.pieces) != 0;
  if (whole) return combined(concord::linear(x_si, weight_oi), group, options.sequence_parallel).take();
  std::vector<Moving> sums;
  for (const Tensor& piece_si : pieces_of(x_si, options.pieces, shares)) {
    sums.push_back(combined(concord::linear(piece_si, weight_oi), group, options.sequence_parallel));
  }
  std::vector<Tensor> parts_po;
  for (Moving& sum : sums) parts_po.push_back(sum.take());
  return at::cat(parts_po);
}

Tensors row_backward(const Backward& b, ProcessGroup& group, bool sequence_parallel,
                     const std::optional<GradSink>& sink) {
  const Tensor grad_so = sequence_parallel ? gather(b.grad, group, 0).take() : b.grad;
  Tensors result(2);
  if (b.needed[0]) result[0] = linear_input_grad(grad_so, b.saved[1]);
  if (b.needed[1] && is_put_off(sink)) {
    put_off_weight_half(*sink, group, {b.grad, sequence_parallel}, {b.saved[0]});
  } else if (b.needed[1]) {
    result[1] = weight_half(sink, grad_so, b.saved[0]);
  }
  return result;
}

}  // namespace

Tensor column_parallel_linear(const Tensor& x_pi, const Tensor& weight_oi, const Tensor& bias_o, ProcessGroup& group,
                              const ParallelLinearOptions& options, const GradSink* sink) {
  check(x_pi, weight_oi, group, options);
  if (group.size() == 1) return concord::linear(x_pi, weight_oi, bias_o, sink);
  const bool sequence_parallel = options.sequence_parallel;
  const auto run = [&] {
    return Forward{linear(sequence_parallel ? gather(x_pi, group, 0).take() : x_pi, weight_oi, bias_o),
                   {x_pi, weight_oi}};
  };
  return ops::differentiable("column_parallel_linear", {x_pi, weight_oi, bias_o}, run,
                             [&group, sequence_parallel, kept = copy_of(sink)](const Backward& b) {
                               return column_backward(b, group, sequence_parallel, kept);
                             });
}

Tensor row_parallel_linear(const Tensor& x_si, const Tensor& weight_oi, const Tensor& bias_o, ProcessGroup& group,
                           const ParallelLinearOptions& options, const GradSink* sink) {
  check(x_si, weight_oi, group, options);
  if (group.size() == 1) return concord::linear(x_si, weight_oi, bias_o, sink);
  const bool sequence_parallel = options.sequence_parallel;
  const auto run = [&] { return Forward{row_forward(x_si, weight_oi, group, options), {x_si, weight_oi}}; };
  const Tensor y_po = ops::differentiable("row_parallel_linear", {x_si, weight_oi}, run,
                                          [&group, sequence_parallel, kept = copy_of(sink)](const Backward& b) {
                                            return row_backward(b, group, sequence_parallel, kept);
                                          });
  return bias_o.defined() ? y_po.add(bias_o) : y_po;
}

}  // namespace concord
