#include "core/parallel/mappings.h"

#include <ATen/ops/empty.h>

#include <numeric>
#include <optional>
#include <utility>

#include "core/ops/derivative.h"
#include "core/parallel/async_collectives.h"

namespace concord {
namespace {

// The collective of one direction, as data: a mapping is a pair of them.
enum class Move { none, sum, gather, reduce_scatter, exchange };

struct Mapping {
  Move forward;
  Move backward;
  int64_t dim = 0;
  int64_t joined_dim = 0;  // only for exchange, whose |dim| is the split one
};

at::Tensor moved(const at::Tensor& x, Move move, ProcessGroup& group, int64_t dim, int64_t joined_dim) {
  switch (move) {
    case Move::none: return x;  // autograd creates a view of an input that is returned
    case Move::sum: return all_reduce_(x.clone(at::MemoryFormat::Contiguous), group).take();
    case Move::gather: return gather(x, group, dim).take();
    case Move::reduce_scatter: return reduce_scatter(x, group, dim).take();
    case Move::exchange: return exchange(x, group, dim, joined_dim).take();
  }
  return {};
}

at::Tensor map(const at::Tensor& x, ProcessGroup& group, const Mapping& mapping) {
  if (group.size() == 1) return x;
  const auto forth = [&] {
    return ops::Forward{moved(x, mapping.forward, group, mapping.dim, mapping.joined_dim), {}};
  };
  // Groups live as long as the job's context, which outlives every graph. The backward of an exchange swaps its dims.
  return ops::differentiable(
      "a mapping of a parallel region", {x}, forth, [&group, mapping](const ops::Backward& back) {
        const bool turned = mapping.backward == Move::exchange;
        return ops::Tensors{moved(back.grad, mapping.backward, group, turned ? mapping.joined_dim : mapping.dim,
                                  turned ? mapping.dim : mapping.joined_dim)};
      });
}

}  // namespace

at::Tensor copy_to_region(const at::Tensor& x, ProcessGroup& group) {
  return map(x, group, {.forward = Move::none, .backward = Move::sum});
}

at::Tensor reduce_from_region(const at::Tensor& x, ProcessGroup& group) {
  return map(x, group, {.forward = Move::sum, .backward = Move::none});
}

at::Tensor gather_into_region(const at::Tensor& x, ProcessGroup& group, int64_t dim) {
  return map(x, group, {.forward = Move::gather, .backward = Move::reduce_scatter, .dim = dim});
}

at::Tensor reduce_scatter_to_region(const at::Tensor& x, ProcessGroup& group, int64_t dim) {
  return map(x, group, {.forward = Move::reduce_scatter, .backward = Move::gather, .dim = dim});
}

at::Tensor exchange_in_region(const at::Tensor& x, ProcessGroup& group, int64_t split_dim, int64_t joined_dim) {
  return map(x, group,
             {.forward = Move::exchange, .backward = Move::exchange, .dim = split_dim, .joined_dim = joined_dim});
}

at::Tensor exchange_rows_in_region(const at::Tensor& x, ProcessGroup& group, const std::vector<int64_t>& sent,
                                   const std::vector<int64_t>& received) {
  return AsyncAllToAll(x, group, sent, received, /*waits=*/true).take();
}

struct AsyncAllToAll::State {
  ProcessGroup& group;
  const std::vector<int64_t> sent, received;
  const bool waits;
  std::optional<PendingTensor> moving = {};
  at::Tensor kept = {};     // the tensor being sent
  at::Tensor arrived = {};  // the received tensor, once it was waited for

  void begin(const at::Tensor& x, bool back) {
    kept = x;
    moving.emplace(back ? all_to_all_v(x, group, received, sent) : all_to_all_v(x, group, sent, received));
    if (waits) arrived = moving->take();
  }
  at::Tensor end() {
    const at::Tensor rows = waits ? std::exchange(arrived, {}) : moving->take();
    moving.reset();
    kept.reset();
    return rows;
  }
};

// The placeholder has the shape of the rows, but no memory.
AsyncAllToAll::AsyncAllToAll(const at::Tensor& x, ProcessGroup& group, std::vector<int64_t> sent,
                             std::vector<int64_t> received, bool waits)
    : state_(std::make_shared<State>(State{group, std::move(sent), std::move(received), waits})), ticket_(x) {
  if (group.size() == 1) return;
  const auto begin = [&] {
    state_->begin(x, /*back=*/false);
    std::vector<int64_t> shape = x.sizes().vec();
    shape.front() = std::accumulate(state_->received.begin(), state_->received.end(), int64_t{0});
    return ops::Forward{at::empty({1}, x.options()).expand(shape), {}};
  };
  ticket_ = ops::differentiable("the beginning of an exchange of rows", {x}, begin,
                                [state = state_](const ops::Backward&) { return ops::Tensors{state->end()}; });
}

at::Tensor AsyncAllToAll::take() {
  if (state_->group.size() == 1) return std::exchange(ticket_, {});
  const auto end = [&] { return ops::Forward{state_->end(), {}}; };
  return ops::differentiable("the end of an exchange of rows", {std::exchange(ticket_, {})}, end,
                             [state = state_](const ops::Backward& back) {
                               state->begin(back.grad, /*back=*/true);
                               return ops::Tensors{back.grad};  // gradient of the placeholder, which is ignored
                             });
}

}  // namespace concord
