// Operators that move elements: joining, repeating, indexing, scattering; and those that create tensors.
#include <ATen/TensorOperators.h>
#include <ATen/ops/_unique2.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/bincount.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/embedding_dense_backward.h>
#include <ATen/ops/eye.h>
#include <ATen/ops/flip.h>
#include <ATen/ops/gather.h>
#include <ATen/ops/index.h>
#include <ATen/ops/index_add.h>
#include <ATen/ops/index_copy.h>
#include <ATen/ops/index_put.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/linspace.h>
#include <ATen/ops/masked_select.h>
#include <ATen/ops/nonzero.h>
#include <ATen/ops/repeat_interleave.h>
#include <ATen/ops/roll.h>
#include <ATen/ops/scatter.h>
#include <ATen/ops/scatter_add.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tril.h>
#include <ATen/ops/triu.h>
#include <ATen/ops/where.h>

#include "backends/ascend/sim/opapi/operator.h"

namespace concord::ascend::sim {

using at::Scalar;
using at::Tensor;

// Formatted by hand: clang-format breaks every operator over several lines.
// clang-format off
OPERATOR(Arange, (Scalar begin, Scalar end, Scalar step, Out out) {
  out = at::arange(begin, end, step, out->options());
})
OPERATOR(Eye, (int64_t rows, int64_t columns, Out out) { out = at::eye(rows, columns, out->options()); })
OPERATOR(Linspace, (Scalar begin, Scalar end, int64_t steps, Out out) {
  out = at::linspace(begin, end, steps, out->options());
})

// ------------------------------------------------------------------------------------------------- join and repeat

OPERATOR(Cat, (Tensors tensors, int64_t dim, Out out) { out = at::cat(tensors, dim); })
OPERATOR(Stack, (Tensors tensors, int64_t dim, Out out) { out = at::stack(tensors, dim); })
OPERATOR(SplitWithSize, (Tensor self, Ints sizes, int64_t dim, Outs outs) {
  const Tensors parts = self.split_with_sizes(sizes, dim);
  for (size_t i = 0; i < parts.size(); ++i) outs.at(i) = parts[i];
})
OPERATOR(ConstantPadNd, (Tensor self, Ints pads, Scalar value, Out out) {
  out = at::constant_pad_nd(self, pads, value);
})
OPERATOR(Flip, (Tensor self, Ints dims, Out out) { out = at::flip(self, dims); })
OPERATOR(Roll, (Tensor self, Ints shifts, Ints dims, Out out) { out = at::roll(self, shifts, dims); })
OPERATOR(Repeat, (Tensor self, Ints repeats, Out out) { out = self.repeat(repeats); })
OPERATOR(RepeatInterleaveInt, (Tensor self, int64_t repeats, int64_t, Out out) {
  out = at::repeat_interleave(self, repeats);
})
OPERATOR(RepeatInterleaveIntWithDim, (Tensor self, int64_t repeats, int64_t dim, int64_t, Out out) {
  out = at::repeat_interleave(self, repeats, dim);
})
OPERATOR(RepeatInterleave, (Tensor self, Tensor repeats, int64_t, Out out) {
  out = at::repeat_interleave(self, repeats);
})
OPERATOR(RepeatInterleaveWithDim, (Tensor self, Tensor repeats, int64_t dim, int64_t, Out out) {
  out = at::repeat_interleave(self, repeats, dim);
})
OPERATOR(Tril, (Tensor self, int64_t diagonal, Out out) { out = at::tril(self, diagonal); })
OPERATOR(Triu, (Tensor self, int64_t diagonal, Out out) { out = at::triu(self, diagonal); })
OPERATOR(InplaceTril, (InOut self, int64_t diagonal) { self = at::tril(*self, diagonal); })
OPERATOR(InplaceTriu, (InOut self, int64_t diagonal) { self = at::triu(*self, diagonal); })

// -------------------------------------------------------------------------------------------------------- by index

OPERATOR(Embedding, (Tensor weight, Tensor indices, Out out) { out = at::embedding(weight, indices.to(at::kLong)); })
OPERATOR(EmbeddingDenseBackward, (Tensor gradient, Tensor indices, uint64_t rows, uint64_t padding_index,
                                  bool scale_by_frequency, Out out) {
  out = at::embedding_dense_backward(gradient, indices.to(at::kLong), static_cast<int64_t>(rows),
                                     static_cast<int64_t>(padding_index), scale_by_frequency);
})
OPERATOR(Gather, (Tensor self, int64_t dim, Tensor index, Out out) {
  out = at::gather(self, dim, index.to(at::kLong));
})
OPERATOR(IndexSelect, (Tensor self, int64_t dim, Tensor index, Out out) { out = at::index_select(self, dim, index); })
OPERATOR(IndexAdd, (Tensor self, int64_t dim, Tensor index, Tensor source, Scalar alpha, Out out) {
  out = at::index_add(self, dim, index, source, alpha);
})
OPERATOR(InplaceIndexCopy, (Out self, int64_t dim, Tensor index, Tensor source) {
  self = at::index_copy(*self, dim, index, source);
})

// In the list a dimension that is not indexed is a tensor without elements.
static c10::List<std::optional<Tensor>> to_indices(const Tensors& tensors, bool empty_result) {
  c10::List<std::optional<Tensor>> indices;
  for (const Tensor& tensor : tensors) {
    const bool skipped = tensor.numel() == 0 && !empty_result;
    indices.push_back(skipped ? std::optional<Tensor>() : std::optional<Tensor>(tensor));
  }
  return indices;
}

OPERATOR(Index, (Tensor self, Tensors indices, Out out) {
  out = at::index(self, to_indices(indices, out->numel() == 0));
})
OPERATOR(IndexPutImpl, (Out self, Tensors indices, Tensor values, bool accumulate, bool) {
  self = at::index_put(*self, to_indices(indices, values.numel() == 0), values, accumulate);
})
OPERATOR(ScatterAdd, (Tensor self, int64_t dim, Tensor index, Tensor source, Out out) {
  out = at::scatter_add(self, dim, index.to(at::kLong), source);
})

// 0 replaces, 1 adds, 2 multiplies.
template <class Source>
static Tensor scattered(const Tensor& self, int64_t dim, const Tensor& index, const Source& source, int64_t reduction) {
  switch (reduction) {
    case 0: return at::scatter(self, dim, index, source);
    case 1: return at::scatter(self, dim, index, source, "add");
    case 2: return at::scatter(self, dim, index, source, "multiply");
    default: throw OperatorError(kAclnnParamInvalid, "reduction " + std::to_string(reduction) + " is not 0, 1 or 2");
  }
}

OPERATOR(Scatter, (Tensor self, int64_t dim, Tensor index, Tensor source, int64_t reduction, Out out) {
  out = scattered(self, dim, index.to(at::kLong), source, reduction);
})
OPERATOR(ScatterValue, (Tensor self, int64_t dim, Tensor index, Scalar value, int64_t reduction, Out out) {
  out = scattered(self, dim, index.to(at::kLong), value, reduction);
})
OPERATOR(InplaceScatter, (Out self, int64_t dim, Tensor index, Tensor source, int64_t reduction) {
  self = scattered(*self, dim, index.to(at::kLong), source, reduction);
})
OPERATOR(InplaceScatterValue, (Out self, int64_t dim, Tensor index, Scalar value, int64_t reduction) {
  self = scattered(*self, dim, index.to(at::kLong), value, reduction);
})
OPERATOR(OneHot, (Tensor self, int64_t classes, Tensor on, Tensor off, int64_t axis, Out out) {
  const Tensor hot = self.unsqueeze(axis) == at::arange(classes, self.options()).view({-1});
  if (axis != -1 && axis != self.dim()) throw OperatorError(kAclnnParamInvalid, "only the last axis is simulated");
  out = at::where(hot, on.reshape({}), off.reshape({}));
})
OPERATOR(Bincount, (Tensor self, std::optional<Tensor> weights, int64_t minimum, Out out) {
  out = at::bincount(self, weights, minimum);
})

// ------------------------------------------------------------------------------ results whose size depends on values

OPERATOR(MaskedSelect, (Tensor self, Tensor mask, Out out) { out.resized(at::masked_select(self, mask)); })
OPERATOR(Nonzero, (Tensor self, Out out) { out.resized(at::nonzero(self)); })
OPERATOR(NonzeroV2, (Tensor self, Out out) { out.resized(at::nonzero(self).t()); })  // one row per dimension
OPERATOR(Unique2, (Tensor self, bool sorted, bool with_inverse, bool with_counts, Out out, Out inverse, Out counts) {
  const auto [values, positions, numbers] = at::_unique2(self, sorted, with_inverse, with_counts);
  out.resized(values);
  if (with_inverse) inverse.reshaped(positions);
  if (with_counts) counts.resized(numbers);
})

// clang-format on
}  // namespace concord::ascend::sim
