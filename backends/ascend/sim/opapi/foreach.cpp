// Operators on lists of tensors.
#include <ATen/ops/abs.h>
#include <ATen/ops/add.h>
#include <ATen/ops/addcdiv.h>
#include <ATen/ops/addcmul.h>
#include <ATen/ops/div.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/lerp.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/log.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/minimum.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/neg.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/reciprocal.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/sign.h>
#include <ATen/ops/sqrt.h>
#include <ATen/ops/sub.h>
#include <ATen/ops/tanh.h>

#include "backends/ascend/sim/opapi/operator.h"

namespace concord::ascend::sim {

using at::Scalar;
using at::Tensor;

// out[i] = function(i), for every output. Lists of unequal length are the caller's mistake.
template <class Function, class... Lists>
static void each(const Outs& outs, Function function, const Lists&... lists) {
  if (((lists.size() != outs.size()) || ...)) throw OperatorError(kAclnnParamInvalid, "the lists differ in length");
  for (size_t i = 0; i < outs.size(); ++i) outs[i] = function(lists[i]...);
}

// Formatted by hand: clang-format breaks every operator over several lines.
// clang-format off
#define EACH_UNARY(Name, function)                                             \
  OPERATOR(Foreach##Name, (Tensors self, Outs outs) {                          \
    each(outs, [](const Tensor& a) { return at::function(a); }, self);         \
  })
EACH_UNARY(Abs, abs)
EACH_UNARY(Exp, exp)
EACH_UNARY(Log, log)
EACH_UNARY(Neg, neg)
EACH_UNARY(Reciprocal, reciprocal)
EACH_UNARY(Sigmoid, sigmoid)
EACH_UNARY(Sign, sign)
EACH_UNARY(Sqrt, sqrt)
EACH_UNARY(Tanh, tanh)
OPERATOR(ForeachCopy, (Tensors self, Outs outs) {
  each(outs, [](const Tensor& a) { return a; }, self);
})
OPERATOR(ForeachZeroInplace, (Outs self) {
  for (const Out& tensor : self) tensor->zero_();
})
OPERATOR(ForeachNorm, (Tensors self, Scalar order, Outs outs) {
  for (size_t i = 0; i < outs.size(); ++i) outs[i].reshaped(at::linalg_vector_norm(self.at(i), order));
})

// With one scalar for all, and with one each.
#define EACH_SCALAR(Name, function)                                                               \
  OPERATOR(Foreach##Name##ScalarV2, (Tensors self, Scalar scalar, Outs outs) {                    \
    each(outs, [&](const Tensor& a) { return at::function(a, scalar); }, self);                   \
  })                                                                                              \
  OPERATOR(Foreach##Name##ScalarList, (Tensors self, Scalars scalars, Outs outs) {                \
    each(outs, [](const Tensor& a, const Scalar& s) { return at::function(a, s); }, self, scalars); \
  })
EACH_SCALAR(Add, add)
EACH_SCALAR(Sub, sub)
EACH_SCALAR(Mul, mul)
EACH_SCALAR(Div, div)
EACH_SCALAR(Pow, pow)

#define EACH_BINARY(Name, function)                                                              \
  OPERATOR(Foreach##Name, (Tensors self, Tensors other, Outs outs) {                             \
    each(outs, [](const Tensor& a, const Tensor& b) { return at::function(a, b); }, self, other); \
  })
EACH_BINARY(MulList, mul)
EACH_BINARY(DivList, div)
EACH_BINARY(PowList, pow)
EACH_BINARY(MaximumList, maximum)
EACH_BINARY(MinimumList, minimum)
OPERATOR(ForeachAddListV2, (Tensors self, Tensors other, Scalar alpha, Outs outs) {
  each(outs, [&](const Tensor& a, const Tensor& b) { return at::add(a, b, alpha); }, self, other);
})
OPERATOR(ForeachSubListV2, (Tensors self, Tensors other, Scalar alpha, Outs outs) {
  each(outs, [&](const Tensor& a, const Tensor& b) { return at::sub(a, b, alpha); }, self, other);
})
OPERATOR(ForeachLerpScalar, (Tensors self, Tensors ends, Scalar weight, Outs outs) {
  each(outs, [&](const Tensor& a, const Tensor& b) { return at::lerp(a, b, weight); }, self, ends);
})
OPERATOR(ForeachLerpList, (Tensors self, Tensors ends, Tensors weights, Outs outs) {
  each(outs, [](const Tensor& a, const Tensor& b, const Tensor& w) { return at::lerp(a, b, w); }, self, ends, weights);
})

#define EACH_ADDC(Name, function)                                                                                   \
  OPERATOR(Foreach##Name##ScalarV2, (Tensors self, Tensors a, Tensors b, Scalar value, Outs outs) {                 \
    each(outs, [&](const Tensor& s, const Tensor& x, const Tensor& y) { return at::function(s, x, y, value); },     \
         self, a, b);                                                                                               \
  })                                                                                                                \
  OPERATOR(Foreach##Name##ScalarList, (Tensors self, Tensors a, Tensors b, Scalars values, Outs outs) {             \
    each(outs, [](const Tensor& s, const Tensor& x, const Tensor& y, const Scalar& v) {                             \
      return at::function(s, x, y, v);                                                                              \
    }, self, a, b, values);                                                                                         \
  })
EACH_ADDC(Addcdiv, addcdiv)
EACH_ADDC(Addcmul, addcmul)
OPERATOR(ForeachAddcdivList, (Tensors self, Tensors a, Tensors b, Tensor values, Outs outs) {
  for (size_t i = 0; i < outs.size(); ++i) {
    outs[i] = at::addcdiv(self.at(i), a.at(i), b.at(i), values[static_cast<int64_t>(i)].item());
  }
})

// Divides gradients by the loss's scale, and sets |found_infinite| if one of them is not finite.
OPERATOR(ForeachNonFiniteCheckAndUnscale, (Outs gradients, Out found_infinite, Tensor inverse_scale) {
  bool finite = true;
  for (const Out& gradient : gradients) {
    finite = finite && at::isfinite(*gradient).all().item<bool>();
    gradient = at::mul(*gradient, inverse_scale.reshape({}));
  }
  if (!finite) found_infinite->fill_(1);
})

// clang-format on
}  // namespace concord::ascend::sim
