#!/usr/bin/env python3
"""Every operator of the simulated library, called through torch_npu, against ATen on the cpu, by value.

A case names the operators it is about; it fails where one of them was not called, so that a case cannot pass by way of
another kernel or of torch_npu's fallback to the cpu. At the end every operator that the library has must have had a case.
On a chip other than the default one only the cases run whose operators torch_npu calls there.
"""

import ctypes
import math
import os
import sys

os.environ["TORCH_NPU_FALLBACK_CPU_DISABLE"] = "1"

import torch
import torch.nn.functional as F
import torch_npu

from simulator import Direct, Simulator, check_equal, to

generator = torch.Generator().manual_seed(7)


def f(*shape, dtype=torch.float32):
    return torch.randn(*shape, generator=generator, dtype=torch.float32).to(dtype)


def positive(*shape):
    return f(*shape).abs() + 0.5


def unit(*shape):
    return torch.rand(*shape, generator=generator) * 1.8 - 0.9


def ints(*shape, below=10):
    return torch.randint(0, below, shape, generator=generator)


def bools(*shape):
    return f(*shape) > 0


CHIPS = ("Ascend910", "Ascend950")
CHIP = os.environ.get("CONCORD_SIM_NPU_SOC", "Ascend910B2")[:len(CHIPS[0])]
CASES = {chip: [] for chip in CHIPS}


def case(operators, function, *inputs, rtol=0.0, atol=0.0, reference=None, chip="Ascend910"):
    """|reference| computes the same on the cpu; |function| itself by default. |chip|: on which torch_npu calls them."""
    CASES[chip].append((operators.split(), function, inputs, rtol, atol, reference or function))


# --- one argument
for name, make in [("abs", f), ("acos", unit), ("asin", unit), ("atan", f), ("ceil", f), ("cos", f), ("cosh", f),
                   ("erf", f), ("erfc", f), ("exp", f), ("exp2", f), ("expm1", f), ("floor", f), ("log", positive),
                   ("log10", positive), ("log1p", positive), ("log2", positive), ("neg", f), ("reciprocal", positive),
                   ("relu", f), ("round", f), ("rsqrt", positive), ("sigmoid", f), ("sign", f), ("sin", f), ("sinh", f),
                   ("sqrt", positive), ("tan", unit), ("tanh", f), ("trunc", f), ("logical_not", f)]:
    camel = "".join(part.capitalize() for part in name.split("_"))
    case(camel, getattr(torch, name), make(3, 5))
    if name not in ("abs", "sign", "round", "trunc", "ceil", "relu", "neg"):
        case("Inplace" + camel, lambda x, n=name: getattr(x, n + "_")(), make(3, 5))
case("InplaceCeil", lambda x: x.ceil_(), f(4))
case("InplaceRelu", lambda x: x.relu_(), f(4, 4))
case("BitwiseNot", torch.bitwise_not, ints(6))
case("IsFinite", torch.isfinite, torch.tensor([1.0, float("inf"), float("nan")]))
case("Silu", F.silu, f(4, 6))
case("Gelu", F.gelu, f(4, 6))
case("GeluV2", lambda x: torch_npu.npu_gelu(x, approximate="tanh"), f(4, 6),
     reference=lambda x: F.gelu(x, approximate="tanh"))
case("LeakyRelu", lambda x: F.leaky_relu(x, 0.2), f(9))
case("NanToNum", lambda x: torch.nan_to_num(x, 1.0, 2.0, 3.0), torch.tensor([float("nan"), float("inf"), 5.0]))
case("Softplus", lambda x: F.softplus(x, 2.0, 10.0), f(9))
case("LogSigmoidForward", F.logsigmoid, f(9))
case("InplaceCopy", lambda x: x.t().contiguous(), f(3, 4))
case("InplaceCopy", lambda x: torch.zeros(2, 3, device=x.device).copy_(x), f(3))
case("InplaceCopy", lambda x: x.to(torch.bfloat16), f(5, 5))
case("InplaceFillScalar", lambda x: x.fill_(2.5), f(7))
case("InplaceFillTensor", lambda x, y: x.fill_(y), f(7), torch.tensor(3.0))
case("InplaceZero", lambda x: x.zero_(), f(4))

# --- two arguments
for name in ("eq", "ge", "gt", "le", "lt", "ne"):
    camel = name.capitalize()
    a, b = ints(20, below=3).float(), ints(20, below=3).float()
    case(camel + "Tensor", getattr(torch, name), a, b)
    case(camel + "Scalar", lambda x, n=name: getattr(torch, n)(x, 1), a)
    case("Inplace" + camel + "Tensor", lambda x, y, n=name: getattr(x, n + "_")(y), a, b)
    case("Inplace" + camel + "Scalar", lambda x, n=name: getattr(x, n + "_")(1), a)
case("Add", lambda x, y: torch.add(x, y, alpha=2), f(3, 4), f(4))
case("Adds", lambda x: torch.add(x, 3, alpha=2), f(3, 4))
case("InplaceAdd", lambda x, y: x.add_(y, alpha=2), f(3, 4), f(4))
case("InplaceAdds", lambda x: x.add_(3), f(3, 4))
case("Sub", lambda x, y: torch.sub(x, y, alpha=2), f(3, 4), f(4))
case("Subs", lambda x: x - 3, f(3, 4))
case("InplaceSub", lambda x, y: x.sub_(y), f(3, 4), f(4))
case("InplaceSubs", lambda x: x.sub_(3), f(3, 4))
case("Rsubs", lambda x: torch.rsub(x, 3), f(3, 4))
case("Rsub", torch.rsub, f(3, 4), f(3, 4))
case("Mul", torch.mul, f(3, 4), f(4))
case("Mul", torch.mul, f(3, 4, dtype=torch.bfloat16), f(4))
case("Muls", lambda x: x * 3, f(3, 4))
case("InplaceMul", lambda x, y: x.mul_(y), f(3, 4), f(4))
case("InplaceMuls", lambda x: x.mul_(3), f(3, 4))
case("Div", torch.div, f(3, 4), positive(4))
case("Divs", lambda x: x / 3, f(3, 4))
case("InplaceDiv", lambda x, y: x.div_(y), f(3, 4), positive(4))
case("InplaceDivs", lambda x: x.div_(3), f(3, 4))
case("DivMod", lambda x, y: torch.div(x, y, rounding_mode="floor"), f(9) * 5, positive(9))
case("DivMods", lambda x: torch.div(x, 2, rounding_mode="trunc"), f(9) * 5)
case("InplaceDivMod", lambda x, y: x.div_(y, rounding_mode="floor"), f(9) * 5, positive(9))
case("InplaceDivMods", lambda x: x.div_(2, rounding_mode="trunc"), f(9) * 5)
case("FloorDivide", torch.floor_divide, ints(9), ints(9) + 1)
case("FloorDivides", lambda x: x // 3, ints(9))
case("InplaceFloorDivide", lambda x, y: x.floor_divide_(y), ints(9), ints(9) + 1)
case("InplaceFloorDivides", lambda x: x.floor_divide_(3), ints(9))
case("FmodTensor", torch.fmod, f(9) * 5, positive(9))
case("FmodScalar", lambda x: torch.fmod(x, 2), f(9) * 5)
case("InplaceFmodTensor", lambda x, y: x.fmod_(y), f(9) * 5, positive(9))
case("InplaceFmodScalar", lambda x: x.fmod_(2), f(9) * 5)
case("RemainderTensorTensor", torch.remainder, f(9) * 5, positive(9))
case("RemainderTensorScalar", lambda x: x % 2, f(9) * 5)
case("InplaceRemainderTensorTensor", lambda x, y: x.remainder_(y), f(9) * 5, positive(9))
case("InplaceRemainderTensorScalar", lambda x: x.remainder_(2), f(9) * 5)
case("PowTensorTensor", torch.pow, positive(9), f(9))
case("PowTensorScalar", lambda x: x.pow(3), f(9))
case("PowScalarTensor", lambda x: torch.pow(2.0, x), f(9))
case("InplacePowTensorTensor", lambda x, y: x.pow_(y), positive(9), f(9))
case("InplacePowTensorScalar", lambda x: x.pow_(3), f(9))
case("Atan2", torch.atan2, f(9), f(9))
case("BitwiseAndTensor", torch.bitwise_and, ints(9), ints(9))
case("BitwiseAndScalar", lambda x: x & 3, ints(9))
case("InplaceBitwiseAndTensor", lambda x, y: x.bitwise_and_(y), ints(9), ints(9))
case("InplaceBitwiseAndScalar", lambda x: x.bitwise_and_(3), ints(9))
case("BitwiseOrTensor", torch.bitwise_or, ints(9), ints(9))
case("BitwiseOrScalar", lambda x: x | 3, ints(9))
case("BitwiseXorTensor", torch.bitwise_xor, ints(9), ints(9))
case("BitwiseXorScalar", lambda x: x ^ 3, ints(9))
case("InplaceBitwiseXorTensor", lambda x, y: x.bitwise_xor_(y), ints(9), ints(9))
case("InplaceBitwiseXorScalar", lambda x: x.bitwise_xor_(3), ints(9))
case("LogicalAnd", torch.logical_and, bools(9), bools(9))
case("LogicalOr", torch.logical_or, bools(9), bools(9))
case("LogicalXor", torch.logical_xor, bools(9), bools(9))
case("InplaceLogicalAnd", lambda x, y: x.logical_and_(y), bools(9), bools(9))
case("InplaceLogicalOr", lambda x, y: x.logical_or_(y), bools(9), bools(9))
case("LogAddExp", torch.logaddexp, f(9), f(9))
case("Maximum", torch.maximum, f(9), f(9))
case("Minimum", torch.minimum, f(9), f(9))
case("IsClose", torch.isclose, torch.tensor([1.0, 2.0]), torch.tensor([1.0 + 1e-7, 2.1]))
case("Equal", torch.equal, f(3), f(3))

# --- several
case("Addcdiv", lambda x, y, z: torch.addcdiv(x, y, z, value=2), f(5), f(5), positive(5))
case("Addcmul", lambda x, y, z: torch.addcmul(x, y, z, value=2), f(5), f(5), f(5))
case("InplaceAddcdiv", lambda x, y, z: x.addcdiv_(y, z, value=2), f(5), f(5), positive(5))
case("InplaceAddcmul", lambda x, y, z: x.addcmul_(y, z, value=2), f(5), f(5), f(5))
case("Clamp", lambda x: x.clamp(-0.5, 0.5), f(9))
case("Clamp", lambda x: x.clamp(min=-0.5), f(9))
case("ClampMin", lambda x: torch.clamp_min(x, 0.1), f(9))
case("ClampMax", lambda x: torch.clamp_max(x, 0.1), f(9))
case("InplaceClampMax", lambda x: x.clamp_max_(0.1), f(9))
case("ClampTensor", lambda x, a, b: torch.clamp(x, a, b), f(9), -positive(9), positive(9))
case("ClampMinTensor", lambda x, a: torch.clamp_min(x, a), f(9), f(9))
case("ClampMaxTensor", lambda x, a: torch.clamp_max(x, a), f(9), f(9))
case("InplaceMaskedFillScalar", lambda x, m: x.masked_fill_(m, -1.0), f(3, 4), bools(3, 4))
case("InplaceMaskedFillTensor", lambda x, m, v: x.masked_fill_(m, v), f(3, 4), bools(3, 4), torch.tensor(2.0))
case("Lerp", torch.lerp, f(5), f(5), unit(5))
case("Lerps", lambda x, y: torch.lerp(x, y, 0.3), f(5), f(5))
case("InplaceLerp", lambda x, y, w: x.lerp_(y, w), f(5), f(5), unit(5))
case("InplaceLerps", lambda x, y: x.lerp_(y, 0.3), f(5), f(5))
case("SWhere", torch.where, bools(5), f(5), f(5))

# --- along dimensions
case("Mean", lambda x: x.mean((0, 2)), f(3, 4, 5))
case("Mean", lambda x: x.mean(), f(3, 4))
case("ReduceSum", lambda x: x.sum(1, keepdim=True), f(3, 4))
case("ReduceSum", lambda x: x.sum(), f(3, 4))
case("Prod", lambda x: x.prod(), f(3, 4))
case("ProdDim", lambda x: x.prod(1), f(3, 4))
case("Cumsum", lambda x: x.cumsum(1), f(3, 4))
case("LogSumExp", lambda x: torch.logsumexp(x, (1,)), f(3, 4))
case("Std", lambda x: x.std(1), f(3, 4))
case("VarCorrection", lambda x: x.var(1), f(3, 4))
case("LinalgVectorNorm", lambda x: torch.linalg.vector_norm(x, 2, 1), f(3, 4))
case("All", lambda x: x.all(1), bools(3, 4))
case("Any", lambda x: x.any(1), bools(3, 4))
case("Amax", lambda x: x.amax((0, 1)), f(3, 4))
case("Amin", lambda x: x.amin(1), f(3, 4))
case("ArgMax", lambda x: x.argmax(1), f(3, 4))
case("ArgMin", lambda x: x.argmin(1), f(3, 4))
case("Max", torch.max, f(3, 4))
case("Min", torch.min, f(3, 4))
case("MaxDim", lambda x: tuple(torch.max(x, 1)), f(3, 4))
case("MinDim", lambda x: tuple(torch.min(x, 1)), f(3, 4))
case("Sort", lambda x: tuple(torch.sort(x, 1, descending=True)), f(3, 7))
case("TopkV2", lambda x: tuple(torch.topk(x, 3, 1)), f(3, 7))
case("Softmax", lambda x: torch.softmax(x, -1), f(3, 7))
case("LogSoftmax", lambda x: torch.log_softmax(x, -1), f(3, 7))

# --- layout
case("Arange", lambda x: torch.arange(2, 11, 3, device=x.device), f(1))
case("Eye", lambda x: torch.eye(3, 4, device=x.device), f(1))
case("Linspace", lambda x: torch.linspace(0, 1, 5, device=x.device), f(1))
case("Cat", lambda x, y: torch.cat((x, y), 1), f(2, 3), f(2, 4))
case("Stack", lambda x, y: torch.stack((x, y), 1), f(2, 3), f(2, 3))
case("ConstantPadNd", lambda x: F.pad(x, (1, 2), value=3.0), f(2, 3))
case("Flip", lambda x: x.flip(1), f(2, 3))
case("Roll", lambda x: x.roll(2, 1), f(2, 5))
case("Repeat", lambda x: x.repeat(2, 3), f(2, 3))
case("RepeatInterleaveInt", lambda x: x.repeat_interleave(2), f(2, 3))
case("RepeatInterleaveIntWithDim", lambda x: x.repeat_interleave(2, 1), f(2, 3))
case("RepeatInterleave", lambda x, r: x.repeat_interleave(r), f(3), torch.tensor([1, 0, 3]))
case("RepeatInterleaveWithDim", lambda x, r: x.repeat_interleave(r, 1), f(2, 3), torch.tensor([1, 0, 3]))
case("Tril", lambda x: x.tril(-1), f(4, 4))
case("Triu", lambda x: x.triu(1), f(4, 4))
case("InplaceTril", lambda x: x.tril_(), f(4, 4))
case("InplaceTriu", lambda x: x.triu_(), f(4, 4))
case("Embedding", lambda w, i: F.embedding(i, w), f(10, 4), ints(3, 2))
case("Gather", lambda x, i: x.gather(1, i), f(3, 10), ints(3, 4))
case("IndexSelect", lambda x, i: x.index_select(1, i), f(3, 10), ints(4))
case("IndexAdd", lambda x, i, s: x.index_add(0, i, s, alpha=2), f(10, 3), ints(5), f(5, 3))
case("InplaceIndexCopy", lambda x, i, s: x.index_copy_(0, i, s), f(10, 3), torch.tensor([4, 2]), f(2, 3))
case("Index", lambda x, i: x[i], f(10, 3), ints(5))
case("Index", lambda x, i: x[:, i], f(3, 10), ints(5))
case("IndexPutImpl", lambda x, i, v: x.index_put_((i,), v, accumulate=True), f(10), ints(5), f(5))
case("ScatterAdd", lambda x, i, s: x.scatter_add(1, i, s), f(3, 10), ints(3, 4), f(3, 4))
case("Scatter", lambda x, i, s: x.scatter(1, i, s), f(3, 10), torch.tensor([[1, 2], [3, 4], [0, 9]]), f(3, 2))
case("InplaceScatter", lambda x, i, s: x.scatter_(1, i, s), f(3, 10), torch.tensor([[1, 2], [3, 4], [0, 9]]), f(3, 2))
case("ScatterValue", lambda x, i: x.scatter(1, i, 2.0), f(3, 10), ints(3, 4))
case("InplaceScatterValue", lambda x, i: x.scatter_(1, i, 2.0), f(3, 10), ints(3, 4))
case("OneHot", lambda x: F.one_hot(x, 10), ints(2, 3))
case("Bincount", lambda x: torch.bincount(x, minlength=12), ints(20))
case("MaskedSelect", torch.masked_select, f(3, 4), bools(3, 4))
case("Nonzero", torch.nonzero, ints(3, 4, below=2))
case("Unique2", lambda x: torch.unique(x, return_inverse=True, return_counts=True), ints(20))
case("Index NonzeroV2", lambda x, m: x[m], f(3, 4), bools(3, 4))

# --- products
case("Mm", torch.mm, f(3, 4), f(4, 5), rtol=1e-6, atol=1e-6)
case("BatchMatMul", torch.bmm, f(2, 3, 4), f(2, 4, 5), rtol=1e-6, atol=1e-6)
case("Matmul", torch.matmul, f(2, 2, 3, 4), f(2, 2, 4, 5), rtol=1e-6, atol=1e-6)
case("Mv", torch.mv, f(3, 4), f(4), rtol=1e-6, atol=1e-6)
case("Dot", torch.dot, f(4), f(4), rtol=1e-6, atol=1e-6)
case("Addmm", lambda x, a, b: torch.addmm(x, a, b, beta=2, alpha=3), f(3, 5), f(3, 4), f(4, 5), rtol=1e-6, atol=1e-6)
case("InplaceAddmm", lambda x, a, b: x.addmm_(a, b), f(3, 5), f(3, 4), f(4, 5), rtol=1e-6, atol=1e-6)
case("Baddbmm", lambda x, a, b: torch.baddbmm(x, a, b, beta=2, alpha=3), f(2, 3, 5), f(2, 3, 4), f(2, 4, 5), rtol=1e-6, atol=1e-6)
case("Addmv", lambda x, a, b: torch.addmv(x, a, b, beta=2, alpha=3), f(3), f(3, 4), f(4), rtol=1e-6, atol=1e-6)
case("Addmm", lambda x, w, b: F.linear(x, w, b), f(3, 4), f(5, 4), f(5), rtol=1e-6, atol=1e-6)


# --- gradients
def gradients(function):
    """A function that returns what |function| does and the gradients of its inputs, for a fixed upstream gradient."""

    def both(*inputs):
        result = function(*inputs)
        upstream = torch.linspace(-1, 1, result.numel()).view(result.shape).to(result.device, result.dtype)
        wanted = [x for x in inputs if isinstance(x, torch.Tensor) and x.requires_grad]
        return (result.detach(), *torch.autograd.grad(result, wanted, upstream))

    return both


def w(*shape, dtype=torch.float32):
    return f(*shape, dtype=dtype).requires_grad_()


case("GeluBackward", gradients(F.gelu), w(9))
case("GeluBackwardV2", gradients(lambda x: torch_npu.npu_gelu(x, approximate="tanh")), w(9),
     reference=gradients(lambda x: F.gelu(x, approximate="tanh")))
case("LogSigmoidBackward", gradients(F.logsigmoid), w(9), rtol=1e-6, atol=1e-6)
case("SigmoidBackward", gradients(torch.sigmoid), w(9))
case("SiluBackward", gradients(F.silu), w(9))
case("TanhBackward", gradients(torch.tanh), w(9))
case("ThresholdBackward", gradients(torch.relu), w(9))
case("SoftmaxBackward", gradients(lambda x: torch.softmax(x, 1)), w(3, 7))
case("LogSoftmaxBackward", gradients(lambda x: torch.log_softmax(x, 1)), w(3, 7))
case("EmbeddingDenseBackward", gradients(lambda x, i: F.embedding(i, x)), w(10, 4), ints(7))
case("NLLLoss NLLLossBackward", gradients(lambda x, t: F.nll_loss(x, t, ignore_index=2)), w(7, 10), ints(7))
case("NLLLoss NLLLossBackward", gradients(lambda x, t: F.cross_entropy(x, t, reduction="sum")), w(7, 10), ints(7))
case("MseLoss MseLossBackward", gradients(F.mse_loss), w(3, 4), f(3, 4))
case("SmoothL1Loss SmoothL1LossBackward", gradients(F.smooth_l1_loss), w(3, 4), f(3, 4))
case("KlDiv", lambda x, y: F.kl_div(x, y, reduction="sum"), f(3, 4), positive(3, 4))
case("BinaryCrossEntropyWithLogits", F.binary_cross_entropy_with_logits, f(3, 4), torch.rand(3, 4), rtol=1e-6, atol=1e-6)
case("LayerNorm LayerNormBackward", gradients(lambda x, a, b: F.layer_norm(x, (6,), a, b)), w(3, 6), w(6), w(6),
     rtol=1e-5, atol=1e-6)

# --- lists
a, b, c = [f(3), f(2, 2)], [f(3), f(2, 2)], [positive(3), positive(2, 2)]
for name, inputs in [("abs", a), ("exp", a), ("log", c), ("neg", a), ("reciprocal", c), ("sigmoid", a), ("sign", a),
                     ("sqrt", c), ("tanh", a)]:
    case("Foreach" + name.capitalize(), getattr(torch, "_foreach_" + name), inputs)
for name in ("add", "sub", "mul", "div", "pow"):
    function = getattr(torch, "_foreach_" + name)
    camel = "Foreach" + name.capitalize()
    case(camel + "ScalarV2", lambda x, g=function: g(x, 2.0), c)
    case(camel + "ScalarList", lambda x, g=function: g(x, [2.0, 3.0]), c)
case("ForeachAddListV2", lambda x, y: torch._foreach_add(x, y, alpha=2), a, b)
case("ForeachSubListV2", lambda x, y: torch._foreach_sub(x, y, alpha=2), a, b)
case("ForeachMulList", torch._foreach_mul, a, b)
case("ForeachDivList", torch._foreach_div, a, c)
case("ForeachPowList", torch._foreach_pow, c, b)
case("ForeachMaximumList", torch._foreach_maximum, a, b)
case("ForeachMinimumList", torch._foreach_minimum, a, b)
case("ForeachLerpScalar", lambda x, y: torch._foreach_lerp(x, y, 0.3), a, b)
case("ForeachLerpList", torch._foreach_lerp, a, b, c)
case("ForeachAddcdivScalarV2", lambda x, y, z: torch._foreach_addcdiv(x, y, z, 2.0), a, b, c)
case("ForeachAddcmulScalarV2", lambda x, y, z: torch._foreach_addcmul(x, y, z, 2.0), a, b, c)
case("ForeachNorm", lambda x: torch._foreach_norm(x, 2), a)
case("ForeachCopy", lambda x, y: torch._foreach_copy_(x, y), a, b)
case("ForeachZeroInplace", lambda x: (torch._foreach_zero_(x), x)[1], a)
case("ForeachNonFiniteCheckAndUnscale",
     lambda x, found, scale: (torch._amp_foreach_non_finite_check_and_unscale_(x, found, scale), x, found)[1:],
     a, torch.zeros(1), torch.tensor(0.5))


# --- optimizers
def adamw_steps(weight, *grads, **options):
    parameter = torch.nn.Parameter(weight)
    optimizer = torch.optim.AdamW([parameter], lr=0.1, weight_decay=0.1, **options)
    for gradient in grads:
        parameter.grad = gradient
        optimizer.step()
    return parameter.detach()


case("ApplyAdamWV2", lambda x, g, h: adamw_steps(x, g, h, fused=True), f(3, 4), f(3, 4), f(3, 4), rtol=1e-5, atol=1e-6,
     reference=lambda x, g, h: adamw_steps(x, g, h, foreach=False))
case("ApplyAdamWV2", lambda x, g, h: adamw_steps(x, g, h, fused=True, amsgrad=True, maximize=True), f(3, 4), f(3, 4),
     f(3, 4), rtol=1e-5, atol=1e-6,
     reference=lambda x, g, h: adamw_steps(x, g, h, foreach=False, amsgrad=True, maximize=True))


# --- fused; the references are written out, in float32 as the simulator computes
def rms_norm(x, gamma):
    wide = x.float()
    return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6) * gamma.float()).to(x.dtype)


def rotary(x, cos, sin):
    first, second = x.float().chunk(2, -1)
    return (x.float() * cos + torch.cat((-second, first), -1) * sin).to(x.dtype)


def rotary_pairs(x, cos, sin):
    pairs = x.float().unflatten(-1, (-1, 2))
    return (x.float() * cos + torch.stack((-pairs[..., 1], pairs[..., 0]), -1).flatten(-2) * sin).to(x.dtype)


def swiglu(x):
    gate, up = x.float().chunk(2, -1)
    return (F.silu(gate) * up).to(x.dtype)


for dtype, tolerance in ((torch.float32, 1e-5), (torch.bfloat16, 2.0**-7)):  # bfloat16: one rounding more or less
    case("RmsNorm RmsNormGrad", gradients(lambda x, g: torch_npu.npu_rms_norm(x, g, 1e-6)[0]), w(3, 5, 8, dtype=dtype),
         w(8, dtype=dtype), rtol=tolerance, atol=tolerance, reference=gradients(rms_norm))
    case("SwiGlu SwiGluGrad", gradients(torch_npu.npu_swiglu), w(3, 8, dtype=dtype), rtol=tolerance, atol=tolerance,
         reference=gradients(swiglu))
angles = f(1, 6, 1, 8)
case("RotaryPositionEmbeddingV2 RotaryPositionEmbeddingGrad", gradients(torch_npu.npu_rotary_mul), w(2, 6, 3, 8),
     angles.cos(), angles.sin(), rtol=1e-5, atol=1e-6, reference=gradients(rotary))
case("RotaryPositionEmbeddingV2 RotaryPositionEmbeddingGrad",
     gradients(lambda x, cos, sin: torch_npu.npu_rotary_mul(x, cos, sin, "interleave")), w(2, 6, 3, 8), angles.cos(),
     angles.sin(), rtol=1e-5, atol=1e-6, reference=gradients(rotary_pairs))
def rotary_of_rows(rotary_mode):
    # Queries and keys in the rows of a projection, of which half of each head is rotated.
    def run(rows, cache, positions):
        q, k = rows[:, :96], rows[:, 96:128]
        if rows.device.type != "cpu":
            return torch.cat(torch_npu.npu_mrope(positions, q, k, cache, 32, mrope_section=[0, 0, 0],
                                                 rotary_mode=rotary_mode), -1)
        heads, (cos, sin) = rows[:, :128].unflatten(-1, (4, 32)), cache[positions].unsqueeze(1).chunk(2, -1)
        a, b = heads[..., :16].chunk(2, -1) if rotary_mode == "half" else (heads[..., :16:2], heads[..., 1:16:2])
        turned = (a * cos - b * sin, b * cos + a * sin)
        turned = torch.cat(turned, -1) if rotary_mode == "half" else torch.stack(turned, -1).flatten(-2)
        return torch.cat((turned, heads[..., 16:]), -1).flatten(-2)
    return run
def rotary_of_rows_directly(rows, cache, positions):
    outs = [torch.zeros(5, width, device="npu") for width in (96, 32)]
    directly("RopeWithSinCosCache", outs[0], positions, rows[:, :96], rows[:, 96:128], cache, None, 32, ctypes.c_bool(True),
             outs[1], place=7)
    return torch.cat(outs, -1)
case("RopeWithSinCosCache", lambda *inputs: rotary_of_rows_directly(*inputs), f(5, 160), f(9, 16),
     torch.tensor([8, 0, 3, 3, 1]), rtol=1e-6, atol=1e-6, reference=rotary_of_rows("half"))
for rotary_mode in ("half", "interleave"):
    case("RopeWithSinCosCacheV2", rotary_of_rows(rotary_mode), f(5, 160), f(9, 16), torch.tensor([8, 0, 3, 3, 1]), rtol=1e-6,
         atol=1e-6)
def geglu(x, form, left):
    a, b = x.chunk(2, -1) if left else reversed(x.chunk(2, -1))
    return torch.nn.functional.gelu(a, approximate=form) * b
for number, form in enumerate(("none", "tanh")):
    for left in (True, False):
        case("GeGluV3 GeGluV3Backward", gradients(lambda x, n=number, l=left: torch_npu.npu_geglu(x, -1, n, l)[0]), w(3, 5, 8),
             rtol=1e-5, atol=1e-6, reference=gradients(lambda x, f=form, l=left: geglu(x, f, l)))
case("Histc", lambda x: torch.histc(x, 4, 0, 3), torch.tensor([0, 3, 3, 1, 2, 3], dtype=torch.int32),
     reference=lambda x: torch.histc(x.float(), 4, 0, 3).int())
ascending = torch.tensor([-1.5, -0.5, 0.0, 0.5, 2.0])
for right in (True, False):
    case("SearchSorted", lambda x, edges, r=right: torch.bucketize(x, edges, out_int32=True, right=r),
         torch.tensor([-2.0, -0.5, 0.0, 0.1, 2.0, 3.0]), ascending)
case("Aminmax SearchSorted", lambda x, edges, order: torch.searchsorted(edges, x, sorter=order), torch.tensor([-2.0, 0.1, 3.0]),
     ascending.flip(0).contiguous(), torch.arange(4, -1, -1))
case("AddRmsNorm", lambda x, y, g: torch_npu.npu_add_rms_norm(x, y, g, 1e-6)[0], f(3, 8), f(3, 8), f(8), rtol=1e-5,
     atol=1e-6, reference=lambda x, y, g: rms_norm(x + y, g))


# --- attention: the reference is libtorch's own, sequence by sequence
HEADS, SHARED, WIDTH, ROWS = 4, 2, 8, 6
SHAPES = {"BNSD": lambda n: (2, n, ROWS, WIDTH), "BSND": lambda n: (2, ROWS, n, WIDTH),
          "BSH": lambda n: (2, ROWS, n * WIDTH), "SBH": lambda n: (ROWS, 2, n * WIDTH)}
TO_BNSD = {"BNSD": lambda x: x, "BSND": lambda x: x.transpose(1, 2),
           "BSH": lambda x: x.unflatten(2, (-1, WIDTH)).transpose(1, 2),
           "SBH": lambda x: x.unflatten(2, (-1, WIDTH)).permute(1, 2, 0, 3)}
FROM_BNSD = {"BNSD": lambda x: x, "BSND": lambda x: x.transpose(1, 2), "BSH": lambda x: x.transpose(1, 2).flatten(2),
             "SBH": lambda x: x.permute(2, 0, 1, 3).flatten(2)}
TRIANGLE = torch.ones(2048, 2048, dtype=torch.bool).triu(1)


def reference_attention(q, k, v, causal, mask=None):
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal, enable_gqa=True)


def attention_with_sinks(q, k, v, sinks, causal=True):
    """[B, N, S, D]: one more key per head, with the score |sinks| and value 0, in libtorch's operators."""
    k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (k, v))
    scores = q @ k.transpose(-1, -2) * WIDTH**-0.5
    if causal:
        scores = scores.masked_fill(torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1), -math.inf)
    column = sinks.view(1, -1, 1, 1).expand(*scores.shape[:-1], 1)
    return torch.softmax(torch.cat((scores, column), -1), -1)[..., :-1] @ v


def fused_attention(layout, **options):
    def run(q, k, v, mask=None, sink=None):
        sinks = {} if sink is None else {"sink": sink}
        return torch_npu.npu_fusion_attention(q, k, v, HEADS, layout, atten_mask=mask, scale=WIDTH**-0.5, **sinks,
                                              **options)[0]

    return gradients(run)


def by_layout(layout, causal):
    return gradients(lambda q, k, v, mask=None: FROM_BNSD[layout](reference_attention(
        *(TO_BNSD[layout](x) for x in (q, k, v)), causal)))


# On the Ascend950 one operator takes all layouts.
ATTENTION = {"Ascend910": "FlashAttentionScore FlashAttentionScoreGrad",
             "Ascend950": "FlashAttentionScoreV4 FlashAttentionScoreGradV4"}
PACKED = {"Ascend910": "FlashAttentionVarLenScore FlashAttentionUnpaddingScoreGrad",
          "Ascend950": "FlashAttentionScoreV4 FlashAttentionScoreGradV4"}
for layout, shape in SHAPES.items():
    inputs = (w(*shape(HEADS)), w(*shape(SHARED)), w(*shape(SHARED)))
    case("FlashAttentionScore FlashAttentionScoreGrad", fused_attention(layout), *inputs, rtol=1e-5, atol=1e-5,
         reference=by_layout(layout, False))
    for chip, names in ATTENTION.items():
        case(names, fused_attention(layout, sparse_mode=2), *inputs, TRIANGLE, rtol=1e-5, atol=1e-5,
             reference=by_layout(layout, True), chip=chip)
    case("FlashAttentionScoreV3 FlashAttentionScoreGradV3", fused_attention(layout, sparse_mode=2), *inputs, TRIANGLE,
         w(HEADS), rtol=1e-5, atol=1e-5, reference=gradients(lambda q, k, v, mask, sink, l=layout: FROM_BNSD[l](
             attention_with_sinks(*(TO_BNSD[l](x) for x in (q, k, v)), sink))))

hides = torch.zeros(ROWS, ROWS, dtype=torch.bool).logical_or(bools(ROWS, ROWS)).fill_diagonal_(False)
case("FlashAttentionScore FlashAttentionScoreGrad", fused_attention("BNSD"), w(2, 4, ROWS, WIDTH), w(2, 4, ROWS, WIDTH),
     w(2, 4, ROWS, WIDTH), hides, rtol=1e-5, atol=1e-5,
     reference=gradients(lambda q, k, v, mask: reference_attention(q, k, v, False, ~mask)))

ENDS = [3, 4, 11]


def packed_reference(q, k, v, mask=None, sink=None):
    parts, begin = [], 0
    for end in ENDS:
        heads = [x[begin:end].transpose(0, 1).unsqueeze(0) for x in (q, k, v)]
        part = reference_attention(*heads, causal=True) if sink is None else attention_with_sinks(*heads, sink)
        parts.append(part.squeeze(0).transpose(0, 1))
        begin = end
    return torch.cat(parts)


for chip, names in PACKED.items():
    case(names, fused_attention("TND", sparse_mode=3, actual_seq_qlen=ENDS, actual_seq_kvlen=ENDS),
         w(11, HEADS, WIDTH), w(11, SHARED, WIDTH), w(11, SHARED, WIDTH), TRIANGLE, rtol=1e-5, atol=1e-5,
         reference=gradients(packed_reference), chip=chip)
case("FlashAttentionVarLenScoreV5 FlashAttentionUnpaddingScoreGradV5",
     fused_attention("TND", sparse_mode=3, actual_seq_qlen=ENDS, actual_seq_kvlen=ENDS), w(11, HEADS, WIDTH),
     w(11, SHARED, WIDTH), w(11, SHARED, WIDTH), TRIANGLE, w(HEADS), rtol=1e-5, atol=1e-5,
     reference=gradients(packed_reference))


# Two results of attention over different keys, as one: with their statistics for [B, N, S] rows, 8 times each.
def merged_parts(out, largest, total, more, more_largest, more_total):
    top = torch.maximum(largest, more_largest)
    parts = [s * torch.exp(m - top) for m, s in ((largest, total), (more_largest, more_total))]
    own, other = (part[..., :1] / (parts[0] + parts[1])[..., :1] for part in parts)
    return out * own + more * other, top, parts[0] + parts[1]


def copies(*sizes, make=f):
    return make(*sizes).unsqueeze(-1).expand(*sizes, 8).contiguous()


def ring_update(layout, statistics=""):
    """The inputs are [B, N, S, D] and [B, N, S, 8]."""
    def run(*inputs):
        values, rows = [], []
        for x in inputs:
            (rows if x.shape[-1] == 8 else values).append(x)
        batch, heads, tokens, width = values[0].shape
        if layout == "SBH":
            values = [x.permute(2, 0, 1, 3).flatten(2).contiguous() for x in values]
        else:
            values = [x.transpose(1, 2).flatten(0, 1).contiguous() for x in values]
            laid = (lambda x: x.transpose(1, 2).flatten(0, 1).contiguous()) if statistics == "TND" else (lambda x: x)
            rows = [laid(x).view(-1, heads, 8) for x in rows]
        ends = torch.arange(0, batch * tokens + 1, tokens, device=values[0].device)
        out, top, total = torch_npu.npu_ring_attention_update(
            values[0], rows[0], rows[1], values[1], rows[2], rows[3], input_layout=layout,
            input_softmax_layout=statistics, actual_seq_qlen=None if layout == "SBH" else ends)
        if layout == "SBH":
            return out.view(tokens, batch, heads, width).permute(1, 2, 0, 3), top, total
        if statistics == "TND":
            top, total = (x.view(batch, tokens, heads, 8).transpose(1, 2) for x in (top, total))
        return (out.view(batch, tokens, heads, width).transpose(1, 2),
                *(x.reshape(batch, heads, tokens, 8) for x in (top, total)))
    return run


for layout, statistics in (("SBH", ""), ("TND", ""), ("TND", "TND")):
    case("RingAttentionUpdateV2", ring_update(layout, statistics), f(2, 3, 5, 64), copies(2, 3, 5),
         copies(2, 3, 5, make=positive), f(2, 3, 5, 64), copies(2, 3, 5), copies(2, 3, 5, make=positive), rtol=1e-6,
         atol=1e-6, reference=merged_parts)


# --- operators that torch_npu 2.13 calls in other versions or on other devices only: called by their C functions
direct = Direct()


def directly(operator, out, *arguments, place=None):
    """Calls |operator| with |out| among the arguments, by default at the end, and returns it."""
    arguments = list(arguments)
    arguments.insert(len(arguments) if place is None else place, out)
    code = direct.call(operator, *arguments)
    assert code == 0, f"{operator} returned {code}"
    return out


case("Cast", lambda x: directly("Cast", torch.zeros(4, dtype=torch.bfloat16, device="npu"), x, ctypes.c_int(27)),
            f(4), reference=lambda x: x.bfloat16())
case("Ger", lambda x, y: directly("Ger", torch.zeros(3, 4, device="npu"), x, y), f(3), f(4), reference=torch.outer)
case("InplaceNeg", lambda x: directly("InplaceNeg", x), f(4), reference=torch.neg)
case("InplaceOne", lambda x: directly("InplaceOne", x), f(4), reference=torch.ones_like)
case("Norm", lambda x: directly("Norm", torch.zeros(3, device="npu"), x, 2.0, [1], ctypes.c_bool(False)), f(3, 4),
            reference=lambda x: torch.linalg.vector_norm(x, 2, 1))
case("SplitWithSize", lambda x: directly(
    "SplitWithSize", [torch.zeros(2, 1, device="npu"), torch.zeros(2, 3, device="npu")], x, [1, 3], 1), f(2, 4),
    reference=lambda x: list(torch.split(x, [1, 3], 1)))
case("RotaryPositionEmbedding", lambda x, cos, sin: directly(
    "RotaryPositionEmbedding", torch.zeros_like(x), x, cos, sin, 0), f(2, 6, 3, 8), angles.cos(), angles.sin(),
    reference=rotary, rtol=1e-6, atol=1e-6)
case("Topk", lambda x: (directly("Topk", torch.zeros(3, 2, device="npu"), x, 2, 1, ctypes.c_bool(True),
                                        ctypes.c_bool(True), torch.zeros(3, 2, dtype=torch.int64, device="npu"), place=5)),
            f(3, 7), reference=lambda x: torch.topk(x, 2, 1)[0])
for name in ("addcdiv", "addcmul"):
    case(f"Foreach{name.capitalize()}ScalarList", lambda x, y, z, n=name: directly(
        f"Foreach{n.capitalize()}ScalarList", [torch.zeros_like(t) for t in x], x, y, z, [2.0, 3.0]), a, b, c,
        reference=lambda x, y, z, n=name: getattr(torch, "_foreach_" + n)(x, y, z, [2.0, 3.0]))
case("ForeachAddcdivList", lambda x, y, z, s: directly(
    "ForeachAddcdivList", [torch.zeros_like(t) for t in x], x, y, z, s), a, b, c, torch.tensor([2.0, 3.0]),
    reference=lambda x, y, z, s: torch._foreach_addcdiv(x, y, z, s))


def apply_adamw(weight, *grads):
    m, v = torch.zeros_like(weight), torch.zeros_like(weight)
    number = lambda value: torch.tensor([value], device="npu")
    for step, gradient in enumerate(grads):
        directly("ApplyAdamW", weight, m, v, number(0.9**step), number(0.999**step), number(0.1), number(0.1),
                 number(0.9), number(0.999), number(1e-8), gradient, None, ctypes.c_bool(False), ctypes.c_bool(False),
                 place=0)
    return weight


case("ApplyAdamW", apply_adamw, f(3, 4), f(3, 4), f(3, 4), rtol=1e-4, atol=1e-5,  # the powers come as float32
            reference=lambda x, g, h: adamw_steps(x, g, h, foreach=False))


def check_cases(simulator):
    """Runs every case; returns the operators that were checked and the failures."""
    checked, failures = set(), []
    for operators, function, inputs, rtol, atol, reference in CASES[CHIP]:
        name = " ".join(operators)
        simulator.count()
        try:
            got = function(*to("npu", inputs))
            torch.npu.synchronize()
            called = [operator for operator in operators if simulator.calls(operator) > 0]
            check_equal(name, got, reference(*to("cpu", inputs)), rtol, atol)
            assert called == operators, f"{name}: only {called} were called"
            checked.update(operators)
        except Exception as error:  # one broken operator must not hide the others
            failures.append(f"{name}: {str(error).strip()[:600]}")
    return checked, failures


# --- experts: groups of rows with one matrix each, one group empty; tokens permuted by expert and back
GROUP_ENDS = torch.tensor([2, 2, 7])
ROUTES = torch.tensor([[2, 0], [1, 2], [0, 1], [2, 1]])  # of four tokens


def in_groups(function):
    return [function(slice(begin, end), i) for i, (begin, end) in enumerate(zip([0, 2, 2], [2, 2, 7]))]


def grouped(x, w, ends, group_type):
    return torch_npu.npu_grouped_matmul([x], [w], group_list=ends, split_item=3, group_type=group_type, group_list_type=0)[0]


def plain_gating(x):
    values, experts = torch.softmax(x, -1).topk(3)
    return values, experts.int(), torch.arange(x.shape[0] * 3, dtype=torch.int32).view(3, -1).t()


def plain_permute(x, routes):
    order = routes.flatten().argsort(stable=True)
    return x[order // routes.shape[1]], order.argsort().int()


def plain_unpermute(rows, places, probs):
    return (rows[places.long()].view(*probs.shape, -1) * probs.unsqueeze(-1)).sum(1)


def gradients(function, *leaves):
    leaves = [x.detach().requires_grad_(True) for x in leaves]
    y = function(*leaves)
    return torch.autograd.grad((y * torch.arange(y.numel(), device=y.device).view(y.shape) / 7).sum(), leaves)


case("GroupedMatmulV5", lambda x, w, e: grouped(x, w, e, 0), f(7, 4), f(3, 4, 5), GROUP_ENDS, atol=1e-6,
     reference=lambda x, w, e: torch.cat(in_groups(lambda rows, i: x[rows] @ w[i])))
case("GroupedMatmulV5", lambda x, w, e: grouped(x, w.transpose(1, 2), e, 0), f(7, 4), f(3, 5, 4), GROUP_ENDS, atol=1e-6,
     reference=lambda x, w, e: torch.cat(in_groups(lambda rows, i: x[rows] @ w[i].t())))
case("GroupedMatmulV5", lambda g, x, e: grouped(g.t(), x, e, 2), f(7, 4), f(7, 5), GROUP_ENDS, atol=1e-6,
     reference=lambda g, x, e: torch.stack(in_groups(lambda rows, i: g[rows].t() @ x[rows])))
case("GroupedMatmulAdd", lambda y, g, x, e: torch.ops.npu.npu_grouped_matmul_add_(y, g, x, e), f(12, 5),
     f(7, 4, dtype=torch.bfloat16), f(7, 5, dtype=torch.bfloat16), GROUP_ENDS, atol=1e-6,
     reference=lambda y, g, x, e: y + torch.cat(in_groups(lambda rows, i: g[rows].float().t() @ x[rows].float())))
case("GroupedMatmulAddV2", lambda y, g, x, sizes: directly(  # by sizes of groups
    "GroupedMatmulAddV2", y, g, x, sizes, ctypes.c_bool(True), ctypes.c_bool(False), 2, 1, place=3), f(12, 5),
     f(7, 4, dtype=torch.bfloat16), f(7, 5, dtype=torch.bfloat16), torch.tensor([2, 0, 5]), atol=1e-6,
     reference=lambda y, g, x, sizes: y + torch.cat(in_groups(lambda rows, i: g[rows].float().t() @ x[rows].float())))
case("MoeGatingTopKSoftmax", lambda x: torch_npu.npu_moe_gating_top_k_softmax(x, k=3), f(5, 8), atol=1e-6,
     reference=plain_gating)
case("MoeTokenPermute", torch_npu.npu_moe_token_permute, f(4, 6), ROUTES, reference=plain_permute)
case("MoeTokenPermute MoeTokenPermuteGrad", lambda x, r: gradients(lambda t: torch_npu.npu_moe_token_permute(t, r)[0], x),
     f(4, 6), ROUTES, atol=1e-6, reference=lambda x, r: gradients(lambda t: plain_permute(t, r)[0], x))
case("MoeTokenUnpermute", lambda rows, p, w: torch_npu.npu_moe_token_unpermute(rows, p, w), f(8, 6),
     plain_permute(f(4, 1), ROUTES)[1], f(4, 2), atol=1e-6, reference=plain_unpermute)
case("MoeTokenUnpermute MoeTokenUnpermuteGrad",
     lambda rows, p, w: gradients(lambda t, v: torch_npu.npu_moe_token_unpermute(t, p, v), rows, w), f(8, 6),
     plain_permute(f(4, 1), ROUTES)[1], f(4, 2), atol=1e-5,
     reference=lambda rows, p, w: gradients(lambda t, v: plain_unpermute(t, p, v), rows, w))


# --- random operators have no reference: what is checked is their distribution, and that a seed gives the same again
def check_random(simulator):
    def draw(function):
        torch.npu.manual_seed(3)
        first = function()
        torch.npu.manual_seed(3)
        again = function()
        assert torch.equal(first.cpu(), again.cpu()), "the same seed gave other values"
        assert not torch.equal(first.cpu(), function().cpu()), "the next draw gave the same values"
        return first.cpu().double()

    simulator.count()
    count = 100000
    bound = 5 / count**0.5  # five standard deviations of the mean of a variable with variance 1
    normal = draw(lambda: torch.randn(count, device="npu"))
    assert abs(normal.mean()) < bound and abs(normal.var() - 1) < bound * 2**0.5
    uniform = draw(lambda: torch.rand(count, device="npu"))
    assert uniform.min() >= 0 and uniform.max() < 1 and abs(uniform.mean() - 0.5) < bound * 12**-0.5
    whole = draw(lambda: torch.randint(3, 13, (count,), device="npu"))
    assert whole.min() == 3 and whole.max() == 12
    half = torch.full((count,), 0.25, device="npu")
    assert abs(draw(lambda: torch.bernoulli(half)).mean() - 0.25) < bound
    assert abs(draw(lambda: torch.empty(count, device="npu").bernoulli_(0.25)).mean() - 0.25) < bound
    assert torch.equal(draw(lambda: torch.randperm(1000, device="npu")).sort()[0], torch.arange(1000).double())
    weights = torch.tensor([0.0, 1.0, 3.0], device="npu")
    chosen = draw(lambda: torch.multinomial(weights, count, replacement=True))
    assert chosen.min() == 1 and abs((chosen == 2).double().mean() - 0.75) < bound
    x = torch.ones(count, device="npu", requires_grad=True)
    kept = F.dropout(x, 0.25)
    kept.sum().backward()
    assert set(kept.detach().cpu().unique().tolist()) == {0.0, float(torch.tensor(1) / 0.75)}
    assert abs((kept != 0).double().mean().cpu() - 0.75) < bound and torch.equal(x.grad.cpu(), kept.detach().cpu())
    operators = ["InplaceNormal", "InplaceUniform", "InplaceRandom", "InplaceBernoulli", "InplaceBernoulliTensor",
                 "Randperm", "Multinomial", "DropoutGenMaskV2", "DropoutDoMask"]
    for operator in operators:
        assert simulator.calls(operator) > 0, f"{operator} was not called"
    return set(operators)


def main():
    simulator = Simulator()
    checked, failures = check_cases(simulator)
    for failure in failures:
        print("FAILED", failure)
    unchecked = []
    if CHIP == CHIPS[0]:
        checked |= check_random(simulator)
        elsewhere = {operator for chip in CHIPS[1:] for operators, *_ in CASES[chip] for operator in operators}
        unchecked = sorted(set(simulator.operators()) - checked - elsewhere)
    if unchecked:
        print("FAILED: operators without a case:", " ".join(unchecked))
    print(f"{len(checked)} operators checked in {len(CASES[CHIP])} cases, {len(failures)} failed")
    return 1 if failures or unchecked else 0


if __name__ == "__main__":
    sys.exit(main())
