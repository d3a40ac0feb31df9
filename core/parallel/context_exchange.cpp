#include "core/parallel/context_exchange.h"

#include <ATen/ops/cat.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "core/parallel/context_slices.h"
#include "core/parallel/mappings.h"

namespace concord {
namespace {

using at::Tensor;

// The runs of tokens of all ranks, concatenated by rank, and their indices in sequence order.
struct RunsOfRanks {
  std::vector<TokenRun> runs;
  std::vector<size_t> in_order;
};

RunsOfRanks runs_of_ranks(std::span<const int64_t> lengths, int64_t ranks) {
  RunsOfRanks all;
  for (int64_t rank = 0; rank < ranks; ++rank) {
    for (const TokenRun& run : context_slices(lengths, ranks, rank)) all.runs.push_back(run);
  }
  all.in_order.resize(all.runs.size());
  std::iota(all.in_order.begin(), all.in_order.end(), size_t{0});
  std::sort(all.in_order.begin(), all.in_order.end(),
            [&](size_t a, size_t b) { return all.runs[a].begin < all.runs[b].begin; });
  return all;
}

Tensor in_order_of_ranks(const Tensor& x, int64_t ranks, std::span<const int64_t> lengths, int64_t dim) {
  const RunsOfRanks all = runs_of_ranks(lengths, ranks);
  std::vector<int64_t> sizes;
  for (const size_t number : all.in_order) sizes.push_back(all.runs[number].count);
  const std::vector<Tensor> parts = x.split_with_sizes(sizes, dim);
  std::vector<Tensor> ordered(parts.size());
  for (size_t i = 0; i < parts.size(); ++i) ordered[all.in_order[i]] = parts[i];
  return at::cat(ordered, dim);
}

}  // namespace

Tensor in_order_of_tokens(const Tensor& x, int64_t ranks, std::span<const int64_t> lengths, int64_t dim) {
  const RunsOfRanks all = runs_of_ranks(lengths, ranks);
  std::vector<int64_t> sizes;
  for (const TokenRun& run : all.runs) sizes.push_back(run.count);
  const std::vector<Tensor> parts = x.split_with_sizes(sizes, dim);
  std::vector<Tensor> ordered;
  for (const size_t number : all.in_order) ordered.push_back(parts[number]);
  return at::cat(ordered, dim);
}

Tensor tokens_of_own_heads(const Tensor& x, ProcessGroup& group, std::span<const int64_t> lengths, int64_t tokens,
                           int64_t heads) {
  if (group.size() == 1) return x;
  return in_order_of_tokens(exchange_in_region(x, group, heads, tokens), group.size(), lengths, tokens);
}

Tensor heads_of_own_tokens(const Tensor& x, ProcessGroup& group, std::span<const int64_t> lengths, int64_t tokens,
                           int64_t heads) {
  if (group.size() == 1) return x;
  return exchange_in_region(in_order_of_ranks(x, group.size(), lengths, tokens), group, tokens, heads);
}

}  // namespace concord
