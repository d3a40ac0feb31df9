// Moves of core/parallel/async_collectives.h with their derivatives: what Megatron calls the mappings of a parallel
// region. The gradient of a tensor moves the opposite way, and its state follows from that of the tensor: the gradient
// of something whole that each rank uses in its own computation is partial, that of a sum is whole, that of parts is
// split.
//
//                             forward                backward               Megatron's name
//   copy_to_region            -                      partial -> whole       copy_to_tensor_model_parallel_region
//   reduce_from_region        partial -> whole       -                      reduce_from_...
//   gather_into_region        split -> whole         partial -> split       gather_from_sequence_... into a TP region
//   reduce_scatter_to_region  partial -> split       split -> whole         reduce_scatter_to_sequence_...
//   exchange_in_region        split a -> split b     split b -> split a     all_to_all
//   exchange_rows_in_region   rows to other ranks    rows back from them    all_to_all with splits
//
//   AsyncAllToAll             like exchange_rows_in_region, launched and awaited separately
//
// The dim is the last one for tensor parallelism and the token dim for sequence parallelism. A group of one costs
// nothing. Threads: as in async_collectives.h; backward runs on the autograd thread, in the same order on all ranks.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "core/mesh/process_group.h"

namespace concord {

at::Tensor copy_to_region(const at::Tensor& x, ProcessGroup& group);
at::Tensor reduce_from_region(const at::Tensor& x, ProcessGroup& group);
at::Tensor gather_into_region(const at::Tensor& x, ProcessGroup& group, int64_t dim);
at::Tensor reduce_scatter_to_region(const at::Tensor& x, ProcessGroup& group, int64_t dim);
at::Tensor exchange_in_region(const at::Tensor& x, ProcessGroup& group, int64_t split_dim, int64_t joined_dim);
at::Tensor exchange_rows_in_region(const at::Tensor& x, ProcessGroup& group, const std::vector<int64_t>& sent,
                                   const std::vector<int64_t>& received);

// exchange_rows_in_region from its construction to take(). What is computed in between runs in parallel with it, and so
// does the backward of that with the backward of the exchange: autograd takes the latest operations first. With |waits|
// the halves are the same operations in the same order, and only the waiting is at once: results are equal to the bit.
class AsyncAllToAll {
 public:
  AsyncAllToAll(const at::Tensor& x, ProcessGroup& group, std::vector<int64_t> sent, std::vector<int64_t> received,
                bool waits);
  // The rows. Once.
  at::Tensor take();

 private:
  struct State;
  std::shared_ptr<State> state_;
  at::Tensor ticket_;  // stands for the rows until they are there, so that autograd sees one after the other
};

}  // namespace concord
