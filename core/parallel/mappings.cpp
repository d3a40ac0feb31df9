#include "core/parallel/mappings.h"

#include <torch/csrc/autograd/custom_function.h>

#include "core/parallel/moves.h"

namespace concord {
namespace {

// The moves of one direction, as data: a mapping is a pair of them.
enum class Move { none, sum, gather, reduce_scatter, own_part, exchange };

struct Mapping {
  Move forward;
  Move backward;
  int64_t dim = 0;
  int64_t joined_dim = 0;  // of an exchange, whose |dim| is the split one
};

at::Tensor moved(const at::Tensor& x, Move move, ProcessGroup& group, int64_t dim, int64_t joined_dim) {
  switch (move) {
    case Move::none: return x.view_as(x);  // autograd wants an output of its own
    case Move::sum: return sum_in_place(x.clone(), group).take();
    case Move::gather: return gather(x, group, dim).take();
    case Move::reduce_scatter: return reduce_scatter(x, group, dim).take();
    case Move::own_part: return own_part(x, group, dim).contiguous();
    case Move::exchange: return exchange(x, group, dim, joined_dim).take();
  }
  return {};
}

class Mapped : public torch::autograd::Function<Mapped> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x, ProcessGroup* group,
                            Mapping mapping) {
    // Groups live as long as the job's context, which outlives every graph.
    context->saved_data["group"] = reinterpret_cast<int64_t>(group);
    context->saved_data["backward"] = static_cast<int64_t>(mapping.backward);
    context->saved_data["dim"] = mapping.dim;
    context->saved_data["joined_dim"] = mapping.joined_dim;
    return moved(x, mapping.forward, *group, mapping.dim, mapping.joined_dim);
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    auto* group = reinterpret_cast<ProcessGroup*>(context->saved_data["group"].toInt());
    const auto move = static_cast<Move>(context->saved_data["backward"].toInt());
    // An exchange goes back by exchanging its two dims.
    const int64_t dim = context->saved_data[move == Move::exchange ? "joined_dim" : "dim"].toInt();
    const int64_t joined_dim = context->saved_data[move == Move::exchange ? "dim" : "joined_dim"].toInt();
    return {moved(gradients[0], move, *group, dim, joined_dim), {}, {}};
  }
};

at::Tensor map(const at::Tensor& x, ProcessGroup& group, const Mapping& mapping) {
  return group.size() == 1 ? x : Mapped::apply(x, &group, mapping);
}

}  // namespace

at::Tensor copy_to_region(const at::Tensor& x, ProcessGroup& group) {
  return map(x, group, {.forward = Move::none, .backward = Move::sum});
}

at::Tensor reduce_from_region(const at::Tensor& x, ProcessGroup& group) {
  return map(x, group, {.forward = Move::sum, .backward = Move::none});
}

at::Tensor scatter_to_region(const at::Tensor& x, ProcessGroup& group, int64_t dim) {
  return map(x, group, {.forward = Move::own_part, .backward = Move::gather, .dim = dim});
}

at::Tensor gather_from_region(const at::Tensor& x, ProcessGroup& group, int64_t dim) {
  return map(x, group, {.forward = Move::gather, .backward = Move::own_part, .dim = dim});
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

}  // namespace concord
