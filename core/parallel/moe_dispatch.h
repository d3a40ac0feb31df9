// Token dispatch of expert parallelism: sends rows to the ranks of their experts and returns the outputs.
//
// The E experts of a layer are sharded over the R ranks of a group: rank r holds experts [r E / R, (r + 1) E / R). A
// rank's rows are sorted by expert (core/ops/moe/moe_permute.h), so the rows for another rank are one block.
//
// Example, given const at::Tensor& rows, const at::Tensor& ends, ProcessGroup& group:
//   const MoeDispatch plan = plan_dispatch(ends, group);
//   const at::Tensor own = dispatch_rows(rows, plan, group);  // rows of this rank's experts, up to plan.order.ends
//   const at::Tensor back = combine_rows(own, plan, group);    // rows
//
// All ranks of the group make the same calls, even if they send or receive nothing. Both functions are differentiable,
// and their backward is a call of all ranks too. Threads: same as core/parallel/mappings.h.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "core/mesh/process_group.h"
#include "core/ops/moe/moe_permute.h"

namespace concord {

struct MoeDispatch {
  std::vector<int64_t> sent;      // number of rows to each rank
  std::vector<int64_t> received;  // number of rows from each rank
  ExpertOrder order;  // order of the received rows: by rank on arrival -> by expert, within an expert by rank
};

// Plans the exchange. |ends| int64 [E]: this rank's rows of expert e are [ends[e - 1], ends[e]). Waits: for the ranks
// of the group, and once on the host, for the numbers of rows.
MoeDispatch plan_dispatch(const at::Tensor& ends, ProcessGroup& group);
// Like plan_dispatch(), if every rank has |each| rows for each of |experts| experts. Never waits. |device| is that of
// the rows.
MoeDispatch plan_even_dispatch(int64_t experts, int64_t each, const ProcessGroup& group, at::Device device);

// Work to overlap with the all-to-all if |overlaps|, else run after it. Results are bitwise identical.
struct OverlappedWork {
  std::function<void()> run;  // empty: nothing
  bool overlaps = false;
};

// Sends |rows| [n, h], sorted by expert, to the ranks of their experts. Returns the rows of this rank's experts, sorted
// by expert.
at::Tensor dispatch_rows(const at::Tensor& rows, const MoeDispatch& plan, ProcessGroup& group,
                         const OverlappedWork& meanwhile = {});
// Inverse of dispatch_rows(): returns the expert outputs to the ranks and positions of their tokens.
at::Tensor combine_rows(const at::Tensor& rows, const MoeDispatch& plan, ProcessGroup& group,
                        const OverlappedWork& meanwhile = {});

}  // namespace concord
