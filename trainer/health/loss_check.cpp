#include "trainer/health/loss_check.h"

#include <fmt/format.h>

#include <cmath>

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

LossCheck::LossCheck(const at::Tensor& losses, const ParallelContext& job) : job_(job), losses_(losses, job.device()) {}

void LossCheck::require_finite(int64_t step) const {
  const at::Tensor on_host = losses_.wait();
  const float* losses = on_host.data_ptr<float>();
  for (int64_t i = 0; i < on_host.numel(); ++i) {
    concord::require_finite(losses[i], step, job_.rank(), static_cast<size_t>(i));
  }
}

void require_finite_losses(std::span<const at::Tensor> losses, int64_t step, const ParallelContext& job) {
  for (size_t i = 0; i < losses.size(); ++i) {
    if (losses[i].defined()) require_finite(losses[i].sum().item<double>(), step, job.rank(), i);
  }
}

}  // namespace concord
