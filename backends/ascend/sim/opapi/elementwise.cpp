// Operators that work element by element.
#include <ATen/ops/abs.h>
#include <ATen/ops/acos.h>
#include <ATen/ops/add.h>
#include <ATen/ops/addcdiv.h>
#include <ATen/ops/addcmul.h>
#include <ATen/ops/asin.h>
#include <ATen/ops/atan.h>
#include <ATen/ops/atan2.h>
#include <ATen/ops/bitwise_and.h>
#include <ATen/ops/bitwise_not.h>
#include <ATen/ops/bitwise_or.h>
#include <ATen/ops/bitwise_xor.h>
#include <ATen/ops/ceil.h>
#include <ATen/ops/clamp.h>
#include <ATen/ops/clamp_max.h>
#include <ATen/ops/clamp_min.h>
#include <ATen/ops/cos.h>
#include <ATen/ops/cosh.h>
#include <ATen/ops/div.h>
#include <ATen/ops/eq.h>
#include <ATen/ops/erf.h>
#include <ATen/ops/erfc.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/exp2.h>
#include <ATen/ops/expm1.h>
#include <ATen/ops/floor.h>
#include <ATen/ops/floor_divide.h>
#include <ATen/ops/fmod.h>
#include <ATen/ops/ge.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/gelu_backward.h>
#include <ATen/ops/gt.h>
#include <ATen/ops/isclose.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/le.h>
#include <ATen/ops/leaky_relu.h>
#include <ATen/ops/lerp.h>
#include <ATen/ops/log.h>
#include <ATen/ops/log10.h>
#include <ATen/ops/log1p.h>
#include <ATen/ops/log2.h>
#include <ATen/ops/log_sigmoid_forward.h>
#include <ATen/ops/logaddexp.h>
#include <ATen/ops/logical_and.h>
#include <ATen/ops/logical_not.h>
#include <ATen/ops/logical_or.h>
#include <ATen/ops/logical_xor.h>
#include <ATen/ops/lt.h>
#include <ATen/ops/masked_fill.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/minimum.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/nan_to_num.h>
#include <ATen/ops/ne.h>
#include <ATen/ops/neg.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/reciprocal.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/remainder.h>
#include <ATen/ops/round.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/rsub.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/sigmoid_backward.h>
#include <ATen/ops/sign.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/silu_backward.h>
#include <ATen/ops/sin.h>
#include <ATen/ops/sinh.h>
#include <ATen/ops/softplus.h>
#include <ATen/ops/sqrt.h>
#include <ATen/ops/sub.h>
#include <ATen/ops/tan.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/tanh_backward.h>
#include <ATen/ops/threshold_backward.h>
#include <ATen/ops/trunc.h>
#include <ATen/ops/where.h>

#include "backends/ascend/sim/opapi/operator.h"

namespace concord::ascend::sim {

using at::Scalar;
using at::Tensor;

// ------------------------------------------------------------------------------------------------------ one argument

// Formatted by hand: clang-format breaks every operator over several lines.
// clang-format off
#define UNARY(Name, function) \
  OPERATOR(Name, (Tensor self, Out out) { out = at::function(self); })
#define INPLACE_UNARY(Name, function) \
  OPERATOR(Inplace##Name, (InOut self) { self = at::function(*self); })
#define UNARY_BOTH(Name, function) UNARY(Name, function) INPLACE_UNARY(Name, function)

UNARY(Abs, abs)
UNARY(BitwiseNot, bitwise_not)
UNARY(Gelu, gelu)
UNARY(IsFinite, isfinite)
UNARY(Sign, sign)
UNARY(Silu, silu)
UNARY_BOTH(Acos, acos)
UNARY_BOTH(Asin, asin)
UNARY_BOTH(Atan, atan)
UNARY_BOTH(Ceil, ceil)
UNARY_BOTH(Cos, cos)
UNARY_BOTH(Cosh, cosh)
UNARY_BOTH(Erf, erf)
UNARY_BOTH(Erfc, erfc)
UNARY_BOTH(Exp, exp)
UNARY_BOTH(Exp2, exp2)
UNARY_BOTH(Expm1, expm1)
UNARY_BOTH(Floor, floor)
UNARY_BOTH(Log, log)
UNARY_BOTH(Log10, log10)
UNARY_BOTH(Log1p, log1p)
UNARY_BOTH(Log2, log2)
UNARY_BOTH(LogicalNot, logical_not)
UNARY_BOTH(Neg, neg)
UNARY_BOTH(Reciprocal, reciprocal)
UNARY_BOTH(Relu, relu)
UNARY(Round, round)
UNARY_BOTH(Rsqrt, rsqrt)
UNARY_BOTH(Sigmoid, sigmoid)
UNARY_BOTH(Sin, sin)
UNARY_BOTH(Sinh, sinh)
UNARY_BOTH(Sqrt, sqrt)
UNARY_BOTH(Tan, tan)
UNARY_BOTH(Tanh, tanh)
UNARY(Trunc, trunc)

OPERATOR(Cast, (Tensor self, at::ScalarType, Out out) { out = self; })
OPERATOR(InplaceCopy, (Out self, Tensor source) { self = source.expand_as(*self); })
OPERATOR(InplaceFillScalar, (Out self, Scalar value) { self->fill_(value); })
OPERATOR(InplaceFillTensor, (Out self, Tensor value) { self = value.expand_as(*self); })
OPERATOR(InplaceOne, (Out self) { self->fill_(1); })
OPERATOR(InplaceZero, (Out self) { self->zero_(); })
OPERATOR(LeakyRelu, (Tensor self, Scalar slope, Out out) { out = at::leaky_relu(self, slope); })
OPERATOR(NanToNum, (Tensor self, float nan, float above, float below, Out out) {
  out = at::nan_to_num(self, nan, above, below);
})
OPERATOR(Softplus, (Tensor self, Scalar beta, Scalar threshold, Out out) { out = at::softplus(self, beta, threshold); })
OPERATOR(GeluV2, (Tensor self, int64_t approximate, Out out) {
  out = at::gelu(self, approximate == 0 ? "none" : "tanh");
})
OPERATOR(LogSigmoidForward, (Tensor self, Out out, Out) { out = std::get<0>(at::log_sigmoid_forward(self)); })

// ----------------------------------------------------------------------------------------------------- two arguments

#define BINARY(Name, function) \
  OPERATOR(Name, (Tensor self, Tensor other, Out out) { out = at::function(self, other); })
#define BINARY_BOTH(Name, function)     \
  BINARY(Name, function)                \
  OPERATOR(Inplace##Name, (InOut self, Tensor other) { self = at::function(*self, other); })
#define SCALAR_BOTH(Name, function)                                                              \
  OPERATOR(Name, (Tensor self, Scalar other, Out out) { out = at::function(self, other); })      \
  OPERATOR(Inplace##Name, (InOut self, Scalar other) { self = at::function(*self, other); })
#define COMPARISON(Name, function) BINARY_BOTH(Name##Tensor, function) SCALAR_BOTH(Name##Scalar, function)

COMPARISON(Eq, eq)
COMPARISON(Ge, ge)
COMPARISON(Gt, gt)
COMPARISON(Le, le)
COMPARISON(Lt, lt)
COMPARISON(Ne, ne)
BINARY(Atan2, atan2)
BINARY(BitwiseOrTensor, bitwise_or)
BINARY(LogicalXor, logical_xor)
BINARY(LogAddExp, logaddexp)
BINARY(Maximum, maximum)
BINARY(Minimum, minimum)
BINARY(ClampMinTensor, clamp_min)
BINARY(ClampMaxTensor, clamp_max)
BINARY_BOTH(BitwiseAndTensor, bitwise_and)
BINARY_BOTH(BitwiseXorTensor, bitwise_xor)
BINARY_BOTH(Div, div)
BINARY_BOTH(FloorDivide, floor_divide)
BINARY_BOTH(FmodTensor, fmod)
BINARY_BOTH(LogicalAnd, logical_and)
BINARY_BOTH(LogicalOr, logical_or)
BINARY_BOTH(Mul, mul)
BINARY_BOTH(PowTensorTensor, pow)
BINARY_BOTH(RemainderTensorTensor, remainder)
SCALAR_BOTH(BitwiseAndScalar, bitwise_and)
SCALAR_BOTH(BitwiseXorScalar, bitwise_xor)
SCALAR_BOTH(ClampMax, clamp_max)
SCALAR_BOTH(Divs, div)
SCALAR_BOTH(FloorDivides, floor_divide)
SCALAR_BOTH(FmodScalar, fmod)
SCALAR_BOTH(Muls, mul)
SCALAR_BOTH(PowTensorScalar, pow)
SCALAR_BOTH(RemainderTensorScalar, remainder)

OPERATOR(BitwiseOrScalar, (Tensor self, Scalar other, Out out) { out = at::bitwise_or(self, other); })
OPERATOR(ClampMin, (Tensor self, Scalar low, Out out) { out = at::clamp_min(self, low); })
OPERATOR(PowScalarTensor, (Scalar self, Tensor exponent, Out out) { out = at::pow(self, exponent); })
OPERATOR(IsClose, (Tensor self, Tensor other, double relative, double absolute, bool equal_nan, Out out) {
  out = at::isclose(self, other, relative, absolute, equal_nan);
})

// x + alpha * y and its variants.
#define SCALED(Name, function)                                                                                       \
  OPERATOR(Name, (Tensor self, Tensor other, Scalar alpha, Out out) { out = at::function(self, other, alpha); })     \
  OPERATOR(Inplace##Name, (InOut self, Tensor other, Scalar alpha) { self = at::function(*self, other, alpha); })    \
  OPERATOR(Name##s, (Tensor self, Scalar other, Scalar alpha, Out out) { out = at::function(self, other, alpha); })  \
  OPERATOR(Inplace##Name##s, (InOut self, Scalar other, Scalar alpha) { self = at::function(*self, other, alpha); })

SCALED(Add, add)
SCALED(Sub, sub)
OPERATOR(Rsub, (Tensor self, Tensor other, Scalar alpha, Out out) { out = at::rsub(self, other, alpha); })
OPERATOR(Rsubs, (Tensor self, Scalar other, Scalar alpha, Out out) { out = at::rsub(self, other, alpha); })

static std::optional<std::string_view> rounding(int32_t mode) {
  switch (mode) {
    case 0: return std::nullopt;
    case 1: return "trunc";
    case 2: return "floor";
    default: throw OperatorError(kAclnnParamInvalid, "rounding mode " + std::to_string(mode) + " is not 0, 1 or 2");
  }
}

OPERATOR(DivMod, (Tensor self, Tensor other, int32_t mode, Out out) { out = at::div(self, other, rounding(mode)); })
OPERATOR(DivMods, (Tensor self, Scalar other, int32_t mode, Out out) { out = at::div(self, other, rounding(mode)); })
OPERATOR(InplaceDivMod, (InOut self, Tensor other, int32_t mode) { self = at::div(*self, other, rounding(mode)); })
OPERATOR(InplaceDivMods, (InOut self, Scalar other, int32_t mode) { self = at::div(*self, other, rounding(mode)); })

// ----------------------------------------------------------------------------------------------------------- several

OPERATOR(Addcdiv, (Tensor self, Tensor a, Tensor b, Scalar value, Out out) { out = at::addcdiv(self, a, b, value); })
OPERATOR(Addcmul, (Tensor self, Tensor a, Tensor b, Scalar value, Out out) { out = at::addcmul(self, a, b, value); })
OPERATOR(InplaceAddcdiv, (InOut self, Tensor a, Tensor b, Scalar value) { self = at::addcdiv(*self, a, b, value); })
OPERATOR(InplaceAddcmul, (InOut self, Tensor a, Tensor b, Scalar value) { self = at::addcmul(*self, a, b, value); })
OPERATOR(Clamp, (Tensor self, std::optional<Scalar> low, std::optional<Scalar> high, Out out) {
  out = at::clamp(self, low, high);
})
OPERATOR(ClampTensor, (Tensor self, std::optional<Tensor> low, std::optional<Tensor> high, Out out) {
  out = at::clamp(self, low, high);
})
OPERATOR(InplaceMaskedFillScalar, (InOut self, Tensor mask, Scalar value) {
  self = at::masked_fill(*self, mask, value);
})
OPERATOR(InplaceMaskedFillTensor, (InOut self, Tensor mask, Tensor value) {
  self = at::masked_fill(*self, mask, value.reshape({}));
})
OPERATOR(Lerp, (Tensor self, Tensor end, Tensor weight, Out out) { out = at::lerp(self, end, weight); })
OPERATOR(Lerps, (Tensor self, Tensor end, Scalar weight, Out out) { out = at::lerp(self, end, weight); })
OPERATOR(InplaceLerp, (InOut self, Tensor end, Tensor weight) { self = at::lerp(*self, end, weight); })
OPERATOR(InplaceLerps, (InOut self, Tensor end, Scalar weight) { self = at::lerp(*self, end, weight); })
OPERATOR(SWhere, (Tensor condition, Tensor self, Tensor other, Out out) { out = at::where(condition, self, other); })

// --------------------------------------------------------------------------------------------------------- gradients

OPERATOR(GeluBackward, (Tensor gradient, Tensor self, Out out) { out = at::gelu_backward(gradient, self); })
OPERATOR(GeluBackwardV2, (Tensor gradient, Tensor self, std::string approximate, Out out) {
  out = at::gelu_backward(gradient, self, approximate);
})
// Without the buffer of forward, which torch_npu leaves empty.
OPERATOR(LogSigmoidBackward, (Tensor gradient, Tensor self, Tensor, Out out) {
  out = at::mul(gradient, at::sigmoid(at::neg(self)));
})
OPERATOR(SigmoidBackward, (Tensor gradient, Tensor result, Out out) { out = at::sigmoid_backward(gradient, result); })
OPERATOR(SiluBackward, (Tensor gradient, Tensor self, Out out) { out = at::silu_backward(gradient, self); })
OPERATOR(TanhBackward, (Tensor gradient, Tensor result, Out out) { out = at::tanh_backward(gradient, result); })
OPERATOR(ThresholdBackward, (Tensor gradient, Tensor self, Scalar threshold, Out out) {
  out = at::threshold_backward(gradient, self, threshold);
})

// clang-format on
}  // namespace concord::ascend::sim
