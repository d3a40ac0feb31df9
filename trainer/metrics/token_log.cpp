#include "trainer/metrics/token_log.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <fmt/format.h>

namespace concord {
namespace {

using at::Tensor;

// Indices of the sums. Without pairs all tokens count as chosen.
namespace sum {
enum { tokens, entropy, chosen, chosen_first, chosen_logits, rejected, rejected_logits, kCount };
}

Tensor sums_of(const TokenStatistics& of, const Tensor& pair_labels) {
  const Tensor is_chosen = of.counts * pair_labels.clamp_min(0), is_rejected = of.counts * (-pair_labels).clamp_min(0);
  const Tensor counts = is_chosen + is_rejected;
  std::vector<Tensor> sums(sum::kCount);
  sums[sum::tokens] = counts;
  sums[sum::entropy] = of.entropy * counts;
  sums[sum::chosen] = is_chosen;
  sums[sum::chosen_first] = of.is_first * is_chosen;
  sums[sum::chosen_logits] = of.mean_logit * is_chosen;
  sums[sum::rejected] = is_rejected;
  sums[sum::rejected_logits] = of.mean_logit * is_rejected;
  for (Tensor& each : sums) each = each.sum();
  return at::stack(sums);
}

}  // namespace

void TokenLog::add(const ModelStage& last, const PairObjective* pairs) {
  if (!is_on_) return;
  const at::NoGradGuard no_grad;
  has_pairs_ = pairs != nullptr;
  if (!sums_.defined()) sums_ = at::zeros({sum::kCount}, at::TensorOptions(at::kFloat).device(job_.torch_device()));
  const std::vector<TokenStatistics>& runs = last.token_statistics();
  for (size_t i = 0; i < runs.size(); ++i) {
    if (!runs[i].counts.defined()) continue;  // a forward step that does not run the chunk
    sums_ = sums_ + sums_of(runs[i], pairs != nullptr ? pairs->pair_labels(i) : at::ones_like(runs[i].counts));
  }
}

NamedValues TokenLog::take(const std::string& prefix) {
  if (!sums_.defined()) return {};
  // Tensor-parallel ranks hold the same sums, all stages except the last hold zeros.
  Tensor sums = job_.coordinates().tp == 0 ? sums_.clone() : at::zeros_like(sums_);
  job_.world_group().all_reduce(sums).wait();
  sums = sums.to(at::kCPU, at::kDouble);
  sums_.reset();
  const double* of = sums.const_data_ptr<double>();
  NamedValues metrics;
  if (of[sum::tokens] == 0) return metrics;
  metrics.emplace_back(prefix + "entropy", of[sum::entropy] / of[sum::tokens]);
  if (of[sum::chosen] > 0)
    metrics.emplace_back(prefix + "mean_token_accuracy", of[sum::chosen_first] / of[sum::chosen]);
  if (!has_pairs_) return metrics;
  if (of[sum::chosen] > 0) metrics.emplace_back(prefix + "logits/chosen", of[sum::chosen_logits] / of[sum::chosen]);
  if (of[sum::rejected] > 0)
    metrics.emplace_back(prefix + "logits/rejected", of[sum::rejected_logits] / of[sum::rejected]);
  return metrics;
}

void MtpLossLog::add(const ModelStage& last) {
  if (depths_ == 0) return;
  const at::NoGradGuard no_grad;
  if (!sums_.defined()) sums_ = at::zeros({depths_, 2}, at::TensorOptions(at::kFloat).device(job_.torch_device()));
  if (last.mtp_losses().defined()) sums_ = sums_ + last.mtp_losses();
}

NamedValues MtpLossLog::take() {
  if (!sums_.defined()) return {};
  // All stages except the last hold zeros. Tensor-parallel ranks hold the same sums, which does not change the
  // quotient.
  job_.world_group().all_reduce(sums_).wait();
  const Tensor sums = sums_.to(at::kCPU, at::kDouble);
  sums_.reset();
  NamedValues metrics;
  for (int64_t i = 0; i < depths_; ++i) {
    const double* of = sums.const_data_ptr<double>() + 2 * i;
    if (of[1] > 0) metrics.emplace_back(fmt::format("mtp_{}_loss", i + 1), of[0] / of[1]);
  }
  return metrics;
}

}  // namespace concord
