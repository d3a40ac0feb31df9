#include "trainer/evaluation/argmax_predictions.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <fmt/core.h>

#include <algorithm>
#include <limits>
#include <tuple>
#include <utility>

#include "core/base/config_error.h"

namespace concord {

at::Tensor vocab_parallel_argmax(const at::Tensor& logits_sbv, int64_t vocabulary, ProcessGroup& tp) {
  const int64_t columns = logits_sbv.size(-1), first = tp.rank() * columns;
  const int64_t tokens = std::clamp<int64_t>(vocabulary - first, 0, columns);
  at::Tensor value_sb, index_sb;
  if (tokens > 0) {
    std::tie(value_sb, index_sb) = logits_sbv.narrow(-1, 0, tokens).max(-1);
  } else {  // only padding
    value_sb = at::full({logits_sbv.size(0), logits_sbv.size(1)}, -std::numeric_limits<double>::infinity(),
                        logits_sbv.options());
    index_sb = at::zeros_like(value_sb, at::kLong);
  }
  index_sb = index_sb + first;
  if (tp.size() == 1) return index_sb;
  const auto all_ranks = [&](const at::Tensor& own) {
    std::vector<int64_t> shape = own.sizes().vec();
    shape.insert(shape.begin(), tp.size());
    const at::Tensor all = at::empty(shape, own.options());
    tp.all_gather(all, own.contiguous()).wait();
    return all;
  };
  const at::Tensor best_1sb = all_ranks(value_sb.to(at::kFloat)).argmax(0, /*keepdim=*/true);
  return all_ranks(index_sb).gather(0, best_1sb).squeeze(0);
}

Observer ArgmaxPredictions::observer() {
  return [this](const std::string& part, const at::Tensor& output) {
    if (part == "logits") predicted_.push_back(vocab_parallel_argmax(output, vocabulary_, tp_));
  };
}

std::vector<at::Tensor> ArgmaxPredictions::take(size_t batches) {
  if (predicted_.size() != batches) {
    throw ConfigError(
        fmt::format("{} of {} micro-batches had logits; a forward step of your own has to run the model's forward once "
                    "per micro-batch for compute_accuracy, compute_metrics and do_predict",
                    predicted_.size(), batches));
  }
  return std::exchange(predicted_, {});
}

at::Tensor count_right(const ModelChunk& chunk, std::span<const MicroBatch> batches,
                       std::span<const at::Tensor> predicted) {
  at::Tensor right;
  for (size_t i = 0; i < batches.size(); ++i) {
    const at::Tensor labels_sb = chunk.own_tokens(batches[i].labels, batches[i]).t().to(predicted[i].device());
    const at::Tensor count = predicted[i].eq(labels_sb).sum();
    right = right.defined() ? right + count : count;
  }
  return right.to(at::kFloat);
}

}  // namespace concord
