// Rows on their way to the experts of other ranks and back: the token exchange of expert parallelism.
//
// The experts of a layer are split over the R ranks of a group: of E experts rank r has [r E / R, (r + 1) E / R). A
// rank has rows in the order of all experts (core/ops/moe/moe_permute.h), so what another one gets is one block of
// them.
//
// Example, given const at::Tensor& rows, const at::Tensor& ends, ProcessGroup& group:
//   const MoeDispatch plan = plan_dispatch(ends, group);
//   const at::Tensor own = dispatch_rows(rows, plan, group);  // of this rank's experts, until plan.order.ends
//   const at::Tensor back = combine_rows(own, plan, group);    // rows
//
// All ranks of the group make the same calls, also those that send or receive nothing; both moves have derivatives,
// which are calls of all ranks too. Threads: those of core/parallel/mappings.h.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "core/mesh/process_group.h"
#include "core/ops/moe/moe_permute.h"

namespace concord {

struct MoeDispatch {
  std::vector<int64_t> sent;      // rows to each rank
  std::vector<int64_t> received;  // rows from each rank
  ExpertOrder order;  // of the received rows: rank by rank as they come -> by expert, those of an expert rank by rank
};

// |ends| int64 [E]: this rank's rows of expert e are [ends[e - 1], ends[e]). Waits: for the ranks of the group, and
// once on the host, for the numbers of rows.
MoeDispatch plan_dispatch(const at::Tensor& ends, ProcessGroup& group);
// The same where every rank has |each| rows of each of |experts| experts. Never waits. |device| is that of the rows.
MoeDispatch plan_even_dispatch(int64_t experts, int64_t each, const ProcessGroup& group, at::Device device);

// What is computed while rows are under way, if |overlaps|; just after that if not. Bit by bit the same.
struct OverlappedWork {
  std::function<void()> run;  // empty: nothing
  bool overlaps = false;
};

// |rows| [n, h] of all experts -> the rows of this rank's experts, in their order.
at::Tensor dispatch_rows(const at::Tensor& rows, const MoeDispatch& plan, ProcessGroup& group,
                         const OverlappedWork& meanwhile = {});
// The way back: what became of them, to the ranks and places that they came from.
at::Tensor combine_rows(const at::Tensor& rows, const MoeDispatch& plan, ProcessGroup& group,
                        const OverlappedWork& meanwhile = {});

}  // namespace concord
