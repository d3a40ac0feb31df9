#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>

#include "core/base/config_error.h"
#include "core/parallel/context_attention.h"
#include "core/parallel/context_exchange.h"
#include "core/parallel/context_slices.h"
#include "core/parallel/mappings.h"

namespace concord {
namespace {

using at::Tensor;

// Returns the tokens of all ranks in sequence order, along dim |dim|.
Tensor gather_tokens(const Tensor& x, ProcessGroup& group, std::span<const int64_t> lengths, int64_t dim) {
  return in_order_of_tokens(gather_into_region(x, group, dim), group.size(), lengths, dim);
}

}  // namespace

std::vector<int64_t> whole_lengths(const Tensor& q, const ProcessGroup& group, std::span<const int64_t> cu_seqlens) {
  if (cu_seqlens.empty()) return {q.size(1) * group.size()};
  check_cu_seqlens("context parallel attention", cu_seqlens, q.size(0) * group.size());
  std::vector<int64_t> lengths;
  for (size_t i = 1; i < cu_seqlens.size(); ++i) lengths.push_back(cu_seqlens[i] - cu_seqlens[i - 1]);
  return lengths;
}

Tensor take_context_slices(const Tensor& x, std::span<const int64_t> lengths, int64_t dim, const ProcessGroup& group) {
  if (group.size() == 1) return x;
  std::vector<Tensor> parts;
  for (const TokenRun& run : context_slices(lengths, group.size(), group.rank())) {
    parts.push_back(x.narrow(dim, run.begin, run.count));
  }
  return at::cat(parts, dim);
}

// Each of the rank's runs of queries attends to its sequence's keys up to its own last token, which is what attention
// does with fewer queries than keys.
//
// Shapes in names: b batch, s this rank's tokens, t those of all ranks, q, k query and key heads, n the size of a head.
Tensor gathered_attention(const Tensor& q, const Tensor& k, const Tensor& v, ProcessGroup& group,
                          const AttentionOptions& options, std::span<const int64_t> cu_seqlens) {
  if (group.size() == 1) return attention(q, k, v, options, cu_seqlens);
  if (!options.causal) {
    throw ConfigError(
        "attention over a context-parallel group supports only causal = true; use context_parallel_size 1");
  }
  const bool packed = !cu_seqlens.empty();
  const auto rows = [packed](const Tensor& x) { return packed ? x.unsqueeze(0) : x; };
  const std::vector<int64_t> lengths = whole_lengths(q, group, cu_seqlens);
  const Tensor keys_btkn = gather_tokens(rows(k), group, lengths, 1);
  const Tensor values_btkn = gather_tokens(rows(v), group, lengths, 1);
  const std::vector<TokenRun> runs = context_slices(lengths, group.size(), group.rank());
  std::vector<Tensor> parts;
  int64_t query = 0;
  for (size_t i = 0; i < runs.size(); ++i) {
    const int64_t first = packed ? cu_seqlens[i / 2] : 0;  // two runs per sequence
    const int64_t seen = runs[i].begin + runs[i].count - first;
    AttentionOptions of_run = options;
    of_run.dropout.query += runs[i].begin;
    of_run.dropout.token += first;
    parts.push_back(attention(rows(q).narrow(1, query, runs[i].count), keys_btkn.narrow(1, first, seen),
                              values_btkn.narrow(1, first, seen), of_run));
    query += runs[i].count;
  }
  const Tensor out_bsqn = at::cat(parts, 1);
  return packed ? out_bsqn.squeeze(0) : out_bsqn;
}

}  // namespace concord
