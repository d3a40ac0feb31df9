#include "core/parallel/moe_dispatch.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>

#include <numeric>

#include "core/parallel/async_collectives.h"
#include "core/parallel/mappings.h"

namespace concord {
namespace {

using at::Tensor;

Tensor counts_of(const Tensor& ends) {
  Tensor counts = ends.clone();
  counts.narrow(0, 1, ends.size(0) - 1).sub_(ends.narrow(0, 0, ends.size(0) - 1));
  return counts;
}

// Sorts rows that arrive by rank, counts [ranks, experts] of them, by expert. Computed on the device of |counts|; never
// waits.
ExpertOrder order_of_received(const Tensor& counts, int64_t rows) {
  const Tensor ends = counts.flatten().cumsum(0);
  // The number of blocks that end before a row is the index of its own block.
  const Tensor block = at::arange(rows, ends.options()).unsqueeze(1).ge(ends).sum(1);
  return order_by_expert(block.remainder(counts.size(1)).unsqueeze(1), counts.size(1));
}

Tensor exchanged(const Tensor& rows, ProcessGroup& group, const std::vector<int64_t>& sent,
                 const std::vector<int64_t>& received, const OverlappedWork& meanwhile) {
  AsyncAllToAll under_way(rows, group, sent, received, !meanwhile.overlaps);
  if (meanwhile.run) meanwhile.run();
  return under_way.take();
}

}  // namespace

MoeDispatch plan_dispatch(const Tensor& ends, ProcessGroup& group) {
  const at::NoGradGuard no_grad;
  const int64_t ranks = group.size(), experts = divide(ends.size(0), group, "the list of experts");
  const Tensor all = gather(counts_of(ends).unsqueeze(0), group, 0).take();  // [ranks, all experts]
  const Tensor blocks = all.view({ranks, ranks, experts}).sum(2);            // [from, to]
  const Tensor host = blocks.cpu();                                          // synchronises with the device
  const int64_t* count = host.const_data_ptr<int64_t>();
  MoeDispatch plan;
  for (int64_t other = 0; other < ranks; ++other) {
    plan.sent.push_back(count[group.rank() * ranks + other]);
    plan.received.push_back(count[other * ranks + group.rank()]);
  }
  const int64_t rows = std::accumulate(plan.received.begin(), plan.received.end(), int64_t{0});
  plan.order = order_of_received(all.narrow(1, group.rank() * experts, experts), rows);
  return plan;
}

MoeDispatch plan_even_dispatch(int64_t experts, int64_t each, const ProcessGroup& group, at::Device device) {
  const int64_t ranks = group.size(), own = divide(experts, group, "the list of experts");
  const std::vector<int64_t> splits(static_cast<size_t>(ranks), own * each);
  const auto options = at::TensorOptions(device).dtype(at::kLong);
  const Tensor numbers = at::arange(ranks * own * each, options);
  const auto turned = [&](int64_t outer, int64_t inner) {
    return numbers.view({outer, inner, each}).transpose(0, 1).reshape({-1});
  };
  return {splits, splits, {turned(ranks, own), turned(own, ranks), at::arange(1, own + 1, options) * (ranks * each)}};
}

Tensor dispatch_rows(const Tensor& rows, const MoeDispatch& plan, ProcessGroup& group,
                     const OverlappedWork& meanwhile) {
  return moe_permute(exchanged(rows, group, plan.sent, plan.received, meanwhile), plan.order);
}

Tensor combine_rows(const Tensor& rows, const MoeDispatch& plan, ProcessGroup& group, const OverlappedWork& meanwhile) {
  const ExpertOrder as_received{plan.order.inverse, plan.order.order, plan.order.ends};
  return exchanged(moe_permute(rows, as_received), group, plan.received, plan.sent, meanwhile);
}

}  // namespace concord
