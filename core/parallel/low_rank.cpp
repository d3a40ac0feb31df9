#include "core/parallel/low_rank.h"

#include <ATen/ops/empty.h>

#include <algorithm>

#include "core/ops/dropout.h"
#include "core/ops/linear.h"
#include "core/parallel/wgrad.h"

namespace concord {
namespace {

using at::Tensor;

Tensor rows(const Tensor& x) { return x.reshape({-1, x.size(-1)}); }

}  // namespace

LowRankProducts::LowRankProducts(const LowRank& pair)
    : sink_(copy_of(pair.sink)), dropout_(pair.dropout), rng_(pair.rng), draws_apart_(pair.draws_apart) {
  int64_t row = 0;
  for (const LowRank::Part& part : pair.parts) {
    parts_.push_back({part.column, part.b.size(0), row, part.b.size(1), part.scale, copy_of(part.sink)});
    row += part.b.size(1);
  }
}

Tensor LowRankProducts::inner(const Tensor& x_si, const Tensor& a_ri) {
  if (dropout_ > 0) {
    const auto scope = rng_->fork(draws_apart_ ? kModelParallelRng : kDefaultRng);
    drawn_ = rng_->current().state();
    return linear(concord::dropout(x_si, dropout_, rng_->current()), a_ri);
  }
  return linear(x_si, a_ri);
}

void LowRankProducts::add_outer(const Tensor& y_so, const Tensor& z_sr, const Tensor* b) const {
  const Tensor y = y_so.view({-1, y_so.size(-1)}), z = z_sr.view({-1, z_sr.size(-1)});
  const bool one_scale =
      std::all_of(parts_.begin(), parts_.end(), [&](const Part& part) { return part.scale == parts_.front().scale; });
  if (one_scale) z.mul_(parts_.front().scale);
  for (size_t i = 0; i < parts_.size(); ++i) {
    const Part& part = parts_[i];
    const Tensor own = z.narrow(1, part.row, part.rank);
    if (!one_scale) own.mul_(part.scale);
    y.narrow(1, part.column, part.columns).addmm_(own, b[i].t());
  }
}

Tensor LowRankProducts::inner_grad(const Tensor& grad_so, const Tensor* b) const {
  int64_t ranks = 0;
  for (const Part& part : parts_) ranks += part.rank;
  auto sizes = grad_so.sizes().vec();
  sizes.back() = ranks;
  const Tensor result = at::empty(sizes, grad_so.options());
  const Tensor grad = rows(grad_so), z = result.view({-1, ranks});
  for (size_t i = 0; i < parts_.size(); ++i) {
    const Part& part = parts_[i];
    z.narrow(1, part.row, part.rank).addmm_(grad.narrow(1, part.column, part.columns), b[i], /*beta=*/0, part.scale);
  }
  return result;
}

Tensor LowRankProducts::outer_weight_grad(size_t index, const Tensor& grad_so, const Tensor& z_sr) const {
  const Part& part = parts_[index];
  return accumulate_wgrad(part.sink, grad_so.narrow(-1, part.column, part.columns),
                          z_sr.narrow(-1, part.row, part.rank));
}

Tensor LowRankProducts::inner_weight_grad(const Tensor& grad_sr, const Tensor& x_si) const {
  return accumulate_wgrad(sink_, grad_sr, dropped(x_si));
}

void LowRankProducts::add_input_grad(const Tensor& grad_si, const Tensor& grad_sr, const Tensor& a_ri) const {
  if (dropout_ > 0) {
    grad_si.add_(dropped(linear_input_grad(grad_sr, a_ri)));
  } else {
    grad_si.view({-1, grad_si.size(-1)}).addmm_(rows(grad_sr), a_ri);
  }
}

// Applies dropout with the numbers of forward, to |x| itself or to its gradient.
Tensor LowRankProducts::dropped(const Tensor& x) const {
  if (dropout_ == 0) return x;
  Generator again(drawn_->key, drawn_->subsequence, drawn_->offset);
  return concord::dropout(x, dropout_, again);
}

}  // namespace concord
