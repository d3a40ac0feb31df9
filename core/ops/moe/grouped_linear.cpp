#include "core/ops/moe/grouped_linear.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/stack.h>
#include <fmt/core.h>
#include <fmt/ranges.h>

#include "core/ops/check.h"
#include "core/ops/derivative.h"
#include "core/ops/dispatch.h"
#include "core/ops/precision/narrow_gemm.h"

namespace concord {
namespace ops::grouped_linear_op {
namespace {

using at::Tensor;

Tensor forward(const Tensor& x, const Tensor& weight, const Tensor& ends) {
  static const auto op = find<Tensor(const Tensor&, const Tensor&, const Tensor&)>("concord::grouped_linear");
  return op.call(x, weight, ends);
}

Tensor input_grad(const Tensor& grad, const Tensor& weight, const Tensor& ends) {
  static const auto op =
      find<Tensor(const Tensor&, const Tensor&, const Tensor&)>("concord::grouped_linear_input_grad");
  return op.call(grad, weight, ends);
}

Tensor weight_grad(const Tensor& grad, const Tensor& x, const Tensor& ends) {
  static const auto op =
      find<Tensor(const Tensor&, const Tensor&, const Tensor&)>("concord::grouped_linear_weight_grad");
  return op.call(grad, x, ends);
}

void add_weight_grad(Tensor& main, const Tensor& grad, const Tensor& x, const Tensor& ends) {
  static const auto op =
      find<void(Tensor&, const Tensor&, const Tensor&, const Tensor&)>("concord::grouped_linear_weight_grad_");
  op.call(main, grad, x, ends);
}

void set_weight_grad(Tensor& main, const Tensor& grad, const Tensor& x, const Tensor& ends) {
  static const auto op =
      find<void(Tensor&, const Tensor&, const Tensor&, const Tensor&)>("concord::grouped_linear_weight_grad_set_");
  op.call(main, grad, x, ends);
}

// -------------------------------------------------------------------------------------------------------- reference

// Returns |rows| split into its groups.
std::vector<Tensor> groups_of(const Tensor& rows, const Tensor& ends) {
  const Tensor host = ends.cpu().contiguous();
  const int64_t* end = host.const_data_ptr<int64_t>();
  std::vector<int64_t> sizes;
  int64_t begin = 0;
  for (int64_t i = 0; i < host.numel(); begin = end[i++]) sizes.push_back(end[i] - begin);
  if (begin != rows.size(0) || std::any_of(sizes.begin(), sizes.end(), [](int64_t size) { return size < 0; })) {
    refuse("grouped_linear", fmt::format("groups of {} rows do not make up {}; ends must ascend to the number of rows",
                                         sizes, rows.size(0)));
  }
  return rows.split_with_sizes(sizes, 0);
}

template <class Product>
Tensor each_group(const Tensor& rows, const Tensor& weight, const Tensor& ends, const Product& product) {
  const std::vector<Tensor> groups = groups_of(rows, ends);
  const bool widens = multiplies_faster_in_fp32(rows);
  std::vector<Tensor> results;
  for (size_t i = 0; i < groups.size(); ++i) {
    const Tensor own = weight.select(0, static_cast<int64_t>(i));
    results.push_back(widens ? product(groups[i].to(at::kFloat), own.to(at::kFloat)).to(rows.scalar_type())
                             : product(groups[i], own));
  }
  return at::cat(results);
}

Tensor reference(const Tensor& x, const Tensor& weight, const Tensor& ends) {
  return each_group(x, weight, ends, [](const Tensor& rows, const Tensor& own) { return at::linear(rows, own); });
}

Tensor reference_input_grad(const Tensor& grad, const Tensor& weight, const Tensor& ends) {
  return each_group(grad, weight, ends, [](const Tensor& rows, const Tensor& own) { return at::mm(rows, own); });
}

// The gradient of an empty group is a product over no rows: 0.
Tensor reference_weight_grad(const Tensor& grad, const Tensor& x, const Tensor& ends) {
  if (multiplies_faster_in_fp32(grad)) {
    return reference_weight_grad(grad.to(at::kFloat), x.to(at::kFloat), ends).to(grad.scalar_type());
  }
  const std::vector<Tensor> grads = groups_of(grad, ends), inputs = groups_of(x, ends);
  std::vector<Tensor> results;
  for (size_t i = 0; i < grads.size(); ++i) results.push_back(at::mm(grads[i].t(), inputs[i]));
  return at::stack(results);
}

// One accumulating GEMM per group. 16-bit operands are converted first, so that nothing is rounded in between.
void reference_add_weight_grad(Tensor& main, const Tensor& grad, const Tensor& x, const Tensor& ends) {
  const std::vector<Tensor> grads = groups_of(grad, ends), inputs = groups_of(x, ends);
  const auto type = main.scalar_type();
  for (size_t i = 0; i < grads.size(); ++i) {
    if (grads[i].size(0) == 0) continue;
    main.select(0, static_cast<int64_t>(i)).addmm_(grads[i].t().to(type), inputs[i].to(type));
  }
}

void reference_set_weight_grad(Tensor& main, const Tensor& grad, const Tensor& x, const Tensor& ends) {
  main.zero_();
  reference_add_weight_grad(main, grad, x, ends);
}

// ------------------------------------------------------------------------------------------------------- derivative

// The input gradient is computed first: with deferred weight gradients it is all that backward computes.
Tensor input_half(const Backward& b) {
  return b.needed[0] ? input_grad(b.grad.contiguous(), b.saved[1], b.saved[2]) : Tensor();
}

Tensor autograd(const Tensor& x, const Tensor& weight, const Tensor& ends) {
  const auto run = [&] { return Forward{forward(x, weight, ends), {x, weight, ends}}; };
  return differentiable("grouped_linear", {x, weight, Tensor()}, run, [](const Backward& b) {
    Tensor own = b.needed[1] ? weight_grad(b.grad.contiguous(), b.saved[0], b.saved[2]) : Tensor();
    return Tensors{input_half(b), own, Tensor()};
  });
}

Tensor into_sink(const Tensor& x, const Tensor& weight, const Tensor& ends, const GradSink& sink) {
  const auto run = [&] { return Forward{forward(x, weight, ends), {x, weight, ends}}; };
  return differentiable("grouped_linear", {x, weight}, run, [sink](const Backward& b) {
    Tensors result{input_half(b), Tensor()};
    if (!b.needed[1]) return result;
    // Detached from the graph, which would otherwise live as long as a deferred addition.
    const Tensor grad = b.grad.detach().contiguous(), input = b.saved[0].detach(), until = b.saved[2];
    sink.add([grad, input, until](Tensor& main) { add_weight_grad(main, grad, input, until); },
             [grad, input, until](Tensor& main) { set_weight_grad(main, grad, input, until); });
    return result;
  });
}

TORCH_LIBRARY_FRAGMENT(concord, m) {
  m.def("grouped_linear(Tensor x, Tensor weight, Tensor ends) -> Tensor");
  m.def("grouped_linear_input_grad(Tensor grad, Tensor weight, Tensor ends) -> Tensor");
  m.def("grouped_linear_weight_grad(Tensor grad, Tensor x, Tensor ends) -> Tensor");
  m.def("grouped_linear_weight_grad_(Tensor(a!) main, Tensor grad, Tensor x, Tensor ends) -> ()");
  m.def("grouped_linear_weight_grad_set_(Tensor(a!) main, Tensor grad, Tensor x, Tensor ends) -> ()");
}
TORCH_LIBRARY_IMPL(concord, CompositeExplicitAutograd, m) {
  m.impl("grouped_linear", reference);
  m.impl("grouped_linear_input_grad", reference_input_grad);
  m.impl("grouped_linear_weight_grad", reference_weight_grad);
  m.impl("grouped_linear_weight_grad_", reference_add_weight_grad);
  m.impl("grouped_linear_weight_grad_set_", reference_set_weight_grad);
}
TORCH_LIBRARY_IMPL(concord, Autograd, m) { m.impl("grouped_linear", autograd); }

void check_main(const Tensor& main, const Tensor& weight) {
  const bool fits = main.defined() && main.sizes() == weight.sizes() && main.device() == weight.device() &&
                    GradSink::is_main_type(main.scalar_type());
  if (fits) return;
  refuse("grouped_linear",
         fmt::format("the main gradient is {}; for this weight it must be Float, Double or BFloat16 [{}] on {}",
                     text_of(main), fmt::join(weight.sizes(), ", "), weight.device().str()));
}

}  // namespace
}  // namespace ops::grouped_linear_op

at::Tensor grouped_linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& ends, const GradSink* sink) {
  using namespace ops;
  using namespace ops::grouped_linear_op;
  check_floating("grouped_linear", "x", x);
  check_like("grouped_linear", "weight", weight, x);
  const bool fits = x.dim() == 2 && weight.dim() == 3 && x.size(1) == weight.size(2) && ends.defined() &&
                    ends.dim() == 1 && ends.size(0) == weight.size(0) && ends.scalar_type() == at::kLong &&
                    ends.device() == x.device();
  if (!fits) {
    refuse("grouped_linear",
           fmt::format("x is {}, weight {}, ends {}; they must be [rows, in], [groups, out, in] and Long [groups]",
                       text_of(x), text_of(weight), text_of(ends)));
  }
  if (sink == nullptr) return forward(x, weight, ends);
  check_main(sink->main, weight);
  return into_sink(x, weight, ends, *sink);
}

}  // namespace concord
