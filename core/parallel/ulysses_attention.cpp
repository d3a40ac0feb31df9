#include <ATen/core/Tensor.h>
#include <fmt/core.h>

#include <numeric>

#include "core/base/config_error.h"
#include "core/parallel/context_attention.h"
#include "core/parallel/context_exchange.h"

namespace concord {
namespace {

using at::Tensor;

// Repeats each head of dim |dim| |times| times. The gradient of a head is the sum over its copies.
Tensor repeated_heads(const Tensor& x, int64_t dim, int64_t times) {
  if (times == 1) return x;
  std::vector<int64_t> shape = x.sizes().vec();
  shape.insert(shape.begin() + dim + 1, times);
  return x.unsqueeze(dim + 1).expand(shape).flatten(dim, dim + 1);
}

}  // namespace

void check_ulysses_heads(int64_t heads, int64_t tp, int64_t cp) {
  if (heads % (tp * cp) == 0) return;
  throw ConfigError(fmt::format(
      "cp_comm_type a2a gives each of the {} x {} ranks of tensor and context parallelism attention heads of its own, "
      "but {} heads are not divisible by {}; use cp_comm_type p2p, which does not split heads, or choose sizes whose "
      "product divides them",
      tp, cp, heads, tp * cp));
}

// With cp ranks, k key heads and q query heads, each key head is repeated f = cp / gcd(k, cp) times, so that cp divides
// their number. Query head h uses key head h k / q, and afterwards head h k f / q, which is a copy of the same one. q
// is a multiple of k and of cp, and so of k f, their least common multiple.
Tensor ulysses_attention(const Tensor& q, const Tensor& k, const Tensor& v, ProcessGroup& group,
                         const AttentionOptions& options, std::span<const int64_t> cu_seqlens) {
  const int64_t ranks = group.size();
  if (ranks == 1) return attention(q, k, v, options, cu_seqlens);
  const int64_t tokens = cu_seqlens.empty() ? 1 : 0, heads = tokens + 1;
  check_ulysses_heads(q.size(heads), 1, ranks);
  const std::vector<int64_t> lengths = whole_lengths(q, group, cu_seqlens);
  const int64_t copies = ranks / std::gcd(k.size(heads), ranks), own = q.size(heads) / ranks;
  const auto whole = [&](const Tensor& x) { return tokens_of_own_heads(x, group, lengths, tokens, heads); };
  AttentionOptions of_rank = options;
  of_rank.dropout.head += group.rank() * own;
  if (options.sinks.defined()) of_rank.sinks = options.sinks.narrow(0, group.rank() * own, own);
  const Tensor out = attention(whole(q), whole(repeated_heads(k, heads, copies)),
                               whole(repeated_heads(v, heads, copies)), of_rank, cu_seqlens);
  return heads_of_own_tokens(out, group, lengths, tokens, heads);
}

}  // namespace concord
