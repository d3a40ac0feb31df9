// Samples of row operators at real sizes (samples.h): rms_norm, swiglu, rope, cross entropy. Rows as wide as in real
// models, on both sides of the widths at which a kernel uses more threads per row, falls back, or cannot use vector
// loads (odd widths and offsets).
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <cmath>
#include <utility>

#include "core/ops/testing/samples.h"

namespace concord::ops::testing {
namespace {

using RowArguments = std::vector<c10::IValue>;
using RowOutputs = std::vector<at::Tensor>;

struct RowsSize {
  int64_t rows, width;
  bool odd_place = false;
};

at::Tensor draw_rows(const RowsSize& size, int64_t width, Draw& draw, c10::ScalarType type) {
  const at::Tensor x = draw.normal({size.rows, width}, type);
  return size.odd_place ? misaligned(x) : x;
}

std::vector<SampleMaker> for_rows(const std::vector<RowsSize>& sizes,
                                  Sample (*make)(const RowsSize&, Draw&, c10::ScalarType)) {
  std::vector<SampleMaker> makers;
  for (const RowsSize& size : sizes) {
    makers.push_back([=](Draw& draw, c10::ScalarType type) { return make(size, draw, type); });
  }
  return makers;
}

// ----------------------------------------------------------------------------------------------------------- rms_norm

// y = x r w with r = 1 / sqrt(mean(x^2) + eps): r has half the relative error of the sum of squares; mean, root and
// division add one rounding each, and so do the two products.
Sample real_norm(const RowsSize& size, Draw& draw, c10::ScalarType type) {
  const at::Tensor x = draw_rows(size, size.width, draw, type);
  const double off = (roundings_of_sum(size.width) / 2 + 6) * sum_unit(type);
  const auto slack = [off](const RowArguments&, const RowOutputs& exact) {
    return RowOutputs{off * exact[0].abs(), off * exact[1].abs()};
  };
  return {{x, draw.normal({size.width}, type), 1e-6}, 0, {}, slack};
}

// With h = x r and g = grad w: dx = r (g - h mean(g h)), dweight = sum over rows of grad h. A few roundings of each
// term, and those of the two sums.
RowOutputs norm_backward_slack(const RowArguments& a, c10::ScalarType type) {
  const at::Tensor grad = a[0].toTensor(), x = a[1].toTensor();
  const at::Tensor r = a[3].toTensor().unsqueeze(-1);
  const at::Tensor h = (x * r).abs(), g = (grad * a[2].toTensor()).abs();
  const double v = sum_unit(type), row = roundings_of_sum(x.size(-1)) + 8, column = roundings_of_sum(x.size(0)) + 4;
  return {v * r * (4 * g + row * h * (g * h).mean(-1, /*keepdim=*/true)), v * column * (grad.abs() * h).sum(0)};
}

Sample real_norm_backward(const RowsSize& size, Draw& draw, c10::ScalarType type) {
  const at::Tensor x = draw_rows(size, size.width, draw, type);
  const at::Tensor wide = x.to(at::kDouble);
  const at::Tensor rstd = ((wide * wide).mean(-1) + 1e-6).rsqrt().to(type == at::kDouble ? type : at::kFloat);
  const auto slack = [type](const RowArguments& a, const RowOutputs&) { return norm_backward_slack(a, type); };
  const at::Tensor grad = draw.normal({size.rows, size.width}, type);
  return {{grad, x, draw.normal({size.width}, type), rstd}, 0, {}, slack};
}

// Like rms_norm, of a sum that is exact in every type.
Sample real_add_norm(const RowsSize& size, Draw& draw, c10::ScalarType type) {
  Sample made = real_norm(size, draw, type);
  const at::Tensor x = draw.eighths({size.rows, size.width}, type),
                   branch = draw.eighths({size.rows, size.width}, type);
  made.arguments = {size.odd_place ? misaligned(x) : x, branch, made.arguments[1], made.arguments[2], 1.0};
  made.slack = [slack = made.slack](const RowArguments& a, const RowOutputs& exact) {
    RowOutputs of_norm = slack(a, {exact[1], exact[2]});
    return RowOutputs{at::zeros_like(exact[0]), of_norm[0], of_norm[1]};
  };
  return made;
}

// An additional term and its addition.
Sample real_add_norm_backward(const RowsSize& size, Draw& draw, c10::ScalarType type) {
  Sample made = real_norm_backward(size, draw, type);
  made.arguments.insert(made.arguments.begin(), draw.normal({size.rows, size.width}, type));
  made.slack = [type](const RowArguments& a, const RowOutputs& exact) {
    RowOutputs of_norm = norm_backward_slack({a.begin() + 1, a.end()}, type);
    of_norm[0] = of_norm[0] + 2 * sum_unit(type) * (exact[0].abs() + a[0].toTensor().abs());
    return of_norm;
  };
  made.ascend_slack = rounded_before_the_sum(type);
  return made;
}

// Every number of threads per row of the derivative, also with more rows than the device processes at a time (an H200:
// 1056 blocks of one row, or of eight), and on both sides of what a thread's registers hold.
const std::vector<RowsSize> kNormSizes = {
    {35, 15},         {35, 32},   {8459, 128}, {2115, 256}, {35, 384},    {1059, 1536}, {65, 512},
    {3, 1032},        {2113, 64}, {9, 768},    {2049, 896}, {2115, 1023}, {2113, 1024}, {265, 1025},
    {529, 1032},      {1, 2048},  {531, 2048}, {531, 4096}, {9, 6144},    {31, 8191},   {263, 8192},
    {267, 8192},      {3, 12280}, {3, 12288},  {33, 12296}, {5, 24576},   {3, 24584},   {33, 512, /*odd_place=*/true},
    {31, 2048, true},
};
const RegisterRealSizes kRealNorm("concord::rms_norm", for_rows(kNormSizes, real_norm));
const RegisterRealSizes kRealNormBackward("concord::rms_norm_backward", for_rows(kNormSizes, real_norm_backward));
// Uses the same kernels.
const std::vector<RowsSize> kAddNormSizes = {{35, 128},    {65, 512},  {2049, 896},
                                             {1059, 1536}, {31, 2048}, {9, 6144},
                                             {267, 8192},  {3, 24584}, {33, 512, /*odd_place=*/true}};
const RegisterRealSizes kRealAddNorm("concord::add_rms_norm", for_rows(kAddNormSizes, real_add_norm));
const RegisterRealSizes kRealAddNormBackward("concord::add_rms_norm_backward",
                                             for_rows(kAddNormSizes, real_add_norm_backward));

// ------------------------------------------------------------------------------------------------------- swiglu, rope
// No sums: the error of an element does not grow with the size.

Sample real_swiglu(const RowsSize& size, Draw& draw, c10::ScalarType type) {
  const double v = sum_unit(type);
  const auto slack = [v](const RowArguments&, const RowOutputs& exact) { return RowOutputs{16 * v * exact[0].abs()}; };
  return {{draw_rows(size, 2 * size.width, draw, type)}, 0, {}, slack};
}

// dgate = grad up (s + gate s (1 - s)) with s = sigmoid(gate), where 1 - s keeps the error of s; dup = grad gate s.
Sample real_swiglu_backward(const RowsSize& size, Draw& draw, c10::ScalarType type) {
  const at::Tensor gate_up = draw_rows(size, 2 * size.width, draw, type);
  const auto slack = [type](const RowArguments& a, const RowOutputs&) {
    const at::Tensor grad = a[0].toTensor().abs(), both = a[1].toTensor();
    const at::Tensor gate = both.narrow(-1, 0, grad.size(-1)), up = both.narrow(-1, grad.size(-1), grad.size(-1)).abs();
    const at::Tensor s = gate.sigmoid();
    return RowOutputs{16 * sum_unit(type) * at::cat({grad * up * s * (1 + gate.abs()), grad * gate.abs() * s}, -1)};
  };
  return {{draw.normal({size.rows, size.width}, type), gate_up}, 0, {}, slack};
}

const std::vector<RowsSize> kSwigluSizes = {{3, 1024},   {515, 4864}, {129, 8960},
                                            {65, 14336}, {515, 1001}, {33, 4864, /*odd_place=*/true}};
const RegisterRealSizes kRealSwiglu("concord::swiglu", for_rows(kSwigluSizes, real_swiglu));
const RegisterRealSizes kRealSwigluBackward("concord::swiglu_backward", for_rows(kSwigluSizes, real_swiglu_backward));

struct RopeSize {
  int64_t batch, tokens, heads, n, half;
  bool back;
};

// A sum of two products. |x| is the query part of the output of a fused projection.
SampleMaker real_rope(const RopeSize& size) {
  return [size](Draw& draw, c10::ScalarType type) {
    const auto angles = type == at::kDouble ? type : at::kFloat;
    const at::Tensor x = draw.normal({size.batch, size.tokens, size.heads + 2, size.n}, type).narrow(2, 0, size.heads);
    const at::Tensor angle = draw.normal({size.tokens, size.half}, at::kDouble, 3);
    Sample made{{x, angle.cos().to(angles), angle.sin().to(angles), size.back}, 4, {2 * largest(x)}};
    made.ascend_slack = rotated_by_cann(type, size.half);
    return made;
  };
}

const RegisterRealSizes kRealRope("concord::rope",
                                  {real_rope({1, 64, 2, 64, 32, false}), real_rope({2, 1024, 14, 64, 32, false}),
                                   real_rope({2, 1024, 14, 64, 32, true}), real_rope({1, 2048, 8, 128, 64, false}),
                                   real_rope({1, 2049, 5, 128, 64, true}), real_rope({1, 1025, 3, 128, 16, false})});

struct PackedSize {
  int64_t tokens, batch, heads, kv_heads, n, half;
};

SampleMaker real_rope_qkv(const PackedSize& size) {
  return [size](Draw& draw, c10::ScalarType type) {
    const auto angles = type == at::kDouble ? type : at::kFloat;
    const int64_t columns = (size.heads + 2 * size.kv_heads) * size.n;
    const at::Tensor qkv = draw.normal({size.tokens, size.batch, columns}, type);
    const at::Tensor angle = draw.normal({size.tokens, 1, size.half}, at::kDouble, 3);
    Sample made{{qkv, angle.cos().to(angles), angle.sin().to(angles), size.heads, size.kv_heads},
                4,
                std::vector<double>(3, 2 * largest(qkv))};
    made.ascend_slack = rotated_by_cann(type, size.half, 2);
    return made;
  };
}

// Gradients in the layout of attention: [batch, tokens, ...], viewed as [tokens, batch, ...].
SampleMaker real_rope_qkv_backward(const PackedSize& size) {
  return [size](Draw& draw, c10::ScalarType type) {
    const auto angles = type == at::kDouble ? type : at::kFloat;
    const auto grad = [&](int64_t heads) {
      return draw.normal({size.batch, size.tokens, heads, size.n}, type).transpose(0, 1);
    };
    const at::Tensor dq = grad(size.heads), dk = grad(size.kv_heads), dv = grad(size.kv_heads);
    const at::Tensor angle = draw.normal({size.tokens, 1, size.half}, at::kDouble, 3);
    Sample made{{dq, dk, dv, angle.cos().to(angles), angle.sin().to(angles)}, 4, {2 * largest(dq) + largest(dk)}};
    made.ascend_slack = packed_rotated_by_cann(type, size.half, size.n, size.heads + size.kv_heads);
    return made;
  };
}

// Heads of Qwen 2.5 (0.5B, 1.5B), of GLM 4 (half of a head is rotated), and one without vector loads.
std::vector<SampleMaker> for_packed(SampleMaker (*maker)(const PackedSize&)) {
  std::vector<SampleMaker> made;
  for (const PackedSize& size : std::vector<PackedSize>{{65, 2, 4, 2, 16, 8},
                                                        {1024, 4, 14, 2, 64, 32},
                                                        {2049, 1, 12, 2, 128, 64},
                                                        {129, 2, 8, 1, 128, 32},
                                                        {77, 3, 3, 1, 10, 5}}) {
    made.push_back(maker(size));
  }
  return made;
}
const RegisterRealSizes kRealRopeQkv("concord::rope_qkv", for_packed(real_rope_qkv));
const RegisterRealSizes kRealRopeQkvBackward("concord::rope_qkv_backward", for_packed(real_rope_qkv_backward));

// ------------------------------------------------------------------------------------------------------- cross entropy

struct VocabSize {
  int64_t rows, width, used, first;
  bool with_sum;
  bool odd_place = false;
};

// Each row has one logit of 12, as large as all others together, at a position where a loop over columns may fail: the
// first and the last valid one, around those that a block reads in one pass, anywhere. Padding columns hold values that
// would show up in the result.
at::Tensor draw_logits(const VocabSize& size, Draw& draw, c10::ScalarType type) {
  const at::Tensor logits = draw.normal({size.rows, size.width}, type);
  logits.narrow(1, size.used, size.width - size.used).fill_(50);
  const std::vector<int64_t> places = {0, size.used - 1, (size.used - 1) / 8 * 8, 511, 512, 2048, 4095, 4096};
  at::Tensor column = draw.integers({size.rows, 1}, 0, size.used - 1);
  for (size_t i = 0; i < places.size() && static_cast<int64_t>(i) < size.rows; ++i) {
    if (places[i] < size.used) column[static_cast<int64_t>(i)].fill_(places[i]);
  }
  logits.scatter_(1, column, 12);
  return size.odd_place ? misaligned(logits) : logits;
}

at::Tensor draw_labels(const VocabSize& size, Draw& draw) {
  return draw.integers({size.rows}, size.first - 1, size.first + size.width);
}

// [rows, 4]: the largest logit and the label's are exact; exp(logit - largest) has an error of as many roundings as its
// argument is large, and the sums add their own.
SampleMaker real_parts(const VocabSize& size) {
  return [size](Draw& draw, c10::ScalarType type) {
    const auto slack = [size, type](const RowArguments& a, const RowOutputs& exact) {
      const at::Tensor counted = a[0].toTensor().narrow(1, 0, size.used);
      const double sums = roundings_of_sum(size.used) * sum_unit(type);
      const double exps = (8 + 4 * largest(counted)) * sum_unit(type);
      const at::Tensor none = at::zeros_like(exact[0].select(1, 0));
      const at::Tensor total = size.with_sum ? sums * counted.abs().sum(1) : none;
      return RowOutputs{at::stack({none, (sums + exps) * exact[0].select(1, 1), none, total}, 1)};
    };
    const at::Tensor logits = draw_logits(size, draw, type);
    return Sample{{logits, draw_labels(size, draw), size.first, size.used, size.with_sum}, 0, {}, slack};
  };
}

// softmax * soft - [label] * hard - level. |level| is the gradient due to smoothing, far below a softmax of 1.
SampleMaker real_grad(const VocabSize& size) {
  return [size](Draw& draw, c10::ScalarType type) {
    const auto sums = type == at::kDouble ? type : at::kFloat;
    const at::Tensor logits = draw_logits(size, draw, type);
    const at::Tensor log_sum = at::logsumexp(logits.narrow(1, 0, size.used).to(at::kDouble), {1}).to(sums);
    const auto numbers = [&](double deviation) { return draw.normal({size.rows}, sums, deviation); };
    const auto slack = [size, type](const RowArguments& a, const RowOutputs&) {
      const auto column = [&](size_t i) { return a[i].toTensor().unsqueeze(-1); };
      const at::Tensor label = column(1) - size.first == at::arange(size.width, a[1].toTensor().options());
      const at::Tensor x = a[0].toTensor() - column(4);
      const at::Tensor soft = x.exp() * column(5).abs() * (8 + 2 * x.abs());
      const at::Tensor rest = 4 * label.to(at::kDouble) * column(6).abs() + 4 * column(7).abs();
      const at::Tensor counts = at::arange(size.width, a[1].toTensor().options()) < size.used;
      return RowOutputs{sum_unit(type) * at::where(counts, soft + rest, at::zeros_like(soft))};
    };
    const double level = 0.1 / static_cast<double>(size.used);
    return Sample{
        {logits, draw_labels(size, draw), size.first, size.used, log_sum, numbers(1), numbers(1), numbers(level)},
        0,
        {},
        slack};
  };
}

// Vocabularies of Llama 2 and Qwen 2.5, whole and sharded; an odd one; and more rows than one launch of the gradient
// handles (65535).
std::vector<SampleMaker> for_vocabularies(SampleMaker (*maker)(const VocabSize&)) {
  const std::vector<VocabSize> sizes = {
      {3, 4120, 4101, 0, true},         {33, 32000, 32000, 0, false},
      {33, 32003, 32000, 0, true},      {37, 151936, 151665, 0, true},
      {35, 75968, 75697, 75968, false}, {65541, 24, 23, 0, true},
      {65541, 25, 25, 7, false},        {9, 32000, 31999, 0, true, /*odd_place=*/true}};
  std::vector<SampleMaker> made;
  for (const VocabSize& size : sizes) made.push_back(maker(size));
  return made;
}

// Loss and gradient in one pass: the errors of the sum, of its logarithm, and of exp. Labels of -1 are ignored.
SampleMaker real_with_grad(const VocabSize& size) {
  return [size](Draw& draw, c10::ScalarType type) {
    constexpr double kGrad = 0.5, kZLoss = 1e-3;
    const double smoothing = size.with_sum ? 0.1 : 0;
    const auto slack = [size, type](const RowArguments& a, const RowOutputs& exact) {
      const at::Tensor logits = a[0].toTensor().narrow(1, 0, size.used), labels = a[2].toTensor().unsqueeze(-1);
      const auto columns = static_cast<double>(size.used);
      const double v = sum_unit(type), sums = roundings_of_sum(size.used) * v;
      const double spread = largest(logits) + std::log(columns);
      const at::Tensor at_label = labels == at::arange(size.width, labels.options());
      const at::Tensor softmax = at::softmax(logits, -1, std::nullopt);
      const at::Tensor padded =
          at::cat({softmax, at::zeros_like(a[0].toTensor().narrow(1, size.used, size.width - size.used))}, 1);
      const at::Tensor terms = kGrad * (1 + 2 * kZLoss * spread) * (padded + at_label.to(at::kDouble) + 0.1 / columns);
      const at::Tensor counts = at::arange(size.width, labels.options()) < size.used;
      const double exps = sums + (32 + 16 * spread) * v;
      return RowOutputs{exps * at::where(counts, terms, at::zeros_like(terms)),
                        4 * v * exact[1].abs() + exps * (1 + 2 * kZLoss * spread) + 4 * v * spread};
    };
    const at::Tensor labels = draw.integers({size.rows}, -1, size.used - 1);
    const at::Tensor loss = at::zeros({size.rows}, type == at::kDouble ? type : at::kFloat);
    return Sample{
        {draw_logits(size, draw, type), loss, labels, size.used, /*ignore_index=*/-1, smoothing, kZLoss, kGrad},
        0,
        {},
        slack};
  };
}

SampleMaker real_rescale(const VocabSize& size) {
  return [size](Draw& draw, c10::ScalarType type) {
    const at::Tensor grad = draw.normal({size.rows}, type == at::kDouble ? type : at::kFloat);
    grad.narrow(0, 0, (size.rows + 1) / 2).fill_(0.5);
    const auto slack = [type](const RowArguments&, const RowOutputs& exact) {
      return RowOutputs{4 * sum_unit(type) * exact[0].abs()};
    };
    return Sample{{draw_logits(size, draw, type), grad, 0.5}, 0, {}, slack};
  };
}

// Rows that fit in a block's memory, and rows that do not.
const RegisterRealSizes kRealWithGrad(
    "concord::cross_entropy_with_grad_",
    {real_with_grad({3, 4120, 4101, 0, true}), real_with_grad({9, 32000, 32000, 0, false}),
     real_with_grad({5, 151936, 151665, 0, true}), real_with_grad({3, 151936, 151936, 0, false}),
     real_with_grad({2051, 25, 23, 0, false}), real_with_grad({5, 32000, 31999, 0, true, /*odd_place=*/true})});
const RegisterRealSizes kRealRescale("concord::cross_entropy_rescale_",
                                     {real_rescale({3, 4120, 4101, 0, true}), real_rescale({9, 32003, 32000, 0, false}),
                                      real_rescale({5, 32000, 31999, 0, true, /*odd_place=*/true})});
const RegisterRealSizes kRealParts("concord::cross_entropy_parts", for_vocabularies(real_parts));
const RegisterRealSizes kRealGrad("concord::cross_entropy_grad_", for_vocabularies(real_grad));

// -------------------------------------------------------------------------------------------------------------- geglu

// torch_npu rounds gelu to the type before its products.
Sample rounded_on_ascend(Sample made, c10::ScalarType type) {
  made.ascend_slack = [type](const std::vector<c10::IValue>&, const std::vector<at::Tensor>& exact) {
    return std::vector{half_unit(type) * exact[0].abs()};
  };
  return made;
}

// For large negative gates 1 + tanh cancels: its rounding errors are those of 1.
Sample draw_geglu_of(std::vector<int64_t> sizes, Draw& draw, c10::ScalarType type) {
  const at::Tensor x = draw.normal(std::move(sizes), type, draw.coin() ? 1 : 3);
  return rounded_on_ascend({{x}, 16, {largest(x) * largest(x)}}, type);
}

// The slope is x (1 - tanh^2) (1 + 3 c x^2) sqrt(2 / pi) / 2 and more, of which 1 - tanh^2 cancels.
Sample draw_geglu_backward_of(std::vector<int64_t> sizes, Draw& draw, c10::ScalarType type) {
  const at::Tensor x = draw.normal(std::move(sizes), type, draw.coin() ? 1 : 3);
  const at::Tensor grad = draw.normal({x.size(0), x.size(1) / 2}, type);
  const double most = largest(x), slope = 1 + most * (1 + 3 * 0.044715 * most * most);
  return rounded_on_ascend({{grad, x}, 16, {largest(grad) * most * slope}}, type);
}

const RegisterSamples kGeglu("concord::geglu", [](Draw& draw, c10::ScalarType type) {
  return draw_geglu_of({draw.size(), draw.between(1, 3), 2 * draw.size()}, draw, type);
});
const RegisterSamples kGegluBackward("concord::geglu_backward", [](Draw& draw, c10::ScalarType type) {
  return draw_geglu_backward_of({draw.size(), 2 * draw.size()}, draw, type);
});
std::vector<SampleMaker> for_gates(Sample (*make)(std::vector<int64_t>, Draw&, c10::ScalarType)) {
  std::vector<SampleMaker> made;
  for (const auto& [rows, width] : {std::pair(9, 72), {1024, 6912}, {515, 2401}}) {
    made.push_back([=](Draw& draw, c10::ScalarType type) { return make({rows, 2 * width}, draw, type); });
  }
  return made;
}
const RegisterRealSizes kRealGeglu("concord::geglu", for_gates(draw_geglu_of));
const RegisterRealSizes kRealGegluBackward("concord::geglu_backward", for_gates(draw_geglu_backward_of));

}  // namespace
}  // namespace concord::ops::testing
