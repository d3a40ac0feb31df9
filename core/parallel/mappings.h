// The collectives of core/parallel/async_collectives.h with derivatives: Megatron's mappings of a parallel region. The
// gradient of a tensor moves in the opposite direction, and its state follows from that of the tensor: the gradient of
// a whole tensor that each rank uses in its own computation is partial, that of a sum is whole, that of parts is split.
//
//                             forward                backward               Megatron's name
//   copy_to_region            -                      partial -> whole       copy_to_tensor_model_parallel_region
//   reduce_from_region        partial -> whole       -                      reduce_from_...
//   gather_into_region        split -> whole         partial -> split       gather_from_sequence_... into a TP region
//   reduce_scatter_to_region  partial -> split       split -> whole         reduce_scatter_to_sequence_...
//   exchange_in_region        split a -> split b     split b -> split a     all_to_all
//   exchange_rows_in_region   rows to other ranks    rows back from them    all_to_all with splits
//
//   AsyncAllToAll             exchange_rows_in_region in two halves, between which other work is issued
//
// The dim is the last one for tensor parallelism, that of the tokens for sequence parallelism. Free in a group of one.
// Threads: same as async_collectives.h; backward runs on autograd's thread, in the same order on all ranks.
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

// exchange_rows_in_region(), split into its launch (the constructor) and take(). Work in between runs in parallel with
// it, and so does the backward of that work with the backward of the exchange: autograd runs the latest operations
// first. With |waits| the operations and their order are the same, but the launch also waits: results are bitwise
// identical.
class AsyncAllToAll {
 public:
  AsyncAllToAll(const at::Tensor& x, ProcessGroup& group, std::vector<int64_t> sent, std::vector<int64_t> received,
                bool waits);
  // Returns the rows. Call only once.
  at::Tensor take();

 private:
  struct State;
  std::shared_ptr<State> state_;
  at::Tensor ticket_;  // placeholder that orders launch and wait in the autograd graph
};

}  // namespace concord
