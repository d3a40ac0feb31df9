#include "trainer/loss_check.h"

#include <fmt/format.h>

#include <cmath>

#include "core/torch/device.h"
#include "platform/loader/error.h"

namespace concord {
namespace {

void require_finite(double loss, int64_t step, int64_t rank, size_t micro_batch) {
  if (std::isfinite(loss)) return;
  throw Error(CONCORD_STATUS_FAILED_PRECONDITION,
              fmt::format("rank {}: the loss of micro-batch {} of step {} is {}; check this rank's data, try a lower "
                          "learning_rate, or set check_for_nan_in_loss_and_grad to false to skip such steps",
                          rank, micro_batch, step, std::isnan(loss) ? "NaN" : "infinite"));
}

}  // namespace

LossCheck::LossCheck(const at::Tensor& losses, const ParallelContext& job)
    : job_(job), on_host_(losses.to(at::kCPU, /*non_blocking=*/true)) {
  if (losses.is_cpu()) return;
  copied_.emplace(job.device());
  copied_->record(torch_stream(job.device()));
}

void LossCheck::require_finite(int64_t step) const {
  if (copied_) copied_->synchronize();
  const float* losses = on_host_.data_ptr<float>();
  for (int64_t i = 0; i < on_host_.numel(); ++i) {
    concord::require_finite(losses[i], step, job_.rank(), static_cast<size_t>(i));
  }
}

void require_finite_losses(std::span<const at::Tensor> losses, int64_t step, const ParallelContext& job) {
  for (size_t i = 0; i < losses.size(); ++i) {
    if (losses[i].defined()) require_finite(losses[i].sum().item<double>(), step, job.rank(), i);
  }
}

}  // namespace concord
