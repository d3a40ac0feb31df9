// Cross entropy on Ascend, composed of operators that read the logits few times: an fp32 copy of some rows of them at a
// time becomes their gradient in place. torch_npu's own npu_cross_entropy_loss rounds losses and logarithms of
// probabilities to the logits' type (CANN's page of CrossEntropyLoss: lossOut and logProbOut have the type of the
// input), which for 16 bits is far from the reference.
//
// r rows, c columns.
#include <ATen/TensorOperators.h>
#include <ATen/ops/_log_softmax.h>
#include <ATen/ops/full.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

#include "backends/ascend/torch/ops/dispatcher.h"

namespace concord::ascend::torch_side {
namespace {

using at::Tensor;

bool has_short_way(const Tensor& logits, int64_t used, double label_smoothing, double z_loss) {
  const auto type = logits.scalar_type();
  const bool is_known = type == at::kFloat || type == at::kHalf || type == at::kBFloat16;
  return is_known && logits.size(0) > 0 && used > 0 && label_smoothing == 0 && z_loss == 0;
}

// Rows are taken together up to this many logits, whose fp32 copy takes 128 MiB, and another 128 MiB in CANN's
// LogSoftmax.
constexpr int64_t kMaxLogits = int64_t{1} << 25;

// The loss of a row is -log p[label]; its gradient p - [label], times |grad| unless the label is ignored.
void write_rows(const Tensor& used_rc, const Tensor& loss, const Tensor& labels, int64_t ignore_index, double grad) {
  const Tensor counts = labels != ignore_index;
  const Tensor label_r1 = at::where(counts, labels, at::zeros({}, labels.options())).unsqueeze(-1);
  const Tensor grad_r1 = counts.to(at::kFloat).mul_(grad).unsqueeze(-1);
  const Tensor log_p_rc = at::_log_softmax(used_rc, -1, /*half_to_float=*/used_rc.scalar_type() != at::kFloat);
  const Tensor at_label_r = log_p_rc.gather(-1, label_r1).squeeze(-1);
  loss.copy_(at::where(counts, -at_label_r, at::zeros({}, at_label_r.options())));
  Tensor out = used_rc;
  const Tensor p_rc = log_p_rc.exp_();
  p_rc.scatter_add_(-1, label_r1, at::full({}, -1, p_rc.options()).expand(label_r1.sizes()));
  at::mul_out(out, p_rc, grad_r1);
}

void cross_entropy_with_grad_(Tensor& logits, Tensor& loss, const Tensor& labels, int64_t used, int64_t ignore_index,
                              double label_smoothing, double z_loss, double grad) {
  if (!has_short_way(logits, used, label_smoothing, z_loss)) {
    reference("concord::cross_entropy_with_grad_",
              {logits, loss, labels, used, ignore_index, label_smoothing, z_loss, grad});
    return;
  }
  const int64_t rows = logits.size(0), step = std::max<int64_t>(1, kMaxLogits / used);
  for (int64_t first = 0; first < rows; first += step) {
    const int64_t count = std::min(step, rows - first);
    const auto part = [&](const Tensor& x) { return x.narrow(0, first, count); };
    write_rows(part(logits).narrow(-1, 0, used), part(loss), part(labels), ignore_index, grad);
  }
  if (used < logits.size(-1)) logits.narrow(-1, used, logits.size(-1) - used).zero_();  // padding
}

TORCH_LIBRARY_IMPL(concord, PrivateUse1, m) { m.impl("cross_entropy_with_grad_", cross_entropy_with_grad_); }

}  // namespace
}  // namespace concord::ascend::torch_side
