// Losses beside their formulas, written with numbers, and their gradients beside differences of these.
#include "trainer/preference_loss.h"

#include <ATen/ops/tensor.h>
#include <gmock/gmock.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <vector>

namespace concord {
namespace {

using Numbers = std::vector<double>;

struct Pairs {
  Numbers chosen = {-12.5, -3.25, -40, -7}, rejected = {-11, -9.5, -38, -30};
  Numbers chosen_ref = {-13, -3.5, -33, -8}, rejected_ref = {-10, -9, -41, -29};
  Numbers chosen_length = {5, 2, 13, 4}, rejected_length = {4, 6, 13, 11};
};

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }
double log_sigmoid(double x) { return std::log(sigmoid(x)); }

// The mean over the pairs, as TRL and LLaMA-Factory compute it.
double formula(const PreferenceArguments& a, const Pairs& p) {
  const size_t pairs = p.chosen.size();
  const auto ratio = [&](const Numbers& own, const Numbers& ref, size_t i) {
    return own[i] - (a.reference_free ? 0 : ref[i]);
  };
  double chosen_kl = 0, rejected_kl = 0;
  for (size_t i = 0; i < pairs; ++i) {
    chosen_kl += ratio(p.chosen, p.chosen_ref, i) / static_cast<double>(pairs);
    rejected_kl += ratio(p.rejected, p.rejected_ref, i) / static_cast<double>(pairs);
  }
  chosen_kl = std::max(chosen_kl, 0.0);
  rejected_kl = std::max(rejected_kl, 0.0);
  const double b = a.beta, e = a.label_smoothing;
  double sum = 0;
  for (size_t i = 0; i < pairs; ++i) {
    const double c = ratio(p.chosen, p.chosen_ref, i), j = ratio(p.rejected, p.rejected_ref, i);
    const double c_mean = p.chosen[i] / p.chosen_length[i], j_mean = p.rejected[i] / p.rejected_length[i];
    const auto odds = [](double log_p) { return std::log(std::exp(log_p) / (1 - std::exp(log_p))); };
    double loss = 0;
    if (a.loss == "sigmoid") loss = -log_sigmoid(b * (c - j)) * (1 - e) - log_sigmoid(-b * (c - j)) * e;
    if (a.loss == "hinge") loss = std::max(0.0, 1 - b * (c - j));
    if (a.loss == "ipo") loss = std::pow(c / p.chosen_length[i] - j / p.rejected_length[i] - 1 / (2 * b), 2);
    if (a.loss == "robust") {
      loss = (-log_sigmoid(b * (c - j)) * (1 - e) + log_sigmoid(-b * (c - j)) * e) / (1 - 2 * e);
    }
    if (a.loss == "kto_pair") loss = (1 - sigmoid(b * (c - rejected_kl)) + 1 - sigmoid(b * (chosen_kl - j))) / 2;
    if (a.loss == "orpo") loss = -c_mean - b * log_sigmoid(odds(c_mean) - odds(j_mean));
    if (a.loss == "simpo") loss = -log_sigmoid(b * (c_mean - j_mean) - a.simpo_gamma);
    sum += loss - a.ftx * c_mean;
  }
  return sum / static_cast<double>(pairs);
}

std::vector<PreferenceArguments> all_kinds() {
  std::vector<PreferenceArguments> kinds;
  for (const char* loss : {"sigmoid", "hinge", "ipo", "robust", "kto_pair", "orpo", "simpo"}) {
    PreferenceArguments& plain = kinds.emplace_back();
    plain.stage = "dpo";
    plain.loss = loss;
    plain.beta = 0.15;
    PreferenceArguments more = plain;
    more.ftx = 0.7;
    more.reference_free = true;
    more.simpo_gamma = 1.5;
    if (more.loss == "sigmoid" || more.loss == "robust") more.label_smoothing = 0.1;
    kinds.push_back(more);
  }
  return kinds;
}

at::Tensor tensor(const Numbers& numbers) { return at::tensor(numbers, at::kDouble); }

// |number|, and what it grows by with each of |at|.
Numbers differences(Numbers* at, const std::function<double()>& number) {
  constexpr double kStep = 1e-5;
  Numbers slopes;
  for (double& value : *at) {
    const double before = value;
    value = before + kStep;
    const double above = number();
    value = before - kStep;
    slopes.push_back((above - number()) / (2 * kStep));
    value = before;
  }
  return slopes;
}

void expect_near(const at::Tensor& found, const Numbers& wanted, double bound) {
  for (size_t i = 0; i < wanted.size(); ++i) {
    EXPECT_NEAR(found[static_cast<int64_t>(i)].item<double>(), wanted[i], bound) << i;
  }
}

TEST(PreferenceLoss, EveryLossAndItsGradientIsThatOfItsFormula) {
  for (const PreferenceArguments& a : all_kinds()) {
    SCOPED_TRACE(a.loss + (a.ftx > 0 ? ", with more" : ""));
    Pairs p;
    const OfPairs policy{tensor(p.chosen).requires_grad_(), tensor(p.rejected).requires_grad_()};
    const PairLosses result = preference_losses(a, policy, {tensor(p.chosen_ref), tensor(p.rejected_ref)},
                                                {tensor(p.chosen_length), tensor(p.rejected_length)}, at::kDouble);
    const at::Tensor mean = result.losses.mean();
    EXPECT_NEAR(mean.item<double>(), formula(a, p), 1e-12);
    torch::autograd::backward({mean}, {});
    const auto number = [&] { return formula(a, p); };
    expect_near(policy.chosen.grad(), differences(&p.chosen, number), 1e-8);
    expect_near(policy.rejected.grad(), differences(&p.rejected, number), 1e-8);
  }
}

TEST(PreferenceLoss, RewardsAreOfWhatTheLossIsOf) {
  const Pairs p;
  PreferenceArguments a;
  a.stage = "dpo";
  const auto rewards = [&] {
    return preference_losses(a, {tensor(p.chosen), tensor(p.rejected)}, {tensor(p.chosen_ref), tensor(p.rejected_ref)},
                             {tensor(p.chosen_length), tensor(p.rejected_length)}, at::kDouble)
        .rewards;
  };
  EXPECT_NEAR(rewards().chosen[0].item<double>(), 0.1 * (-12.5 + 13), 1e-12);
  EXPECT_NEAR(rewards().rejected[1].item<double>(), 0.1 * (-9.5 + 9), 1e-12);
  a.reference_free = true;
  EXPECT_NEAR(rewards().chosen[0].item<double>(), 0.1 * -12.5, 1e-12);
  a.reference_free = false;
  a.loss = "simpo";
  EXPECT_NEAR(rewards().chosen[0].item<double>(), 0.1 * -12.5 / 5, 1e-12);
}

TEST(PreferenceLoss, ARewardModelsLossHasMarginsAndCenters) {
  PreferenceArguments a;
  a.stage = "rm";
  a.center_rewards_coefficient = 0.01;
  const OfPairs scores{tensor({1.5, -2}), tensor({0.5, 3})};
  const PairLosses result = reward_losses(a, scores, tensor({0.25, 1}));
  expect_near(result.losses, {-log_sigmoid(1 - 0.25) + 0.01 * 4, -log_sigmoid(-5.0 - 1) + 0.01}, 1e-12);
  expect_near(reward_losses(a, scores).losses, {-log_sigmoid(1.0) + 0.01 * 4, -log_sigmoid(-5.0) + 0.01}, 1e-12);
}

}  // namespace
}  // namespace concord
