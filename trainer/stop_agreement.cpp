#include "trainer/stop_agreement.h"

#include <ATen/ops/tensor.h>

#include <algorithm>

#include "core/mesh/agreement.h"
#include "trainer/stop_request.h"

namespace concord {

bool StopAgreement::is_reached() {
  if (stop_ == nullptr) return false;
  if (job_.world() == 1) return stop_->requested();
  if (--left_ > 0) return false;
  const double seconds = std::chrono::duration<double>(Clock::now() - asked_).count();
  const double in_a_second = static_cast<double>(pieces_) / std::max(seconds, 1e-3);
  const int64_t next = std::clamp<int64_t>(static_cast<int64_t>(in_a_second), 1, 2 * pieces_);
  const at::Tensor wishes =
      at::tensor({int64_t{stop_->requested()}, -next}, at::TensorOptions().dtype(at::kLong)).to(job_.torch_device());
  job_.world_group().all_reduce(wishes, ReduceOp::kMax).wait();  // the slowest rank's |next|
  const at::Tensor agreed = wishes.to(at::kCPU);
  left_ = pieces_ = -agreed.data_ptr<int64_t>()[1];
  asked_ = Clock::now();
  return agreed.data_ptr<int64_t>()[0] != 0;
}

int agreed_stop_signal(ParallelContext& job, const StopRequest& stop) {
  return static_cast<int>(all_reduce_scalar(job, stop.signal(), ReduceOp::kMax));
}

}  // namespace concord
