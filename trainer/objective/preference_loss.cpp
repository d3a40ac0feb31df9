#include "trainer/objective/preference_loss.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/log1p.h>
#include <ATen/ops/log_sigmoid.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/sigmoid.h>

namespace concord {
namespace {

using at::Tensor;

struct Terms {
  const PreferenceArguments& arguments;
  PairTensors ratios;        // c - c_ref, j - j_ref
  PairTensors ratio_means;   // means of |ratios| over tokens
  PairTensors policy_means;  // c', j'

  double beta() const { return arguments.beta; }
  double smoothing() const { return arguments.label_smoothing; }
  Tensor margin() const { return (ratios.chosen - ratios.rejected) * beta(); }
};

Tensor sigmoid_loss(const Terms& t) {
  const Tensor margin = t.margin();
  const Tensor loss = at::log_sigmoid(margin) * (t.smoothing() - 1);
  return t.smoothing() == 0 ? loss : loss - at::log_sigmoid(-margin) * t.smoothing();
}

Tensor hinge_loss(const Terms& t) { return at::relu(1 - t.margin()); }

Tensor ipo_loss(const Terms& t) {
  return (t.ratio_means.chosen - t.ratio_means.rejected - 1 / (2 * t.beta())).square();
}

Tensor robust_loss(const Terms& t) {
  const Tensor margin = t.margin();
  return (at::log_sigmoid(margin) * (t.smoothing() - 1) + at::log_sigmoid(-margin) * t.smoothing()) /
         (1 - 2 * t.smoothing());
}

// As trl 0.8: the gradient of the means counts.
Tensor kto_pair_loss(const Terms& t) {
  const auto& [chosen, rejected] = t.ratios;
  const Tensor chosen_mean = chosen.mean().clamp_min(0), rejected_mean = rejected.mean().clamp_min(0);
  return 1 -
         (at::sigmoid((chosen - rejected_mean) * t.beta()) + at::sigmoid((chosen_mean - rejected) * t.beta())) * 0.5;
}

Tensor orpo_loss(const Terms& t) {
  const auto& [chosen, rejected] = t.policy_means;
  const Tensor log_odds = chosen - rejected - (at::log1p(-at::exp(chosen)) - at::log1p(-at::exp(rejected)));
  return -chosen - at::log_sigmoid(log_odds) * t.beta();
}

Tensor simpo_loss(const Terms& t) {
  return -at::log_sigmoid((t.policy_means.chosen - t.policy_means.rejected) * t.beta() - t.arguments.simpo_gamma);
}

Tensor losses_of(const Terms& terms) {
  constexpr Tensor (*kLosses[])(const Terms&) = {sigmoid_loss,  hinge_loss, ipo_loss,  robust_loss,
                                                 kto_pair_loss, orpo_loss,  simpo_loss};  // as in PreferenceLoss
  const Tensor losses = kLosses[static_cast<size_t>(terms.arguments.loss)](terms);
  return terms.arguments.ftx == 0 ? losses : losses - terms.policy_means.chosen * terms.arguments.ftx;
}

}  // namespace

PairTensors token_means(const PairTensors& sums, const PairTensors& lengths) {
  return {sums.chosen / lengths.chosen, sums.rejected / lengths.rejected};
}

PairLosses preference_losses(const PreferenceArguments& a, const PairTensors& policy, const PairTensors& reference,
                             const PairTensors& lengths, at::ScalarType as) {
  const auto typed = [as](const PairTensors& x) { return PairTensors{x.chosen.to(as), x.rejected.to(as)}; };
  PairTensors ratios = policy;
  if (a.uses_reference()) ratios = {policy.chosen - reference.chosen, policy.rejected - reference.rejected};
  const Terms terms{a, typed(ratios), typed(token_means(ratios, lengths)), typed(token_means(policy, lengths))};
  const PairTensors& rewarded = a.uses_average_logps() ? terms.policy_means : terms.ratios;
  return {losses_of(terms), {rewarded.chosen.detach() * a.beta, rewarded.rejected.detach() * a.beta}};
}

PairLosses reward_losses(const PreferenceArguments& a, const PairTensors& scores, const Tensor& margins) {
  const Tensor difference = scores.chosen - scores.rejected;
  Tensor losses = -at::log_sigmoid(margins.defined() ? difference - margins : difference);
  if (a.center_rewards_coefficient > 0) {
    losses = losses + (scores.chosen + scores.rejected).square() * a.center_rewards_coefficient;
  }
  return {losses, {scores.chosen.detach(), scores.rejected.detach()}};
}

}  // namespace concord
