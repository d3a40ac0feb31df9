#include "trainer/objective/pair_objective.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <limits>

#include "core/models/token_slices.h"
#include "core/parallel/mappings.h"
#include "trainer/objective/preference_loss.h"

namespace concord {
namespace {

using at::Tensor;

constexpr size_t kMaxRewardMinMax = 1000;  // a run that never logs must not accumulate them without bound

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

// Returns the fp64 sum of |x| over |group|. Not every vendor reduces fp64, so |x| is split into multiples of 1 / 128,
// whose fp32 sums are exact below 2^17, and small remainders, whose rounding errors are negligible.
Tensor exact_sum(const Tensor& x, ProcessGroup& group) {
  if (group.size() == 1) return x;
  const Tensor coarse = x.detach().mul(128).round().div(128);
  const Tensor parts = at::stack({coarse, x - coarse}).to(at::kFloat);
  return reduce_from_region(parts, group).to(at::kDouble).sum(0);
}

PairTensors halves(const Tensor& sequences) {
  const Tensor pairs = sequences.view({-1, 2});
  return {pairs.select(1, 0), pairs.select(1, 1)};
}

}  // namespace

int64_t counted_pairs(const MicroBatch& batch) {
  return std::count_if(batch.pairs.begin(), batch.pairs.end(), [](int64_t pair) { return pair >= 0; });
}

// Padding is what fills up the end.
PairObjective::Layout PairObjective::layout_of(const MicroBatch& batch) const {
  Layout layout{
      .pairs = counted_pairs(batch), .weights = {}, .lengths = {}, .pair_labels = {}, .margins = {}, .pieces = {}};
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
  const auto of_own_tokens = [&](const std::vector<Tensor>& all) {
    const Tensor whole = packed.empty() ? at::stack(all) : at::cat(all).unsqueeze(0);
    return own_tokens(whole, batch, cp).to(job_.torch_device());
  };
  std::vector<Tensor> pair_labels;
  for (size_t i = 0; i < labels.size(); ++i) {
    const bool counts = static_cast<int64_t>(i) < 2 * layout.pairs;
    pair_labels.push_back(at::full({labels[i].size(0)}, !counts ? 0.0 : i % 2 == 0 ? 1.0 : -1.0, at::kFloat));
  }
  layout.pair_labels = of_own_tokens(pair_labels);
  std::vector<Tensor> weights;
  if (arguments_.stage == TrainingStage::rm) {
    weights = last_token(labels);
    layout.margins = at::tensor(batch.margins, at::kFloat).narrow(0, 0, layout.pairs).to(job_.torch_device());
  } else if (arguments_.ld_alpha < 1) {
    weights = shared_weights(labels, arguments_.ld_alpha);
  }
  if (!weights.empty()) layout.weights = of_own_tokens(weights);
  return layout;
}

void PairObjective::begin(std::span<const MicroBatch> batches) {
  layouts_.clear();
  reference_.clear();
  for (const MicroBatch& batch : batches) layouts_.push_back(layout_of(batch));
  reward_min_max_.reset();
  sums_ =
      at::zeros({static_cast<int64_t>(names().size()) + 1}, at::TensorOptions(at::kFloat).device(job_.torch_device()));
}

Tensor PairObjective::sequence_sums(const Tensor& tokens, const Layout& layout) const {
  const Tensor wide = tokens.to(at::kDouble), weighted = layout.weights.defined() ? wide * layout.weights : wide;
  Tensor sums;
  if (layout.pieces.empty()) {
    sums = weighted.sum(1);
  } else {
    std::vector<Tensor> each;
    for (const Tensor& sequence : sequences(weighted, layout.pieces)) each.push_back(sequence.sum());
    sums = at::stack(each);
  }
  return exact_sum(sums.narrow(0, 0, 2 * layout.pairs), job_.group(GroupKind::cp));
}

std::vector<Tensor> PairObjective::sequence_logps(std::span<const Tensor> token_losses) const {
  const at::NoGradGuard no_grad;
  std::vector<Tensor> logps;
  for (size_t i = 0; i < token_losses.size(); ++i) logps.push_back(sequence_sums(token_losses[i], layouts_[i]).mul(-1));
  return logps;
}

StageLoss PairObjective::losses(const Tensor& tokens, int microbatch) {
  const auto index = static_cast<size_t>(microbatch);
  const Layout& layout = layouts_[index];
  const Tensor sums = sequence_sums(tokens, layout);
  const bool is_reward = arguments_.stage == TrainingStage::rm;
  const PairTensors values = halves(is_reward ? sums.to(at::kFloat) : sums.mul(-1));
  const PairTensors reference = arguments_.uses_reference() ? halves(reference_[index]) : PairTensors{};  // fp64 too
  const PairLosses result = is_reward
                                ? reward_losses(arguments_, values, layout.margins)
                                : preference_losses(arguments_, values, reference, halves(layout.lengths), at::kFloat);
  const at::NoGradGuard no_grad;
  const auto& [chosen, rejected] = result.rewards;
  std::vector<Tensor> logged = {at::full({}, static_cast<double>(layout.pairs), sums_.options())};
  const Tensor accuracies = chosen.gt(rejected).to(at::kFloat), margins = chosen - rejected;
  if (is_reward) {
    for (const Tensor& each : {accuracies, margins, (chosen + rejected) * 0.5}) logged.push_back(each.sum());
    if (layout.pairs > 0) add_reward_min_max(sums.detach().to(at::kFloat));
  } else {
    // As TRL and LLaMA-Factory: the log-probabilities that the loss is of.
    const PairTensors logps = arguments_.uses_average_logps() ? token_means(values, halves(layout.lengths)) : values;
    for (const Tensor& each : {chosen, rejected, accuracies, margins, logps.chosen, logps.rejected}) {
      logged.push_back(each.sum());
    }
  }
  for (Tensor& each : logged) each = each.to(at::kFloat);
  sums_.add_(at::stack(logged));
  const Tensor losses = result.losses.detach().to(at::kFloat);
  return {.differentiated = result.losses, .logged = losses / static_cast<double>(job_.layout().cp())};
}

void PairObjective::add_reward_min_max(const Tensor& rewards) {
  const Tensor found = at::stack({-rewards.min(), rewards.max()});
  reward_min_max_ = reward_min_max_.defined() ? at::maximum(reward_min_max_, found) : found;
}

Tensor PairObjective::sums() const { return sums_; }

std::vector<std::string> PairObjective::names() const {
  if (arguments_.stage == TrainingStage::rm) return {"accuracy", "margin", "mean_reward"};
  return {"rewards/chosen",  "rewards/rejected", "rewards/accuracies",
          "rewards/margins", "logps/chosen",     "logps/rejected"};
}

void PairLog::add(const PairObjective& objective) {
  const at::NoGradGuard no_grad;
  names_ = objective.names();
  sums_ = sums_.defined() ? sums_ + objective.sums() : objective.sums();
  if (!objective.has_reward_min_max()) return;
  const Tensor own = objective.reward_min_max();
  reward_min_max_.push_back(own.defined() ? own
                                          : at::full({2}, -std::numeric_limits<double>::infinity(), sums_.options()));
  if (reward_min_max_.size() >= kMaxRewardMinMax) collect_reward_min_max();
}

void PairLog::collect_reward_min_max() {
  if (reward_min_max_.empty()) return;
  const Tensor all = at::stack(reward_min_max_);
  job_.world_group().all_reduce(all, ReduceOp::kMax).wait();
  const Tensor sums = all.to(at::kCPU, at::kDouble).sum(0);
  smallest_ -= sums[0].item<double>();
  largest_ += sums[1].item<double>();
  runs_ += static_cast<int64_t>(reward_min_max_.size());
  reward_min_max_.clear();
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
  collect_reward_min_max();
  NamedValues metrics;
  if (values[0] == 0) return metrics;
  for (size_t i = 0; i < names_.size(); ++i) {
    metrics.emplace_back(prefix + names_[i], static_cast<double>(values[i + 1]) / static_cast<double>(values[0]));
  }
  if (runs_ > 0) {
    metrics.emplace_back(prefix + "min_reward", smallest_ / static_cast<double>(runs_));
    metrics.emplace_back(prefix + "max_reward", largest_ / static_cast<double>(runs_));
  }
  smallest_ = largest_ = 0;
  runs_ = 0;
  return metrics;
}

}  // namespace concord
