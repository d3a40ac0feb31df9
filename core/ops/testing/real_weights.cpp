// Samples at real sizes (samples.h) of the operators that work on weights: embedding, the weight gradient of linear,
// adamw_ and adamw_narrow_; and of dropout. Larger than one block or one launch of a kernel handles.
#include <ATen/TensorOperators.h>
#include <ATen/ops/full.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/where.h>

#include <cmath>

#include "core/ops/optimizer/block_codes.h"
#include "core/ops/testing/samples.h"

namespace concord::ops::testing {
namespace {

using WeightArguments = std::vector<c10::IValue>;
using WeightOutputs = std::vector<at::Tensor>;

// ---------------------------------------------------------------------------------------------------------- embedding

struct TableSize {
  int64_t rows, width, tokens, first;
  bool odd_place = false;
  int64_t more = 5;  // rows of the vocabulary after the table's

  int64_t vocabulary() const { return first + rows + more; }
};

// One id in four is the same, like padding in a batch; others are outside the table on both sides.
at::Tensor draw_ids(const TableSize& size, Draw& draw) {
  const at::Tensor ids = draw.integers({size.tokens}, std::max<int64_t>(0, size.first - 5), size.vocabulary() - 1);
  return at::where(draw.integers({size.tokens}, 0, 3) == 0, ids.new_full({}, size.first + size.rows - 1), ids);
}

SampleMaker real_lookup(const TableSize& size) {
  return [size](Draw& draw, c10::ScalarType type) {
    const at::Tensor table = draw.normal({size.rows, size.width}, type);
    return Sample{{size.odd_place ? misaligned(table) : table, draw_ids(size, draw), size.first, size.vocabulary()}, 0};
  };
}

// A row of the table is a sum of the gradients of all tokens with its id, at most all of them.
SampleMaker real_lookup_backward(const TableSize& size) {
  return [size](Draw& draw, c10::ScalarType type) {
    const at::Tensor main = draw.normal({size.rows, size.width}, type == at::kDouble ? type : at::kFloat);
    const at::Tensor grad = draw.normal({size.tokens, size.width}, type);
    const auto slack = [size, type](const WeightArguments& a, const WeightOutputs&) {
      const at::Tensor row = a[2].toTensor() - size.first;
      const at::Tensor here = (row >= 0).logical_and(row < size.rows).unsqueeze(-1);
      const at::Tensor terms = a[0].toTensor().abs();
      terms.index_add_(0, row.clamp(0, size.rows - 1), a[1].toTensor().abs() * here);
      return WeightOutputs{(roundings_of_sum(size.tokens) + 1) * sum_unit(type) * terms};
    };
    return Sample{{main, size.odd_place ? misaligned(grad) : grad, draw_ids(size, draw), size.first, size.vocabulary()},
                  0,
                  {},
                  slack};
  };
}

std::vector<SampleMaker> for_tables(SampleMaker (*maker)(const TableSize&)) {
  const std::vector<TableSize> sizes = {
      {40, 1032, 30, 0},    {151936, 40, 4096, 0}, {75968, 33, 4099, 75968},  {1000, 896, 2049, 0},
      {700, 4096, 1025, 0}, {700, 1025, 515, 3},   {300, 2048, 259, 0, true}, {1000, 896, 2049, 0, false, 0}};
  std::vector<SampleMaker> made;
  for (const TableSize& size : sizes) made.push_back(maker(size));
  return made;
}

const RegisterRealSizes kRealLookup("concord::embedding", for_tables(real_lookup));
const RegisterRealSizes kRealLookupBackward("concord::embedding_backward_", for_tables(real_lookup_backward));

// -------------------------------------------------------------------------------------------------------------- linear

struct LinearSize {
  int64_t tokens, in, out;
};

// main + grad^T x, sums over all tokens. Tensor cores truncate instead of rounding: up to a whole unit, two roundings.
SampleMaker real_weight_grad(const LinearSize& size) {
  return [size](Draw& draw, c10::ScalarType type) {
    const at::Tensor main = draw.normal({size.out, size.in}, type == at::kDouble ? type : at::kFloat);
    const auto slack = [size, type](const WeightArguments& a, const WeightOutputs&) {
      const auto rows = [&](size_t i) { return a[i].toTensor().abs().flatten(0, 1); };
      const at::Tensor terms = a[0].toTensor().abs() + at::matmul(rows(1).t(), rows(2));
      return WeightOutputs{2 * (roundings_of_sum(size.tokens) + 2) * sum_unit(type) * terms};
    };
    const at::Tensor grad = draw.normal({1, size.tokens, size.out}, type);
    return Sample{{main, grad, draw.normal({1, size.tokens, size.in}, type)}, 0, {}, slack};
  };
}

// Sums over |depth| of products of two rows (or a row and a column), as large as |terms|.
Sample::Slack product_slack(int64_t depth, c10::ScalarType type, bool transposed) {
  return [=](const WeightArguments& a, const WeightOutputs&) {
    const at::Tensor x = a[0].toTensor().abs(), weight = a[1].toTensor().abs();
    at::Tensor terms = at::matmul(x, transposed ? weight.t() : weight);
    if (a.size() > 2 && a[2].isTensor()) terms = terms + a[2].toTensor().abs();
    return WeightOutputs{2 * (roundings_of_sum(depth) + 2) * sum_unit(type) * terms};
  };
}

SampleMaker real_linear(const LinearSize& size, bool with_bias) {
  return [=](Draw& draw, c10::ScalarType type) {
    const at::Tensor x = draw.normal({2, size.tokens / 2, size.in}, type),
                     weight = draw.normal({size.out, size.in}, type);
    const c10::IValue bias = with_bias ? c10::IValue(draw.normal({size.out}, type)) : c10::IValue();
    return Sample{{x, weight, bias}, 0, {}, product_slack(size.in, type, true)};
  };
}

SampleMaker real_input_grad(const LinearSize& size) {
  return [=](Draw& draw, c10::ScalarType type) {
    const at::Tensor grad = draw.normal({2, size.tokens / 2, size.out}, type),
                     weight = draw.normal({size.out, size.in}, type);
    return Sample{{grad, weight}, 0, {}, product_slack(size.out, type, false)};
  };
}

// Sums over all tokens.
SampleMaker real_bias_grad(int64_t tokens, int64_t out) {
  return [=](Draw& draw, c10::ScalarType type) {
    const auto slack = [=](const WeightArguments& a, const WeightOutputs&) {
      return WeightOutputs{roundings_of_sum(tokens) * sum_unit(type) * a[0].toTensor().abs().flatten(0, -2).sum(0)};
    };
    return Sample{{draw.normal({1, tokens, out}, type)}, 0, {}, slack};
  };
}
const RegisterRealSizes kRealBiasGrad("concord::linear_bias_grad",
                                      {real_bias_grad(1, 40), real_bias_grad(4099, 1152), real_bias_grad(1025, 897)});

// Without a main gradient, in the type of the operands.
SampleMaker real_weight_product(const LinearSize& size) {
  return [size](Draw& draw, c10::ScalarType type) {
    const auto slack = [size, type](const WeightArguments& a, const WeightOutputs&) {
      const auto rows = [&](size_t i) { return a[i].toTensor().abs().flatten(0, -2); };
      return WeightOutputs{2 * (roundings_of_sum(size.tokens) + 2) * sum_unit(type) * at::matmul(rows(0).t(), rows(1))};
    };
    const at::Tensor grad = draw.normal({1, size.tokens, size.out}, type);
    return Sample{{grad, draw.normal({1, size.tokens, size.in}, type)}, 0, {}, slack};
  };
}
const RegisterRealSizes kRealWeightProduct("concord::linear_weight_grad",
                                           {real_weight_product({96, 72, 40}), real_weight_product({1024, 896, 1152}),
                                            real_weight_product({1027, 1001, 897})});

// Above and below the size at which the CUDA kernels start to time cublasLt's algorithms (640), and sizes that they do
// not support.
const RegisterRealSizes kRealLinear("concord::linear",
                                    {real_linear({96, 72, 40}, true), real_linear({1024, 896, 1152}, true),
                                     real_linear({1024, 896, 2432}, false), real_linear({1026, 1001, 897}, false)});
const RegisterRealSizes kRealInputGrad("concord::linear_input_grad",
                                       {real_input_grad({96, 72, 40}), real_input_grad({1024, 896, 1152}),
                                        real_input_grad({1024, 2432, 896}), real_input_grad({1026, 1001, 897})});
const RegisterRealSizes kRealWeightGrad("concord::linear_weight_grad_",
                                        {real_weight_grad({96, 72, 40}), real_weight_grad({4096, 896, 4864}),
                                         real_weight_grad({2048, 4096, 1024}), real_weight_grad({4099, 1001, 897})});
const RegisterRealSizes kRealSetWeightGrad("concord::linear_weight_grad_set_",
                                           {real_weight_grad({96, 72, 40}), real_weight_grad({1024, 896, 1152}),
                                            real_weight_grad({1027, 1001, 897})});

// -------------------------------------------------------------------------------------------------------------- adamw_

struct AdamWSize {
  int64_t tensors;
  int64_t most;  // maximum elements per tensor
};

// More tensors than one launch handles (48), longer than a block handles (4096), some at odd offsets. Gradients are
// fp32, like the main gradients of a 16-bit run, or have the dtype of the values. The error of an element is as in
// adamw_test.cpp: no sums, so it does not grow.
SampleMaker real_adamw(const AdamWSize& size) {
  return [size](Draw& draw, c10::ScalarType type) {
    const auto sums = type == at::kDouble ? type : at::kFloat;
    c10::List<at::Tensor> weights, m, v, values, grads;
    for (int64_t i = 0; i < size.tensors; ++i) {
      const int64_t count = i == 0 ? size.most : draw.between(1, size.most),
                    shift = draw.coin() ? 0 : draw.between(1, 5);
      const auto part = [&](c10::ScalarType of) { return draw.normal({count + shift}, of).narrow(0, shift, count); };
      weights.push_back(part(sums));
      m.push_back(part(sums));
      v.push_back(part(sums).abs_());
      if (is_short(type)) values.push_back(part(type));
      grads.push_back(part(draw.coin() ? sums : type));
    }
    const c10::IValue factor = draw.coin() ? c10::IValue(at::full({1}, 0.125, at::kFloat)) : c10::IValue();
    return Sample{{weights, m, v, values, grads, factor, 0.125, 1 - 1e-3, 0.1, 0.999, 1 - 0.999,
                   1e-2 / (1 - std::pow(0.9, 3)), std::sqrt(1 - std::pow(0.999, 3)), 0.05},
                  64};
  };
}

const RegisterRealSizes kRealAdamW("concord::adamw_",
                                   {real_adamw({3, 5000}), real_adamw({120, 30000}), real_adamw({2, 2000003})});

// ------------------------------------------------------------------------------------------------------- adamw_narrow_

c10::ScalarType narrow_type(Draw& draw, c10::ScalarType wide) {
  constexpr c10::ScalarType kNarrow[] = {at::kBFloat16, at::kByte};
  const int64_t which = draw.between(-1, 1);
  return which < 0 ? wide : kNarrow[which];
}

// Codes of a fraction and their scales; or the values of another type.
struct DrawnMoment {
  at::Tensor values, scales;

  DrawnMoment(Draw& draw, const at::Tensor& wide, c10::ScalarType type, const at::Tensor& table, int64_t shift) {
    values = draw.normal({wide.numel() + shift}, at::kFloat).to(type).narrow(0, shift, wide.numel());
    if (type != at::kByte) {
      values.copy_(wide);
      return;
    }
    scales = draw.normal({wide.numel() / kStateBlock}, at::kFloat);
    encode_blocks(wide.to(at::kFloat), table, values, scales);
  }
};

}  // namespace

// A code is an integer whose neighbours are the next fractions. Remainders may differ in all their bits.
Sample narrow_adamw_sample(Draw& draw, c10::ScalarType type, const NarrowAdamWSize& size) {
  const auto sums = type == at::kDouble ? type : at::kFloat;
  const c10::ScalarType m_type = narrow_type(draw, sums), v_type = narrow_type(draw, sums);
  const bool has_codes = m_type == at::kByte || v_type == at::kByte;
  const at::Tensor m_table = code_table(CodeMap::dynamic_signed, at::kCPU),
                   v_table = code_table(CodeMap::dynamic_unsigned, at::kCPU);
  const bool has_remainder = type == at::kBFloat16 && draw.coin();
  c10::List<at::Tensor> weights, m, v, m_scales, v_scales, values, grads;
  for (int64_t i = 0; i < size.tensors; ++i) {
    int64_t count = i == 0 ? size.most : draw.between(1, size.most);
    if (has_codes) count = (count + kStateBlock - 1) / kStateBlock * kStateBlock;
    const auto part = [&](c10::ScalarType of) {
      const int64_t shift = draw.coin() ? 0 : draw.between(1, 5);
      return draw.normal({count + shift}, of).narrow(0, shift, count);
    };
    const DrawnMoment first(draw, part(sums), m_type, m_table, draw.between(0, 1)),
        second(draw, part(sums).abs(), v_type, v_table, 0);
    weights.push_back(has_remainder ? draw.integers({count}, -(1 << 15), (1 << 15) - 1).to(at::kShort) : part(sums));
    m.push_back(first.values);
    v.push_back(second.values);
    if (first.scales.defined()) m_scales.push_back(first.scales);
    if (second.scales.defined()) v_scales.push_back(second.scales);
    if (is_short(type)) values.push_back(part(type));
    grads.push_back(part(draw.coin() ? sums : type));
  }
  const c10::IValue factor = draw.coin() ? c10::IValue(at::full({1}, 0.125, at::kFloat)) : c10::IValue();
  const std::vector<double> numbers = {
      0.125, 1 - 1e-3, 0.1, 0.999, 1 - 0.999, 1e-2 / (1 - std::pow(0.9, 3)), std::sqrt(1 - std::pow(0.999, 3)), 0.05};
  const auto slack = [type](const WeightArguments&, const WeightOutputs& exact) {
    WeightOutputs all;
    for (const at::Tensor& each : exact) {
      const double rounding = 64 * sum_unit(type) * largest(each);
      const bool is_code = each.scalar_type() == at::kByte, is_remainder = each.scalar_type() == at::kShort;
      all.push_back(at::full({}, is_code ? 1 : is_remainder ? 1 << 16 : rounding, at::kDouble));
    }
    return all;
  };
  return {{weights, m, v, m_scales, v_scales, values, grads, m_table, v_table, factor, numbers}, 0, {}, slack};
}

namespace {

const SampleMaker real_narrow_adamw(const NarrowAdamWSize& size) {
  return [size](Draw& draw, c10::ScalarType type) { return narrow_adamw_sample(draw, type, size); };
}

// More tensors than one launch handles (40), and more elements than all blocks of an H200 update at a time (1,081,344).
const RegisterRealSizes kRealNarrowAdamW("concord::adamw_narrow_",
                                         {real_narrow_adamw({3, 5000}), real_narrow_adamw({90, 30000}),
                                          real_narrow_adamw({2, 3000003}), real_narrow_adamw({2, 2500000})});

// ------------------------------------------------------------------------------------------------------------- dropout

// More elements than the platform's generator has threads for (4 times 540,672), from a position that is not
// a multiple of four.
const RegisterRealSizes kRealDropout(
    "concord::dropout",
    {[](Draw& draw, c10::ScalarType type) { return Sample{{draw.normal({3, 5000}, type), 0.1, 77, 3, 10001}}; },
     [](Draw& draw, c10::ScalarType type) { return Sample{{draw.normal({1031, 4099}, type), 0.1, 77, 3, 10001}}; }});

// ------------------------------------------------------------------------------------------- groups and main gradients

// Three groups of tensors, the second without 16-bit values, which follow one another in flat buffers or not.
Sample draw_groups(Draw& draw, c10::ScalarType type, int64_t longest) {
  const auto sums = type == at::kDouble ? type : at::kFloat;
  const bool narrow = type == at::kBFloat16 || type == at::kHalf;
  c10::List<at::Tensor> weights, m, v, values, grads;
  std::vector<int64_t> counts, value_counts;
  std::vector<double> numbers;
  const int64_t flat_size = 9 * (longest + 3);
  const at::Tensor flat_weights = draw.normal({flat_size}, sums), flat_m = draw.normal({flat_size}, sums);
  const at::Tensor flat_v = draw.normal({flat_size}, sums).abs(), flat_values = draw.normal({flat_size}, type);
  const at::Tensor flat_grads = draw.normal({flat_size}, type);
  int64_t begin = 0;
  for (int64_t group = 0; group < 3; ++group) {
    counts.push_back(draw.between(0, 3));
    value_counts.push_back(narrow && group != 1 ? counts.back() : 0);
    for (int64_t i = 0; i < counts.back(); ++i) {
      const int64_t count = draw.between(1, longest);
      const auto part = [&](const at::Tensor& flat) { return flat.narrow(0, begin, count); };
      weights.push_back(part(flat_weights));
      m.push_back(part(flat_m));
      v.push_back(part(flat_v));
      if (value_counts.back() > 0) values.push_back(part(flat_values));
      grads.push_back(part(flat_grads));
      begin += count + (draw.coin() ? 0 : 3);
    }
    const double t = static_cast<double>(draw.between(1, 9)), decay = draw.coin() ? 1 : 1 - 1e-3;
    numbers.insert(numbers.end(), {0.125, decay, 0.1, 0.999, 1 - 0.999, 1e-2 / (1 - std::pow(0.9, t)),
                                   std::sqrt(1 - std::pow(0.999, t)), 0.05});
  }
  return {{weights, m, v, values, grads, counts, value_counts,
           draw.coin() ? c10::IValue(at::full({1}, 0.25, at::kFloat)) : c10::IValue(), numbers},
          64,
          {}};
}

const RegisterSamples kGroups("concord::adamw_groups_",
                              [](Draw& draw, c10::ScalarType type) { return draw_groups(draw, type, 320); });
const RegisterRealSizes kRealGroups("concord::adamw_groups_",
                                    {[](Draw& draw, c10::ScalarType type) { return draw_groups(draw, type, 5000); },
                                     [](Draw& draw, c10::ScalarType type) { return draw_groups(draw, type, 500000); }});

const RegisterRealSizes kRealFactor("concord::update_factor", {[](Draw& draw, c10::ScalarType type) {
                                      const auto sums = type == at::kDouble ? type : at::kFloat;
                                      return Sample{{draw.normal({1}, sums, 30).square(), c10::IValue(), 1.0, 3.0}, 16};
                                    }});

// Parts of one buffer and gradients of the type or of the buffer's: neighbours, or with gaps in between, in order or
// not.
Sample draw_copy(Draw& draw, c10::ScalarType type) {
  const auto wide = type == at::kDouble ? type : at::kFloat;
  const int64_t count = draw.between(0, 5);
  const at::Tensor buffer = draw.normal({512}, wide);
  std::vector<at::Tensor> main, grads;
  int64_t begin = 0;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t size = draw.size();
    main.push_back(buffer.narrow(0, begin, size));
    grads.push_back(draw.normal({size}, draw.coin() ? type : wide));
    begin += size + (draw.coin() ? 0 : draw.between(1, 9));
  }
  if (count > 1 && draw.coin()) {
    std::swap(main.front(), main.back());
    std::swap(grads.front(), grads.back());
  }
  return {{c10::List<at::Tensor>(main), c10::List<at::Tensor>(grads)}, 0};
}

const RegisterSamples kCopy("concord::copy_grads_", draw_copy);
const RegisterRealSizes kRealCopy("concord::copy_grads_", {draw_copy});

Sample draw_preference(Draw& draw, c10::ScalarType type) { return {{draw.normal({draw.size()}, type)}}; }
const RegisterSamples kPreference("concord::prefers_cleared_grads", draw_preference);
const RegisterRealSizes kRealPreference("concord::prefers_cleared_grads", {draw_preference});

}  // namespace
}  // namespace concord::ops::testing
