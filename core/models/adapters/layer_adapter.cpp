#include "core/models/adapters/layer_adapter.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>

#include "core/ops/dropout.h"
#include "core/ops/linear.h"
#include "core/parallel/recompute.h"

namespace concord {
namespace {

using at::Tensor;

constexpr double kTiny = 1e-30;  // lower bound of squares: rows of padding are 0

c10::ScalarType wide_type(const Tensor& x) { return x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat; }

Tensor row_squares(const Tensor& weight) {
  return at::linalg_vector_norm(weight, 2, at::IntArrayRef{1}, /*keepdim=*/false, wide_type(weight)).square();
}

Tensor root_of_sum(const Tensor& squares, ProcessGroup* group) {
  if (group != nullptr && group->size() > 1) group->all_reduce(squares).wait();
  return squares.clamp_min(kTiny).sqrt();
}

// In the type of |x|. Weights of another type are other tensors there, so their gradient does not go to the sink, but
// through autograd.
Tensor linear_of(const Tensor& x, const Parameter& weight, const Parameter* bias = nullptr) {
  const Tensor own_bias = value_of(bias);
  if (x.scalar_type() == weight.value.scalar_type()) {
    return concord::linear(x, weight.used(), own_bias, weight.grad_sink());
  }
  return at::linear(x, weight.used().to(x.scalar_type()), own_bias.defined() ? own_bias.to(x.scalar_type()) : own_bias);
}

}  // namespace

Tensor row_norms(const Tensor& weight, ProcessGroup* group) { return root_of_sum(row_squares(weight), group); }

LayerAdapter::LayerAdapter(const LayerContext& context, const std::string& layer, const std::vector<Module>& modules,
                           bool draws_apart)
    : context_(&context), tp_(context.tp), rng_(context.rng), draws_apart_(draws_apart && context.tp->size() > 1) {
  if (!context.adapter) return;
  const auto find = [&](const std::string& name, const char* side) {
    return context.find(kAdapterPrefix + name + ".lora_" + side);
  };
  a_ = find(layer, "A.weight");
  dropout_ = context.adapter->config().lora_dropout;
  int64_t column = 0;
  for (const Module& module : modules) {
    if (const Parameter* b = find(module.name, "B.weight")) {
      parts_.push_back(
          {b, find(module.name, "magnitude_vector"), column, context.adapter->find(module.name).value().scale});
    }
    column += module.columns;
  }
}

// As peft's, dropout is of training: what is not differentiated computes without it.
bool LayerAdapter::drops() const { return dropout_ > 0 && is_differentiating(); }

Tensor LayerAdapter::dropped(const Tensor& x) const {
  const auto scope = rng_->fork(draws_apart_ ? kModelParallelRng : kDefaultRng);
  return concord::dropout(x, dropout_, rng_->current());
}

LowRank LayerAdapter::pair() const {
  if (is_off()) return {};
  LowRank pair{.a_ri = a_->used(),
               .sink = a_->grad_sink(),
               .dropout = drops() ? dropout_ : 0,
               .rng = rng_,
               .draws_apart = draws_apart_};
  for (const Part& part : parts_) pair.parts.push_back({part.b->used(), part.column, part.scale, part.b->grad_sink()});
  return pair;
}

Tensor LayerAdapter::column(const Tensor& x, const Parameter& weight, const Parameter* bias,
                            const ParallelLinearOptions& given) const {
  ParallelLinearOptions options = given;
  options.nf4 = weight.nf4.get();
  const auto product = [&](const Tensor& input, const LowRank& pair, const Tensor& plain_bias = {}) {
    return column_parallel_linear(input, weight.used(), plain_bias, *tp_, options, weight.grad_sink(), pair);
  };
  if (!scales()) return product(x, pair(), value_of(bias));
  return scaled(x, product, bias, weight.values(), /*cut_by_inputs=*/false);
}

Tensor LayerAdapter::row(const Tensor& x, const Parameter& weight, const Parameter* bias,
                         const ParallelLinearOptions& given) const {
  ParallelLinearOptions options = given;
  options.nf4 = weight.nf4.get();
  const auto product = [&](const Tensor& input, const LowRank& pair, const Tensor& plain_bias = {}) {
    return row_parallel_linear(input, weight.used(), plain_bias, *tp_, options, weight.grad_sink(), pair);
  };
  if (!scales()) return product(x, pair(), value_of(bias));
  return scaled(x, product, bias, weight.values(), /*cut_by_inputs=*/true);
}

Tensor LayerAdapter::whole(const Tensor& x_own, const Parameter& weight, const Parameter* bias,
                           std::optional<c10::ScalarType> type) const {
  const Tensor x = type ? x_own.to(*type) : x_own;
  if (is_off()) return linear_of(x, weight, bias);
  const int64_t columns = weight.value.size(0);
  if (!scales()) return linear_of(x, weight, bias).add(low_rank(drops() ? dropped(x) : x, columns));
  const auto product = [&](const Tensor& input, const LowRank& pair) {
    const Tensor y = linear_of(input, weight);
    return pair.empty() ? y : y.add(low_rank(input, columns));
  };
  return scaled(x, product, bias, weight.used(), /*cut_by_inputs=*/false);
}

template <class Product>
Tensor LayerAdapter::scaled(const Tensor& x, const Product& product, const Parameter* bias, const Tensor& weight,
                            bool cut_by_inputs) const {
  const Tensor input = drops() ? dropped(x) : x;
  LowRank own = pair();
  own.dropout = 0;
  Tensor y = product(input, own).mul(factors(weight, cut_by_inputs));
  if (drops()) y = y.add(product(x.sub(input), LowRank()));
  return bias == nullptr ? y : y.add(bias->used());
}

Tensor LayerAdapter::low_rank(const Tensor& x, int64_t columns) const {
  const Tensor z = linear_of(x, *a_);
  std::vector<Tensor> all;
  int64_t next = 0, row = 0;
  const auto none_until = [&](int64_t column) {
    auto sizes = z.sizes().vec();
    sizes.back() = column - next;
    if (column > next) all.push_back(at::zeros(sizes, z.options().requires_grad(false)));
  };
  for (const Part& part : parts_) {
    none_until(part.column);
    const int64_t rank = part.b->value.size(1);
    all.push_back(linear_of(z.narrow(-1, row, rank).mul(part.scale), *part.b));
    next = part.column + part.b->value.size(0);
    row += rank;
  }
  none_until(columns);
  return all.size() == 1 ? all.front() : at::cat(all, -1);
}

// Returns m / |W'| for all columns; 1 for those without an adapter.
Tensor LayerAdapter::factors(const Tensor& weight, bool cut_by_inputs) const {
  std::vector<Tensor> all;
  int64_t next = 0, row = 0;
  const auto ones_until = [&](int64_t column) {
    if (column > next) all.push_back(at::ones({column - next}, weight.options().requires_grad(false)));
  };
  for (const Part& part : parts_) {
    ones_until(part.column);
    const int64_t rank = part.b->value.size(1);
    const Tensor norms = norms_of(part, a_->used().narrow(0, row, rank), weight, cut_by_inputs);
    all.push_back(part.magnitude->used().div(norms.to(weight.scalar_type())));
    next = part.column + part.b->value.size(0);
    row += rank;
  }
  ones_until(weight.size(0));
  return all.size() == 1 ? all.front() : at::cat(all);
}

// |W + s B A|^2 = |W|^2 + 2 s B . (W A^T) + s^2 B . (B A A^T), row by row, each a sum over the inputs.
Tensor LayerAdapter::norms_of(const Part& part, const Tensor& a_ri, const Tensor& weight, bool cut_by_inputs) const {
  const at::NoGradGuard no_grad;
  const auto wide = wide_type(weight);
  const Tensor b = part.b->used().to(wide), own = weight.narrow(0, part.column, b.size(0));
  const Tensor wa = at::matmul(own, a_ri.t()).to(wide), aa = at::matmul(a_ri.to(wide), a_ri.to(wide).t());
  const Tensor squares = row_squares(own)
                             .add(b.mul(wa).sum(1), 2 * part.scale)
                             .add(b.mul(at::matmul(b, aa)).sum(1), part.scale * part.scale);
  return root_of_sum(squares, cut_by_inputs ? tp_ : nullptr);
}

}  // namespace concord
