// How an operator gets its derivative: it runs below autograd, says what to save, and provides a backward function.
// Operators include this and not libtorch's autograd headers, which cost more to compile than all of them together.
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

// What forward leaves.
struct Forward {
  at::Tensor output;  // the one that has a derivative
  Tensors saved;      // inputs, outputs or neither; undefined ones stay undefined
};
// The same for several outputs. They may share memory, which nobody writes to.
struct ForwardOfSeveral {
  Tensors outputs;
  Tensors saved;
};

// What backward is given.
struct Backward {
  Tensors saved;
  at::Tensor grad;           // of the output; defined, on the output's device, in any strides
  std::vector<bool> needed;  // for each input: whether its gradient is needed
};
struct BackwardOfSeveral {
  Tensors saved;
  Tensors grads;  // of the outputs; zeros for those that nothing depends on
  std::vector<bool> needed;
};

using BackwardFunction = std::function<Tensors(const Backward&)>;
using BackwardOfSeveralFunction = std::function<Tensors(const BackwardOfSeveral&)>;

// Whether autograd would record an operation on |inputs|. Undefined tensors count as constants.
bool needs_derivative(const Tensors& inputs);

// Runs |forward| below autograd and returns its output, with |backward| as the derivative if one of |inputs| needs it.
// |backward| returns one gradient per input, undefined if there is none. Saved tensors that are written to in the
// meantime are noticed and refused by libtorch. A derivative of the derivative is refused, with |name|.
at::Tensor differentiable(const char* name, const Tensors& inputs, const std::function<Forward()>& forward,
                          BackwardFunction backward);
// The same for an operator with several outputs, all of which have a derivative.
Tensors differentiable(const char* name, const Tensors& inputs, const std::function<ForwardOfSeveral()>& forward,
                       BackwardOfSeveralFunction backward);

}  // namespace concord::ops
