// Tensors moved between the ranks of a group, without derivatives (those are in core/parallel/mappings.h).
//
// A tensor of a group is in one of three states:
//   whole     every rank has the same values
//   split     rank r has the r-th of equal parts along a dim
//   partial   every rank has a summand of the same shape; the value is their sum
// and a move goes from one state to another. In a group of one all three are the same, and nothing moves.
//
// A move starts immediately and runs in parallel with what the current stream does next; PendingTensor::take() gives
// its result, ordered before all later work of the current stream. Inputs need not be contiguous; they must not be
// written before take(). Threads: those of core/mesh/process_group.h. All ranks of the group make the same moves in the
// same order.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include "core/mesh/process_group.h"

namespace concord {

// The result of a move that is in flight. Drop it only after take().
class PendingTensor {
 public:
  PendingTensor(Work work, const at::Tensor& received, std::function<at::Tensor(const at::Tensor&)> arrange);
  PendingTensor(PendingTensor&&) noexcept;
  PendingTensor& operator=(PendingTensor&&) noexcept;
  ~PendingTensor();

  // Waits as Work::wait does. Once.
  at::Tensor take();

 private:
  Work work_;
  std::unique_ptr<at::Tensor> received_;
  std::function<at::Tensor(const at::Tensor&)> arrange_;  // reorders what arrived into the result's order of elements
};

// partial -> whole. The sum is computed in place if |x| is contiguous: the contents of |x| are then lost.
PendingTensor all_reduce_(const at::Tensor& x, ProcessGroup& group);
// split -> whole
PendingTensor gather(const at::Tensor& x, ProcessGroup& group, int64_t dim);
// partial -> split
PendingTensor reduce_scatter(const at::Tensor& x, ProcessGroup& group, int64_t dim);
// split along |joined_dim| -> split along |split_dim|: the part of |x| for each rank is split along |split_dim|, what
// comes from the ranks is concatenated along |joined_dim|.
PendingTensor exchange(const at::Tensor& x, ProcessGroup& group, int64_t split_dim, int64_t joined_dim);
// Rows (of dimension 0) of |x|, those for each rank one after the other, sent[r] of them for rank r, which sends
// received[r] in return: these are the result, in the order of ranks.
PendingTensor all_to_all_v(const at::Tensor& x, ProcessGroup& group, std::span<const int64_t> sent,
                           std::span<const int64_t> received);
// whole -> split: this rank's part, a view of |x|.
at::Tensor own_part(const at::Tensor& x, const ProcessGroup& group, int64_t dim);

// |size| / parts. Throws ConfigError, which says what it is ("the hidden size of layer.1"), if it does not divide.
int64_t divide(int64_t size, const ProcessGroup& group, const char* what);

}  // namespace concord
