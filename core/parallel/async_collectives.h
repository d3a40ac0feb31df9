// Asynchronous collectives on tensors, without derivatives (those are in core/parallel/mappings.h).
//
// A tensor of a group is in one of three states:
//   whole     every rank has the same values
//   split     rank r has the r-th of equal parts along a dim
//   partial   every rank has a summand of the same shape; the value is their sum
// and a collective converts between them. In a group of one all three are the same, and nothing is sent.
//
// A collective starts immediately and runs in parallel with later work of the current stream; PendingTensor::take()
// returns its result, ordered before all later work of the current stream. Inputs need not be contiguous; they must not
// be written before take(). Threads: same as core/mesh/process_group.h. All ranks of the group make the same calls in
// the same order.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include "core/mesh/process_group.h"

namespace concord {

// The result of a collective in flight. Destroy only after take().
class PendingTensor {
 public:
  PendingTensor(Work work, const at::Tensor& received, std::function<at::Tensor(const at::Tensor&)> arrange);
  PendingTensor(PendingTensor&&) noexcept;
  PendingTensor& operator=(PendingTensor&&) noexcept;
  ~PendingTensor();

  // Waits like Work::wait. Call only once.
  at::Tensor take();

 private:
  Work work_;
  std::unique_ptr<at::Tensor> received_;
  std::function<at::Tensor(const at::Tensor&)> arrange_;  // reorders the received elements to the order of the result
};

// partial -> whole. Sums in place if |x| is contiguous: its contents are then overwritten.
PendingTensor all_reduce_(const at::Tensor& x, ProcessGroup& group);
// split -> whole
PendingTensor gather(const at::Tensor& x, ProcessGroup& group, int64_t dim);
// partial -> split
PendingTensor reduce_scatter(const at::Tensor& x, ProcessGroup& group, int64_t dim);
// split along |joined_dim| -> split along |split_dim|: sends a part of |x| along |split_dim| to each rank, and
// concatenates the received parts along |joined_dim|.
PendingTensor exchange(const at::Tensor& x, ProcessGroup& group, int64_t split_dim, int64_t joined_dim);
// All-to-all of rows (dimension 0): |x| holds sent[r] rows for each rank r, concatenated; the result holds received[r]
// rows from each rank r, concatenated.
PendingTensor all_to_all_v(const at::Tensor& x, ProcessGroup& group, std::span<const int64_t> sent,
                           std::span<const int64_t> received);
// whole -> split: returns this rank's part, a view of |x|.
at::Tensor own_part(const at::Tensor& x, const ProcessGroup& group, int64_t dim);

// Returns |size| / group.size(). Throws ConfigError with |what| ("the hidden size of layer.1") unless it divides.
int64_t divide(int64_t size, const ProcessGroup& group, const char* what);

}  // namespace concord
