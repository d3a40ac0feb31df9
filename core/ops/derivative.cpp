#include "core/ops/derivative.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <fmt/core.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <utility>

#include "core/base/config_error.h"

namespace concord::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Keeps |backward| in the context, which can only hold IValues.
struct Holder : torch::CustomClassHolder {
  const char* name = nullptr;
  BackwardOfSeveralFunction backward;
  size_t inputs = 0;
  std::vector<size_t> given;  // the defined inputs, the only ones that autograd sees
};

constexpr const char* kHolder = "backward";
constexpr size_t kOtherArguments = 2;  // arguments of apply without gradient: run, holder

struct Derivative : torch::autograd::Function<Derivative> {
  static variable_list forward(AutogradContext* context, at::TensorList, const std::function<ForwardOfSeveral()>* run,
                               const c10::intrusive_ptr<Holder>& holder) {
    const at::AutoDispatchBelowADInplaceOrView below;
    ForwardOfSeveral result = (*run)();
    context->save_for_backward(std::move(result.saved));
    context->saved_data[kHolder] = c10::IValue::make_capsule(holder);
    return std::move(result.outputs);
  }

  static variable_list backward(AutogradContext* context, variable_list grads) {
    const auto capsule = context->saved_data[kHolder].toCapsule();
    const auto& holder = static_cast<const Holder&>(*capsule);
    if (c10::GradMode::is_enabled()) {
      throw ConfigError(fmt::format(
          "operator {} has only a first derivative, but a second one was requested; call backward without create_graph",
          holder.name));
    }
    BackwardOfSeveral call{context->get_saved_variables(), std::move(grads), std::vector<bool>(holder.inputs)};
    for (size_t i = 0; i < holder.given.size(); ++i) call.needed[holder.given[i]] = context->needs_input_grad(i);
    const Tensors found = holder.backward(call);
    Tensors result;
    for (const size_t input : holder.given) result.push_back(found.at(input));
    result.resize(result.size() + kOtherArguments);
    return result;
  }
};

}  // namespace

bool needs_derivative(const Tensors& inputs) {
  return c10::GradMode::is_enabled() && std::any_of(inputs.begin(), inputs.end(), [](const at::Tensor& x) {
           return x.defined() && x.requires_grad();
         });
}

Tensors differentiable(const char* name, const Tensors& inputs, const std::function<ForwardOfSeveral()>& forward,
                       BackwardOfSeveralFunction backward) {
  if (!needs_derivative(inputs)) {
    const at::AutoDispatchBelowADInplaceOrView below;
    return forward().outputs;
  }
  const auto holder = c10::make_intrusive<Holder>();
  holder->name = name;
  holder->backward = std::move(backward);
  holder->inputs = inputs.size();
  Tensors given;
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (!inputs[i].defined()) continue;
    given.push_back(inputs[i]);
    holder->given.push_back(i);
  }
  return Derivative::apply(at::TensorList(given), &forward, holder);
}

at::Tensor differentiable(const char* name, const Tensors& inputs, const std::function<Forward()>& forward,
                          BackwardFunction backward) {
  const std::function<ForwardOfSeveral()> run = [&] {
    Forward made = forward();
    return ForwardOfSeveral{{std::move(made.output)}, std::move(made.saved)};
  };
  return differentiable(name, inputs, run, [backward = std::move(backward)](const BackwardOfSeveral& b) {
    return backward({b.saved, b.grads[0], b.needed});
  })[0];
}

}  // namespace concord::ops
