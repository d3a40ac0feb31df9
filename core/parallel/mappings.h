// Moves of core/parallel/moves.h with their derivatives: what Megatron calls the mappings of a parallel region. The
// gradient of a tensor moves the opposite way, and its state follows from that of the tensor: the gradient of something
// whole that each rank uses in its own computation is partial, that of a sum is whole, that of parts is split.
//
//                             forward                backward               Megatron's name
//   copy_to_region            -                      partial -> whole       copy_to_tensor_model_parallel_region
//   reduce_from_region        partial -> whole       -                      reduce_from_...
//   gather_into_region        split -> whole         partial -> split       gather_from_sequence_... into a TP region
//   reduce_scatter_to_region  partial -> split       split -> whole         reduce_scatter_to_sequence_...
//   exchange_in_region        split a -> split b     split b -> split a     all_to_all
//   exchange_rows_in_region   rows to other ranks    rows back from them    all_to_all with splits
//
// The dim is the last one for tensor parallelism, that of the tokens for sequence parallelism. A group of one costs
// nothing. Threads: those of moves.h; backward runs on the thread of autograd, in the same order on all ranks.
#pragma once

#include <cstdint>
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

}  // namespace concord
