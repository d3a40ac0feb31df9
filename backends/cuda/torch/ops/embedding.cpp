// concord::embedding and its derivative on CUDA.
#include <ATen/ops/empty.h>
#include <ATen/ops/sort.h>

#include "backends/cuda/torch/ops/tensors.h"

namespace concord::cuda::torch_side {
namespace {

using at::Tensor;

Tensor forward(const Tensor& weight, const Tensor& ids, int64_t first, int64_t /*vocabulary*/) {
  const OnDevice device(weight.device());
  const Tensor table = weight.contiguous(), dense = ids.contiguous();
  auto sizes = ids.sizes().vec();
  sizes.push_back(weight.size(1));
  const Tensor y = at::empty(sizes, weight.options());
  embedding(where(weight), {ids.numel(), weight.size(1), first, weight.size(0)}, table.const_data_ptr(),
            dense.const_data_ptr<int64_t>(), y.mutable_data_ptr());
  return y;
}

void backward(Tensor& dweight, const Tensor& grad, const Tensor& ids, int64_t first, int64_t vocabulary) {
  if (dweight.scalar_type() != c10::typeMetaToScalarType(sums_of(grad).dtype()) || !dweight.is_contiguous()) {
    reference("concord::embedding_backward_", {dweight, grad, ids, first, vocabulary});
    return;
  }
  const OnDevice device(grad.device());
  const Tensor dense = grad.contiguous();
  const auto [sorted, token] = at::sort(ids.reshape({-1}), /*stable=*/true, /*dim=*/0, /*descending=*/false);
  embedding_backward(where(grad), {ids.numel(), dweight.size(1), first, dweight.size(0)}, dense.const_data_ptr(),
                     sorted.const_data_ptr<int64_t>(), token.const_data_ptr<int64_t>(), dweight.mutable_data_ptr());
}

TORCH_LIBRARY_IMPL(concord, CUDA, m) {
  m.impl("embedding", forward);
  m.impl("embedding_backward_", backward);
}

}  // namespace
}  // namespace concord::cuda::torch_side
