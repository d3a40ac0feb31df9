// Derivatives of operators: an operator runs below autograd, lists the tensors to save, and provides a backward
// function. Operators include this instead of libtorch's autograd headers, which take longer to compile than all
// operators together.
//
// Example, given const at::Tensor& x, const at::Tensor& y:
//   #include <ATen/ops/mul.h>
//   const at::Tensor product = differentiable(
//       "product", {x, y}, [&] { return Forward{at::mul(x, y), {x, y}}; },
//       [](const Backward& b) { return Tensors{at::mul(b.grad, b.saved[1]), at::mul(b.grad, b.saved[0])}; });
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

namespace concord::ops {

using Tensors = std::vector<at::Tensor>;

// The result of forward.
struct Forward {
  at::Tensor output;  // the differentiable output
  Tensors saved;      // inputs, outputs or neither; undefined tensors stay undefined
};
// Like Forward, with several outputs. They may share memory, which must not be written.
struct ForwardOfSeveral {
  Tensors outputs;
  Tensors saved;
};

// The arguments of backward.
struct Backward {
  Tensors saved;
  at::Tensor grad;           // gradient of the output; defined, on the output's device, in any strides
  std::vector<bool> needed;  // per input: whether its gradient is needed
};
struct BackwardOfSeveral {
  Tensors saved;
  Tensors grads;  // gradients of the outputs; zeros for unused outputs
  std::vector<bool> needed;
};

using BackwardFunction = std::function<Tensors(const Backward&)>;
using BackwardOfSeveralFunction = std::function<Tensors(const BackwardOfSeveral&)>;

// Returns whether autograd would record an operation on |inputs|. Undefined tensors count as constants.
bool needs_derivative(const Tensors& inputs);

// Runs |forward| below autograd and returns its output, with |backward| as its derivative if one of |inputs| needs it.
// |backward| returns one gradient per input, undefined if there is none. libtorch throws if saved tensors are modified
// in the meantime. Throws with |name| if a second derivative is requested.
at::Tensor differentiable(const char* name, const Tensors& inputs, const std::function<Forward()>& forward,
                          BackwardFunction backward);
// Like differentiable() above, for an operator with several outputs, all of which are differentiable.
Tensors differentiable(const char* name, const Tensors& inputs, const std::function<ForwardOfSeveral()>& forward,
                       BackwardOfSeveralFunction backward);

}  // namespace concord::ops
