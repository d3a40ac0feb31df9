#include "trainer/pair_objective.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>

#include "core/models/token_slices.h"
#include "core/parallel/mappings.h"
#include "trainer/preference_loss.h"

namespace concord {
namespace {

using at::Tensor;

// The rows of |x| [B, S], or its packed sequences.
std::vector<Tensor> sequences(const Tensor& x, const std::vector<int64_t>& packed_lengths) {
  return packed_lengths.empty() ? x.unbind(0) : x.squeeze(0).split_with_sizes(packed_lengths);
}

// Where |labels| are of a completion, which tokens of it weigh how much in its log-probability: 1, and ld_alpha beyond
// the length of the shorter one of the pair (Liu 2024).
std::vector<Tensor> shared_weights(const std::vector<Tensor>& labels, double ld_alpha) {
  std::vector<Tensor> weights;
  const auto count = [&](size_t i) { return labels[i].ne(kIgnoredLabel).sum().item<int64_t>(); };
  for (size_t i = 0; i < labels.size(); ++i) {
    const int64_t shared = std::min(count(i), count(i ^ 1));
    const Tensor is_beyond = labels[i].ne(kIgnoredLabel).cumsum(0).gt(shared);
    weights.push_back(is_beyond.to(at::kFloat) * (ld_alpha - 1) + 1);
  }
  return weights;
}

// 1 for the last token of each sequence, which follows the last that is predicted from; else 0.
std::vector<Tensor> last_token(const std::vector<Tensor>& labels) {
  std::vector<Tensor> weights;
  for (const Tensor& each : labels) {
    Tensor& weight = weights.emplace_back(at::zeros({each.size(0)}, at::kFloat));
    const Tensor counted = each.ne(kIgnoredLabel).nonzero();
    if (counted.numel() == 0) continue;  // padding
    const int64_t last = counted.max().item<int64_t>() + 1;
    weight[std::min(last, each.size(0) - 1)] = 1;
  }
  return weights;
}

OfPairs halves(const Tensor& sequences) {
  const Tensor pairs = sequences.view({-1, 2});
  return {pairs.select(1, 0), pairs.select(1, 1)};
}

}  // namespace

int64_t counted_pairs(const MicroBatch& batch) {
  return std::count_if(batch.pairs.begin(), batch.pairs.end(), [](int64_t pair) { return pair >= 0; });
}

// Padding is what fills up the end.
PairObjective::Layout PairObjective::layout_of(const MicroBatch& batch) const {
  Layout layout{.pairs = counted_pairs(batch), .weights = {}, .lengths = {}, .margins = {}, .pieces = {}};
  const ProcessGroup& cp = job_.group(GroupKind::cp);
  const std::vector<int64_t> packed =
      batch.cu_seqlens.empty() ? std::vector<int64_t>() : concord::sequence_lengths(batch);
  for (const int64_t length : packed) layout.pieces.push_back(length / cp.size());
  const std::vector<Tensor> labels = sequences(batch.labels, packed);
  std::vector<Tensor> lengths;
  for (int64_t i = 0; i < 2 * layout.pairs; ++i) {
    lengths.push_back(labels[static_cast<size_t>(i)].ne(kIgnoredLabel).sum().clamp_min(1));
  }
  layout.lengths = lengths.empty() ? at::zeros({0}) : at::stack(lengths).to(at::kFloat);
  layout.lengths = layout.lengths.to(job_.torch_device());
  std::vector<Tensor> weights;
  if (arguments_.stage == "rm") {
    weights = last_token(labels);
    layout.margins = at::tensor(batch.margins, at::kFloat).narrow(0, 0, layout.pairs).to(job_.torch_device());
  } else if (arguments_.ld_alpha < 1) {
    weights = shared_weights(labels, arguments_.ld_alpha);
  }
  if (weights.empty()) return layout;
  const Tensor all = packed.empty() ? at::stack(weights) : at::cat(weights).unsqueeze(0);
  layout.weights = own_tokens(all, batch, cp).to(job_.torch_device());
  return layout;
}

void PairObjective::begin(std::span<const MicroBatch> batches) {
  layouts_.clear();
  reference_.clear();
  for (const MicroBatch& batch : batches) layouts_.push_back(layout_of(batch));
  sums_ =
      at::zeros({static_cast<int64_t>(names().size()) + 1}, at::TensorOptions(at::kFloat).device(job_.torch_device()));
}

Tensor PairObjective::sequence_sums(const Tensor& tokens, const Layout& layout) const {
  const Tensor weighted = layout.weights.defined() ? tokens * layout.weights : tokens;
  Tensor sums;
  if (layout.pieces.empty()) {
    sums = weighted.sum(1);
  } else {
    std::vector<Tensor> each;
    for (const Tensor& sequence : sequences(weighted, layout.pieces)) each.push_back(sequence.sum());
    sums = at::stack(each);
  }
  return reduce_from_region(sums.narrow(0, 0, 2 * layout.pairs), job_.group(GroupKind::cp));
}

std::vector<Tensor> PairObjective::sequence_logps(std::span<const Tensor> token_losses) const {
  const at::NoGradGuard no_grad;
  std::vector<Tensor> logps;
  for (size_t i = 0; i < token_losses.size(); ++i) logps.push_back(-sequence_sums(token_losses[i], layouts_[i]));
  return logps;
}

StageLoss PairObjective::losses(const Tensor& tokens, int microbatch) {
  const auto index = static_cast<size_t>(microbatch);
  const Layout& layout = layouts_[index];
  const Tensor sums = sequence_sums(tokens, layout);
  const bool is_reward = arguments_.stage == "rm";
  const OfPairs values = halves(is_reward ? sums : -sums);
  const OfPairs reference = arguments_.uses_reference() ? halves(reference_[index]) : OfPairs{};
  const PairLosses result = is_reward ? reward_losses(arguments_, values, layout.margins)
                                      : preference_losses(arguments_, values, reference, halves(layout.lengths));
  const at::NoGradGuard no_grad;
  const auto& [chosen, rejected] = result.rewards;
  std::vector<Tensor> logged = {at::full({}, static_cast<double>(layout.pairs), sums_.options())};
  const Tensor accuracies = chosen.gt(rejected).to(at::kFloat), margins = chosen - rejected;
  if (is_reward) {
    for (const Tensor& each : {accuracies, margins, (chosen + rejected) * 0.5}) logged.push_back(each.sum());
  } else {
    for (const Tensor& each : {chosen, rejected, accuracies, margins, values.chosen, values.rejected}) {
      logged.push_back(each.sum());
    }
  }
  for (Tensor& each : logged) each = each.to(at::kFloat);
  sums_.add_(at::stack(logged));
  return {.differentiated = result.losses, .logged = result.losses.detach() / static_cast<double>(job_.layout().cp())};
}

Tensor PairObjective::sums() const { return sums_; }

std::vector<std::string> PairObjective::names() const {
  if (arguments_.stage == "rm") return {"accuracy", "margin", "mean_reward"};
  return {"rewards/chosen",  "rewards/rejected", "rewards/accuracies",
          "rewards/margins", "logps/chosen",     "logps/rejected"};
}

void PairLog::add(const PairObjective& objective) {
  const at::NoGradGuard no_grad;
  names_ = objective.names();
  sums_ = sums_.defined() ? sums_ + objective.sums() : objective.sums();
}

NamedValues PairLog::take(const std::string& prefix) {
  if (!sums_.defined()) return {};
  // Tensor- and context-parallel ranks have the same sums, all stages but the last have zeros.
  const bool counts = job_.coordinates().tp == 0 && job_.coordinates().cp == 0;
  Tensor sums = counts ? sums_.clone() : at::zeros_like(sums_);
  job_.world_group().all_reduce(sums).wait();
  sums = sums.to(at::kCPU);
  sums_.reset();
  const float* values = sums.const_data_ptr<float>();
  NamedValues metrics;
  if (values[0] == 0) return metrics;
  for (size_t i = 0; i < names_.size(); ++i) {
    metrics.emplace_back(prefix + names_[i], static_cast<double>(values[i + 1]) / static_cast<double>(values[0]));
  }
  return metrics;
}

}  // namespace concord
