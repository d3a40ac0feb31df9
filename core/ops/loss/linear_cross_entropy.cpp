#include "core/ops/loss/linear_cross_entropy.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/where.h>
#include <fmt/core.h>

#include <algorithm>
#include <limits>
#include <optional>

#include "core/ops/check.h"
#include "core/ops/derivative.h"
#include "core/ops/linear.h"
#include "core/ops/visit_type.h"

namespace concord {
namespace ops::linear_cross_entropy_op {
namespace {

using at::Tensor;

constexpr const char* kName = "linear_cross_entropy";

void check(const Tensor& x, const Tensor& weight, const Tensor& labels, const GradSink* sink,
           const PiecewiseLoss& how) {
  check_floating(kName, "x", x);
  check_like(kName, "weight", weight, x);
  const bool fits = x.dim() == 2 && weight.dim() == 2 && weight.size(1) == x.size(1) && labels.defined() &&
                    labels.dim() == 1 && labels.size(0) == x.size(0);
  if (!fits) {
    refuse(kName, fmt::format("x is {}, weight {} and labels {}; they must be [n, in], [v, in] and [n]", text_of(x),
                              text_of(weight), text_of(labels)));
  }
  if (how.rows < 1 || how.cross_entropy.expected_grad == 0) {
    refuse(kName, fmt::format("rows is {} and expected_grad {:g}; must be >= 1, and known", how.rows,
                              how.cross_entropy.expected_grad));
  }
  if (weight.requires_grad() && sink == nullptr) {
    refuse(kName, "a weight that requires a gradient needs a sink for it");
  }
}

// Returns a sink that adds immediately, for the chunks; for bf16 one whose sum |sink| should get.
std::optional<GradSink> immediate(const GradSink* sink) {
  if (sink == nullptr) return std::nullopt;
  if (sink->main.scalar_type() == at::kBFloat16) return sink->of_parts();
  GradSink now = *sink;
  now.added = {};
  now.deferred = nullptr;
  return now;
}

struct Pieces {
  const Tensor &x, &weight, &labels;
  const PiecewiseLoss& how;
  Tensor losses;
  Tensor grad;                   // gradient of x; undefined: not needed
  std::optional<GradSink> sink;  // sink of the weight; nullopt: not needed

  void run(int64_t begin, int64_t count) const {
    const Tensor own = x.narrow(0, begin, count), own_labels = labels.narrow(0, begin, count);
    Tensor logits = concord::linear(own, weight), own_losses = losses.narrow(0, begin, count);
    if (how.reader) how.reader(logits, own_labels);
    if (!grad.defined() && !sink) {
      own_losses.copy_(cross_entropy(logits, own_labels, how.cross_entropy, how.share));
      return;
    }
    cross_entropy_with_grad(logits, own_losses, own_labels, how.cross_entropy, how.share);
    if (grad.defined()) grad.narrow(0, begin, count).copy_(linear_input_grad(logits, weight));
    if (sink) add_linear_weight_grad(*sink, logits, own);
  }
  void run_all() const {
    const int64_t all = x.size(0);
    for (int64_t begin = 0; begin < all; begin += how.rows) run(begin, std::min(how.rows, all - begin));
  }
};

// Returns 1 if the gradient of a loss is the expected one, otherwise NaN.
Tensor only_expected(const Tensor& grad, double expected, c10::ScalarType type) {
  const Tensor one = at::ones_like(grad);
  return at::where(grad == expected, one, one * std::numeric_limits<double>::quiet_NaN()).to(type).unsqueeze(-1);
}

}  // namespace
}  // namespace ops::linear_cross_entropy_op

at::Tensor linear_cross_entropy(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& labels,
                                const GradSink* sink, const PiecewiseLoss& how) {
  using namespace ops;
  using namespace ops::linear_cross_entropy_op;
  check(x, weight, labels, sink, how);
  const bool differentiates = needs_derivative({x, weight});
  const bool trains = differentiates && weight.requires_grad();
  const auto run = [&] {
    const Pieces pieces{
        .x = x,
        .weight = weight,
        .labels = labels,
        .how = how,
        .losses = at::empty({x.size(0)}, x.options().dtype(sum_type(x.scalar_type()))),
        .grad = differentiates && x.requires_grad() ? at::empty_like(x, at::MemoryFormat::Contiguous) : Tensor(),
        .sink = immediate(trains ? sink : nullptr)};
    pieces.run_all();
    if (pieces.sink && !pieces.sink->main.is_same(sink->main) && x.size(0) > 0) sink->add_sum(pieces.sink->main);
    return Forward{pieces.losses, {pieces.grad}};
  };
  const auto back = [expected = how.cross_entropy.expected_grad, added = trains ? sink->added : std::function<void()>(),
                     trains](const Backward& b) {
    if (added) added();
    if (!b.needed[0]) return Tensors(2);
    const Tensor& grad = b.saved[0];
    if (trains) return Tensors{grad * only_expected(b.grad, expected, grad.scalar_type()), Tensor()};
    return Tensors{grad * (b.grad / expected).to(grad.scalar_type()).unsqueeze(-1), Tensor()};
  };
  return differentiable(kName, {x, weight}, run, back);
}

}  // namespace concord
