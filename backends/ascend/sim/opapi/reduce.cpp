// Operators that go along a dimension: sums, norms, extremes, orders, softmax; and losses.
#include <ATen/ops/_log_softmax_backward_data.h>
#include <ATen/ops/_softmax_backward_data.h>
#include <ATen/ops/all.h>
#include <ATen/ops/amax.h>
#include <ATen/ops/amin.h>
#include <ATen/ops/any.h>
#include <ATen/ops/argmax.h>
#include <ATen/ops/argmin.h>
#include <ATen/ops/binary_cross_entropy_with_logits.h>
#include <ATen/ops/cumprod.h>
#include <ATen/ops/cumsum.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/histc.h>
#include <ATen/ops/kl_div.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/max.h>
#include <ATen/ops/mean.h>
#include <ATen/ops/min.h>
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/mse_loss_backward.h>
#include <ATen/ops/nll_loss_backward.h>
#include <ATen/ops/nll_loss_forward.h>
#include <ATen/ops/prod.h>
#include <ATen/ops/searchsorted.h>
#include <ATen/ops/smooth_l1_loss.h>
#include <ATen/ops/smooth_l1_loss_backward.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/sort.h>
#include <ATen/ops/std.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/topk.h>
#include <ATen/ops/var.h>

#include "backends/ascend/sim/opapi/operator.h"

namespace concord::ascend::sim {

using at::Scalar;
using at::Tensor;

// An empty list of dimensions means all of them.
static at::OptionalIntArrayRef dims_or_all(const Ints& dims) {
  return dims.empty() ? at::OptionalIntArrayRef() : at::OptionalIntArrayRef(dims);
}

// Formatted by hand: clang-format breaks every operator over several lines.
// clang-format off
OPERATOR(Mean, (Tensor self, Ints dims, bool keep, at::ScalarType type, Out out) {
  out = at::mean(self, dims_or_all(dims), keep, type);
})
OPERATOR(ReduceSum, (Tensor self, Ints dims, bool keep, at::ScalarType type, Out out) {
  out = at::sum(self, dims_or_all(dims), keep, type);
})
OPERATOR(Prod, (Tensor self, at::ScalarType type, Out out) { out = at::prod(self, type); })
OPERATOR(ProdDim, (Tensor self, int64_t dim, bool keep, at::ScalarType type, Out out) {
  out = at::prod(self, dim, keep, type);
})
OPERATOR(Cumsum, (Tensor self, int64_t dim, at::ScalarType type, Out out) { out = at::cumsum(self, dim, type); })
OPERATOR(Histc, (Tensor self, int64_t bins, at::Scalar least, at::Scalar most, Out out) {
  out = at::histc(self.to(at::kFloat), bins, least, most);
})
OPERATOR(SearchSorted, (Tensor ascending, Tensor self, bool int32, bool right, std::optional<Tensor> order, Out out) {
  out = at::searchsorted(ascending, self, int32, right, std::nullopt, order);
})
OPERATOR(LogSumExp, (Tensor self, Ints dims, bool keep, Out out) { out = at::logsumexp(self, dims, keep); })
OPERATOR(Std, (Tensor self, Ints dims, int64_t correction, bool keep, Out out) {
  out = at::std(self, dims_or_all(dims), correction, keep);
})
OPERATOR(VarCorrection, (Tensor self, Ints dims, int64_t correction, bool keep, Out out) {
  out = at::var(self, dims_or_all(dims), correction, keep);
})
OPERATOR(LinalgVectorNorm, (Tensor self, Scalar order, Ints dims, bool keep, at::ScalarType type, Out out) {
  out = at::linalg_vector_norm(self, order, dims_or_all(dims), keep, type);
})
OPERATOR(Norm, (Tensor self, Scalar order, Ints dims, bool keep, Out out) {
  out = at::linalg_vector_norm(self, order, dims_or_all(dims), keep);
})

// ---------------------------------------------------------------------------------------------- extremes and orders

OPERATOR(All, (Tensor self, Ints dims, bool keep, Out out) { out = at::all(self, dims_or_all(dims), keep); })
OPERATOR(Any, (Tensor self, Ints dims, bool keep, Out out) { out = at::any(self, dims_or_all(dims), keep); })
OPERATOR(Equal, (Tensor self, Tensor other, Out out) { out->fill_(at::equal(self, other)); })
OPERATOR(Amax, (Tensor self, Ints dims, bool keep, Out out) { out = at::amax(self, dims, keep); })
OPERATOR(Amin, (Tensor self, Ints dims, bool keep, Out out) { out = at::amin(self, dims, keep); })
OPERATOR(Aminmax, (Tensor self, Ints dims, bool keep, Out least, Out most) {
  least = at::amin(self, dims, keep);
  most = at::amax(self, dims, keep);
})
OPERATOR(ArgMax, (Tensor self, int64_t dim, bool keep, Out out) { out = at::argmax(self, dim, keep); })
OPERATOR(ArgMin, (Tensor self, int64_t dim, bool keep, Out out) { out = at::argmin(self, dim, keep); })
OPERATOR(Max, (Tensor self, Out out) { out = at::max(self); })
OPERATOR(Min, (Tensor self, Out out) { out = at::min(self); })

// The two results of an operator that finds values and where they were.
template <class Pair>
static void write_pair(const Pair& pair, const Out& values, const Out& indices) {
  values = std::get<0>(pair);
  indices = std::get<1>(pair);
}

OPERATOR(MaxDim, (Tensor self, int64_t dim, bool keep, Out values, Out indices) {
  write_pair(at::max(self, dim, keep), values, indices);
})
OPERATOR(MinDim, (Tensor self, int64_t dim, bool keep, Out values, Out indices) {
  write_pair(at::min(self, dim, keep), values, indices);
})
OPERATOR(Sort, (Tensor self, bool stable, int64_t dim, bool descending, Out values, Out indices) {
  write_pair(at::sort(self, stable, dim, descending), values, indices);
})
OPERATOR(Topk, (Tensor self, int64_t k, int64_t dim, bool largest, bool sorted, Out values, Out indices) {
  write_pair(at::topk(self, k, dim, largest, sorted), values, indices);
})
// The type of the indices is given by the output too.
OPERATOR(TopkV2, (Tensor self, int64_t k, int64_t dim, bool largest, bool sorted, int32_t, Out values, Out indices) {
  write_pair(at::topk(self, k, dim, largest, sorted), values, indices);
})

// ---------------------------------------------------------------------------------------------------------- softmax

OPERATOR(Softmax, (Tensor self, int64_t dim, Out out) { out = at::softmax(self, dim, out->scalar_type()); })
OPERATOR(SoftmaxBackward, (Tensor gradient, Tensor result, int64_t dim, Out out) {
  out = at::_softmax_backward_data(gradient, result, dim, result.scalar_type());
})
OPERATOR(LogSoftmax, (Tensor self, int64_t dim, Out out) { out = at::log_softmax(self, dim, out->scalar_type()); })
OPERATOR(LogSoftmaxBackward, (Tensor gradient, Tensor result, int64_t dim, Out out) {
  out = at::_log_softmax_backward_data(gradient, result, dim, result.scalar_type());
})

// ----------------------------------------------------------------------------------------------------------- losses

// |weight_sum| is [1] on this device, and a scalar in ATen.
OPERATOR(NLLLoss, (Tensor self, Tensor target, std::optional<Tensor> weight, int64_t reduction, int64_t ignore_index,
                   Out out, Out weight_sum) {
  const auto [loss, sum] = at::nll_loss_forward(self, target.to(at::kLong), weight, reduction, ignore_index);
  out.reshaped(loss);
  weight_sum.reshaped(sum);
})
OPERATOR(NLLLossBackward, (Tensor gradient, Tensor self, Tensor target, std::optional<Tensor> weight, int64_t reduction,
                           int64_t ignore_index, Tensor weight_sum, Out out) {
  out = at::nll_loss_backward(gradient, self, target.to(at::kLong), weight, reduction, ignore_index,
                              weight_sum.reshape({}));
})
OPERATOR(MseLoss, (Tensor self, Tensor target, int64_t reduction, Out out) {
  out = at::mse_loss(self, target, reduction);
})
OPERATOR(MseLossBackward, (Tensor gradient, Tensor self, Tensor target, int64_t reduction, Out out) {
  out = at::mse_loss_backward(gradient, self, target, reduction);
})
OPERATOR(SmoothL1Loss, (Tensor self, Tensor target, int64_t reduction, float beta, Out out) {
  out = at::smooth_l1_loss(self, target, reduction, beta);
})
OPERATOR(SmoothL1LossBackward, (Tensor gradient, Tensor self, Tensor target, int64_t reduction, float beta, Out out) {
  out = at::smooth_l1_loss_backward(gradient, self, target, reduction, beta);
})
OPERATOR(KlDiv, (Tensor self, Tensor target, int64_t reduction, bool log_target, Out out) {
  out = at::kl_div(self, target, reduction, log_target);
})
OPERATOR(BinaryCrossEntropyWithLogits, (Tensor self, Tensor target, std::optional<Tensor> weight,
                                        std::optional<Tensor> positive_weight, int64_t reduction, Out out) {
  out = at::binary_cross_entropy_with_logits(self, target, weight, positive_weight, reduction);
})

// clang-format on
}  // namespace concord::ascend::sim
