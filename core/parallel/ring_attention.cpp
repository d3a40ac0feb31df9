#include <ATen/core/Tensor.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/logaddexp.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <array>
#include <utility>
#include <vector>

#include "core/config_error.h"
#include "core/ops/attention_parts.h"
#include "core/ops/derivative.h"
#include "core/parallel/context_attention.h"
#include "core/parallel/context_slices.h"
#include "platform/loader/text.h"

namespace concord {
namespace {

using at::Tensor;
using ops::Backward;
using ops::Forward;
using ops::Tensors;

// A rank's position in the ring, and what is passed around. Step t of a rank handles what rank - t owns.
struct Ring {
  ProcessGroup* group;
  std::vector<int64_t> lengths;
  AttentionOptions options;

  int64_t size() const { return group->size(); }
  int64_t owner(int64_t step) const { return (group->rank() - step + size()) % size(); }
  std::vector<RingBlock> blocks(int64_t step) const { return ring_blocks(lengths, size(), group->rank(), owner(step)); }
  // Sends |mine| to the next rank and receives the same from the previous one.
  Work pass(const Tensor& mine, const Tensor& next) const {
    const int64_t rank = group->rank();
    return group->batch_p2p(std::array{send(mine, (rank + 1) % size()), recv(next, (rank - 1 + size()) % size())});
  }
};

AttentionOptions of_block(const RingBlock& block, const AttentionOptions& options) {
  return {.causal = block.causal, .window = 0, .scale = options.scale};
}

Tensor tokens(const Tensor& x, int64_t begin, int64_t count) { return x.narrow(1, begin, count); }
Tensor weight_of(const Tensor& lse) { return lse.transpose(1, 2).unsqueeze(-1); }  // [B, heads, S] -> [B, S, heads, 1]

// |out| and |lse| cover the keys seen so far, in the accumulation type; |more| covers the new ones.
void merge(const Tensor& out, const Tensor& lse, const AttentionForward& more) {
  const Tensor both = at::logaddexp(lse, more.lse);
  out.mul_(weight_of(lse.sub(both).exp_()));
  out.add_(more.out.to(out.scalar_type()).mul_(weight_of(more.lse.sub(both).exp_())));
  lse.copy_(both);
}

AttentionForward forward(const Tensor& q, const Tensor& k, const Tensor& v, const Ring& ring) {
  Tensor held = at::stack({k, v});
  Tensor out, lse;
  for (int64_t step = 0; step < ring.size(); ++step) {
    const bool last = step + 1 == ring.size();
    const Tensor next = last ? Tensor() : at::empty_like(held);
    const Work exchange = last ? Work() : ring.pass(held, next);
    for (const RingBlock& block : ring.blocks(step)) {
      const AttentionForward part =
          attention_forward(tokens(q, block.query, block.queries), tokens(held[0], block.key, block.keys),
                            tokens(held[1], block.key, block.keys), of_block(block, ring.options));
      if (!out.defined()) {
        out = at::zeros(q.sizes(), part.lse.options());
        lse = at::zeros({q.size(0), q.size(2), q.size(1)}, part.lse.options());
      }
      if (step == 0) {  // every query is in one of the rank's own blocks
        tokens(out, block.query, block.queries).copy_(part.out);
        lse.narrow(2, block.query, block.queries).copy_(part.lse);
      } else {
        merge(tokens(out, block.query, block.queries), lse.narrow(2, block.query, block.queries), part);
      }
    }
    exchange.wait();
    held = next;
  }
  return {out.to(q.scalar_type()), lse};
}

// The gradients of keys and values accumulate on the way around the ring: a rank computes its contribution while that
// of the previous ranks is still arriving, and one more step returns the sum to its owner.
Tensors backward(const Tensor& grad, const Tensor& q, const Tensor& k, const Tensor& v, const AttentionForward& whole,
                 const Ring& ring) {
  const auto sums = whole.lse.options();
  Tensor held = at::stack({k, v});
  Tensor dq = at::zeros(q.sizes(), sums);
  Tensor collected;  // for the keys that are held
  Work arrival;      // of |collected|
  for (int64_t step = 0; step < ring.size(); ++step) {
    const bool last = step + 1 == ring.size();
    const Tensor next = last ? Tensor() : at::empty_like(held);
    const Work exchange = last ? Work() : ring.pass(held, next);
    Tensor mine = at::zeros(held.sizes(), sums);
    for (const RingBlock& block : ring.blocks(step)) {
      const AttentionForward seen{tokens(whole.out, block.query, block.queries),
                                  whole.lse.narrow(2, block.query, block.queries)};
      const AttentionBackward part =
          attention_backward(tokens(grad, block.query, block.queries), tokens(q, block.query, block.queries),
                             tokens(held[0], block.key, block.keys), tokens(held[1], block.key, block.keys), seen,
                             of_block(block, ring.options));
      tokens(dq, block.query, block.queries).add_(part.dq);
      tokens(mine[0], block.key, block.keys).add_(part.dk);
      tokens(mine[1], block.key, block.keys).add_(part.dv);
    }
    arrival.wait();
    if (collected.defined()) mine.add_(collected);
    exchange.wait();
    held = next;
    collected = at::empty_like(mine);
    arrival = ring.pass(mine, collected);
  }
  arrival.wait();
  return {dq.to(q.scalar_type()), collected[0].to(k.scalar_type()), collected[1].to(v.scalar_type())};
}

}  // namespace

at::Tensor ring_attention(const Tensor& q, const Tensor& k, const Tensor& v, ProcessGroup& group,
                          const AttentionOptions& options, std::span<const int64_t> cu_seqlens) {
  if (group.size() == 1) return attention(q, k, v, options, cu_seqlens);
  if (!options.causal || options.window != 0) {
    throw ConfigError(
        loader::cat("ring attention supports only causal = true without a sliding window, but got causal = ",
                    options.causal ? "true" : "false", ", window = ", options.window,
                    "; use gathered attention, or context_parallel_size 1"));
  }
  const Ring ring{&group, whole_lengths(q, group, cu_seqlens), options};
  const bool packed = !cu_seqlens.empty();
  const auto rows = [packed](const Tensor& x) { return packed ? x.unsqueeze(0) : x; };
  const auto run = [&] {
    const AttentionForward whole = forward(rows(q), rows(k), rows(v), ring);
    const Tensor out = packed ? whole.out.squeeze(0) : whole.out;
    return Forward{out, {q, k, v, out, whole.lse}};
  };
  return ops::differentiable("ring_attention", {q, k, v}, run, [ring, rows, packed](const Backward& b) {
    Tensors result = backward(rows(b.grad), rows(b.saved[0]), rows(b.saved[1]), rows(b.saved[2]),
                              {rows(b.saved[3]), b.saved[4]}, ring);
    if (packed) {
      for (Tensor& each : result) each = each.squeeze(0);
    }
    return result;
  });
}

}  // namespace concord
