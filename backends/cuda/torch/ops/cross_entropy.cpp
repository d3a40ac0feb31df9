// The two halves of concord's cross entropy on CUDA.
#include <ATen/ops/empty.h>

#include "backends/cuda/torch/ops/tensors.h"

namespace concord::cuda::torch_side {
namespace {

using at::Tensor;

Tensor parts(const Tensor& logits, const Tensor& labels, int64_t first, int64_t used, bool with_sum) {
  const OnDevice device(logits.device());
  const Tensor dense = logits.contiguous(), dense_labels = labels.contiguous();
  const Tensor result = at::empty({logits.size(0), 4}, sums_of(logits));
  cross_entropy_parts(where(dense), {dense.size(0), dense.size(1), used, first}, dense.const_data_ptr(),
                      dense_labels.const_data_ptr<int64_t>(), with_sum, result.mutable_data_ptr());
  return result;
}

void write_grad(Tensor& logits, const Tensor& labels, int64_t first, int64_t used, const Tensor& log_sum,
                const Tensor& soft, const Tensor& hard, const Tensor& level) {
  if (!logits.is_contiguous()) {
    reference("concord::cross_entropy_grad_", {logits, labels, first, used, log_sum, soft, hard, level});
    return;
  }
  const OnDevice device(logits.device());
  const Tensor dense_labels = labels.contiguous(), sum = log_sum.contiguous(), a = soft.contiguous(),
               b = hard.contiguous(), c = level.contiguous();
  cross_entropy_grad(where(logits), {logits.size(0), logits.size(1), used, first}, logits.mutable_data_ptr(),
                     dense_labels.const_data_ptr<int64_t>(), sum.const_data_ptr(), a.const_data_ptr(),
                     b.const_data_ptr(), c.const_data_ptr());
}

void with_grad(Tensor& logits, Tensor& loss, const Tensor& labels, int64_t used, int64_t ignore_index,
               double label_smoothing, double z_loss, double grad) {
  if (!logits.is_contiguous() || !loss.is_contiguous()) {
    reference("concord::cross_entropy_with_grad_",
              {logits, loss, labels, used, ignore_index, label_smoothing, z_loss, grad});
    return;
  }
  const OnDevice device(logits.device());
  const Tensor dense_labels = labels.contiguous();
  cross_entropy_with_grad(where(logits), {logits.size(0), logits.size(1), used, 0}, logits.mutable_data_ptr(),
                          dense_labels.const_data_ptr<int64_t>(), {ignore_index, label_smoothing, z_loss, grad},
                          loss.mutable_data_ptr());
}

void rescale(Tensor& x, const Tensor& grad, double expected) {
  if (!x.is_contiguous() || grad.scalar_type() != sums_of(x).dtype()) {
    reference("concord::cross_entropy_rescale_", {x, grad, expected});
    return;
  }
  const OnDevice device(x.device());
  const Tensor dense = grad.contiguous();
  cross_entropy_rescale(where(x), rows_of(x), x.mutable_data_ptr(), dense.const_data_ptr(), expected);
}

TORCH_LIBRARY_IMPL(concord, CUDA, m) {
  m.impl("cross_entropy_with_grad_", with_grad);
  m.impl("cross_entropy_rescale_", rescale);
  m.impl("cross_entropy_parts", parts);
  m.impl("cross_entropy_grad_", write_grad);
}

}  // namespace
}  // namespace concord::cuda::torch_side
