#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <fmt/core.h>

#include <array>
#include <utility>
#include <vector>

#include "core/base/config_error.h"
#include "core/ops/attention/attention_parts.h"
#include "core/ops/attention/attention_sinks.h"
#include "core/ops/derivative.h"
#include "core/parallel/context_attention.h"
#include "core/parallel/context_slices.h"

namespace concord {
namespace {

using at::Tensor;
using ops::Backward;
using ops::Forward;
using ops::Tensors;

// Shapes in names: 2 keys and values, b batch, s this rank's tokens, q, k query and key heads, n the size of a head.

// The position of a rank in the ring, and the buffers that are passed. Step t of a rank processes the keys of rank - t.
struct Ring {
  ProcessGroup* group;
  std::vector<int64_t> lengths;
  AttentionOptions options;

  int64_t size() const { return group->size(); }
  int64_t owner(int64_t step) const { return (group->rank() - step + size()) % size(); }
  std::vector<RingBlock> blocks(int64_t step) const { return ring_blocks(lengths, size(), group->rank(), owner(step)); }
  // Sends |mine| to the next rank and receives |next| from the previous one.
  Work pass(const Tensor& mine, const Tensor& next) const {
    const int64_t rank = group->rank();
    return group->batch_p2p(std::array{send(mine, (rank + 1) % size()), recv(next, (rank - 1 + size()) % size())});
  }
};

AttentionOptions of_block(const RingBlock& block, const AttentionOptions& options) {
  return {.causal = block.causal, .window = 0, .scale = options.scale, .cap = options.cap};
}

Tensor tokens(const Tensor& x, int64_t begin, int64_t count) { return x.narrow(1, begin, count); }

// The attention of this rank's queries over the keys of some ranks, in the type of sums.
class RingSum {
 public:
  explicit RingSum(int64_t queries) : queries_(queries) {}

  // Adds the attention of the block's queries over its keys. The blocks of the first step have each query once.
  void add(const RingBlock& block, AttentionPart part, bool is_first) {
    part.out = part.out.to(part.largest.scalar_type());
    if (block.queries == queries_) {
      whole_ = is_first ? part : merged(whole_, part);
      return;
    }
    if (!whole_.out.defined())
      whole_ = {empty_whole(part.out, 1), empty_whole(part.largest, 2), empty_whole(part.sum, 2)};
    const AttentionPart place = whole_.queries(block.query, block.queries);
    const AttentionPart sum = is_first ? part : merged(place, part);
    place.out.copy_(sum.out);
    place.largest.copy_(sum.largest);
    if (sum.sum.defined()) place.sum.copy_(sum.sum);
  }
  AttentionForward whole() const { return as_forward(whole_); }

 private:
  Tensor empty_whole(const Tensor& part, int64_t dim) const {
    if (!part.defined()) return {};
    auto sizes = part.sizes().vec();
    sizes[static_cast<size_t>(dim)] = queries_;
    return at::empty(sizes, part.options());
  }
  int64_t queries_;
  AttentionPart whole_;
};

AttentionForward forward(const Tensor& q_bsqn, const Tensor& k_bskn, const Tensor& v_bskn, const Ring& ring) {
  Tensor held_2bskn = at::stack({k_bskn, v_bskn});
  RingSum sum(q_bsqn.size(1));
  for (int64_t step = 0; step < ring.size(); ++step) {
    const bool last = step + 1 == ring.size();
    const Tensor next_2bskn = last ? Tensor() : at::empty_like(held_2bskn);
    const Work exchange = last ? Work() : ring.pass(held_2bskn, next_2bskn);
    for (const RingBlock& block : ring.blocks(step)) {
      const AttentionPart part =
          attention_part(tokens(q_bsqn, block.query, block.queries), tokens(held_2bskn[0], block.key, block.keys),
                         tokens(held_2bskn[1], block.key, block.keys), of_block(block, ring.options));
      sum.add(block, part, step == 0);
    }
    exchange.wait();
    held_2bskn = next_2bskn;
  }
  const Tensor& sinks = ring.options.sinks;
  const AttentionForward whole = sum.whole();
  const auto [out, lse] = sinks.defined() ? ops::with_sinks(whole, sinks) : whole;
  return {out.to(q_bsqn.scalar_type()), lse};
}

// The gradients of keys and values are accumulated around the ring: a rank computes its summand while the sum of the
// previous ranks is still arriving, and one more step returns the sum to its owner.
Tensors backward(const Tensor& grad_bsqn, const Tensor& q_bsqn, const Tensor& k_bskn, const Tensor& v_bskn,
                 const AttentionForward& whole, const Ring& ring) {
  const auto sums = whole.lse.options();
  Tensor held_2bskn = at::stack({k_bskn, v_bskn});
  Tensor dq_bsqn = at::zeros(q_bsqn.sizes(), sums);
  Tensor collected_2bskn;  // gradients of the held keys and values
  Work arrival;            // of |collected_2bskn|
  for (int64_t step = 0; step < ring.size(); ++step) {
    const bool last = step + 1 == ring.size();
    const Tensor next_2bskn = last ? Tensor() : at::empty_like(held_2bskn);
    const Work exchange = last ? Work() : ring.pass(held_2bskn, next_2bskn);
    Tensor mine_2bskn = at::zeros(held_2bskn.sizes(), sums);
    for (const RingBlock& block : ring.blocks(step)) {
      const AttentionForward seen{tokens(whole.out, block.query, block.queries),
                                  whole.lse.narrow(2, block.query, block.queries)};
      const AttentionBackward part =
          attention_backward(tokens(grad_bsqn, block.query, block.queries), tokens(q_bsqn, block.query, block.queries),
                             tokens(held_2bskn[0], block.key, block.keys), tokens(held_2bskn[1], block.key, block.keys),
                             seen, of_block(block, ring.options));
      tokens(dq_bsqn, block.query, block.queries).add_(part.dq);
      tokens(mine_2bskn[0], block.key, block.keys).add_(part.dk);
      tokens(mine_2bskn[1], block.key, block.keys).add_(part.dv);
    }
    arrival.wait();
    if (collected_2bskn.defined()) mine_2bskn.add_(collected_2bskn);
    exchange.wait();
    held_2bskn = next_2bskn;
    collected_2bskn = at::empty_like(mine_2bskn);
    arrival = ring.pass(mine_2bskn, collected_2bskn);
  }
  arrival.wait();
  return {dq_bsqn.to(q_bsqn.scalar_type()), collected_2bskn[0].to(k_bskn.scalar_type()),
          collected_2bskn[1].to(v_bskn.scalar_type())};
}

}  // namespace

at::Tensor ring_attention(const Tensor& q, const Tensor& k, const Tensor& v, ProcessGroup& group,
                          const AttentionOptions& options, std::span<const int64_t> cu_seqlens) {
  if (group.size() == 1) return attention(q, k, v, options, cu_seqlens);
  if (!options.causal || options.window != 0) {
    throw ConfigError(
        fmt::format("ring attention supports only causal = true without a sliding window, but got causal = {}, window "
                    "= {}; use gathered attention, or context_parallel_size 1",
                    options.causal ? "true" : "false", options.window));
  }
  const Ring ring{&group, whole_lengths(q, group, cu_seqlens), options};
  const bool packed = !cu_seqlens.empty();
  const auto rows = [packed](const Tensor& x) { return packed ? x.unsqueeze(0) : x; };
  const auto run = [&] {
    const AttentionForward whole = forward(rows(q), rows(k), rows(v), ring);
    const Tensor out = packed ? whole.out.squeeze(0) : whole.out;
    return Forward{out, {q, k, v, out, whole.lse, options.sinks}};
  };
  const auto back = [ring, rows, packed](const Backward& b) {
    const AttentionForward whole{rows(b.saved[3]), b.saved[4]};
    const Tensor& sinks = b.saved[5];
    Tensors result = backward(rows(b.grad), rows(b.saved[0]), rows(b.saved[1]), rows(b.saved[2]), whole, ring);
    if (packed) {
      for (Tensor& each : result) each = each.squeeze(0);
    }
    result.push_back(sinks.defined() ? ops::sinks_grad(rows(b.grad), whole, sinks) : Tensor());
    return result;
  };
  return ops::differentiable("ring_attention", {q, k, v, options.sinks}, run, back);
}

}  // namespace concord
