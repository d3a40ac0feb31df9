#include "core/models/layers/loss_chunks.h"

#include <ATen/ops/cat.h>

#include <algorithm>

namespace concord {

using at::Tensor;

LossChunks::LossChunks(const Tensor& normed_pbh, const Tensor& labels_sb, int64_t tokens, int64_t ranks)
    : rows_(labels_sb.size(1)), ranks_(ranks) {
  const int64_t positions = std::max<int64_t>(1, tokens / (ranks * rows_));
  const Tensor labels_rpb = labels_sb.view({ranks, normed_pbh.size(0), rows_});
  const std::vector<Tensor> labels = labels_rpb.split(positions, 1);
  const std::vector<Tensor> normed = normed_pbh.split(positions, 0);  // one node of autograd, which joins the gradients
  for (size_t i = 0; i < normed.size(); ++i) chunks_.push_back({normed[i], labels[i].reshape({-1, rows_})});
}

Tensor LossChunks::joined(const std::vector<Tensor>& parts) const {
  std::vector<Tensor> by_rank;
  for (const Tensor& part : parts) by_rank.push_back(part.view({rows_, ranks_, -1}));
  return at::cat(by_rank, 2).view({rows_, -1});
}

TokenStatistics LossChunks::joined(const std::vector<TokenStatistics>& parts) const {
  const auto all = [&](Tensor TokenStatistics::* field) {
    std::vector<Tensor> list;
    for (const TokenStatistics& part : parts) list.push_back(part.*field);
    return joined(list);
  };
  return {.counts = all(&TokenStatistics::counts),
          .entropy = all(&TokenStatistics::entropy),
          .mean_logit = all(&TokenStatistics::mean_logit),
          .is_first = all(&TokenStatistics::is_first)};
}

}  // namespace concord
