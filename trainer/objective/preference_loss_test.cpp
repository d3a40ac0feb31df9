// Losses of pairs, their gradients and rewards against golden/preferences, which TRL and LLaMA-Factory computed.
#include "trainer/objective/preference_loss.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <vector>

namespace concord {
namespace {

using nlohmann::json;
using Numbers = std::vector<double>;

struct Pairs {
  Numbers chosen = {-12.5, -3.25, -40, -7}, rejected = {-11, -9.5, -38, -30};
  Numbers chosen_ref = {-13, -3.5, -33, -8}, rejected_ref = {-10, -9, -41, -29};
  Numbers chosen_length = {5, 2, 13, 4}, rejected_length = {4, 6, 13, 11};
};

double log_sigmoid(double x) { return std::log(1 / (1 + std::exp(-x))); }

at::Tensor tensor(const Numbers& numbers) { return at::tensor(numbers, at::kDouble); }

void expect_near(const at::Tensor& found, const Numbers& wanted, double bound) {
  for (size_t i = 0; i < wanted.size(); ++i) {
    EXPECT_NEAR(found[static_cast<int64_t>(i)].item<double>(), wanted[i], bound) << i;
  }
}

json golden_cases() {
  std::ifstream file(CONCORD_GOLDEN "/preferences/losses.json");
  return json::parse(file)["cases"];
}

PreferenceArguments arguments_of(const json& settings) {
  PreferenceArguments a;
  a.stage = TrainingStage::dpo;
  a.loss = parse_enum<PreferenceLoss>("pref_loss", settings["pref_loss"].get<std::string>());
  a.beta = settings["pref_beta"];
  a.ftx = settings.value("pref_ftx", a.ftx);
  a.label_smoothing = settings.value("dpo_label_smoothing", a.label_smoothing);
  a.simpo_gamma = settings.value("simpo_gamma", a.simpo_gamma);
  a.reference_free = settings.value("reference_free", false);
  return a;
}

PairTensors pairs_of(const json& both) {
  return {tensor(both["chosen"].get<Numbers>()), tensor(both["rejected"].get<Numbers>())};
}

// In fp64: some 30 operations on numbers up to 120, each rounded by 1.1e-16 of it, are within 4e-13.
TEST(PreferenceLoss, EveryLossAndItsGradientIsThatOfTrlOrLlamaFactory) {
  const json cases = golden_cases();
  ASSERT_EQ(cases.size(), 30U);
  for (const json& each : cases) {
    SCOPED_TRACE(each["settings"].dump());
    const PairTensors policy = pairs_of(each["logps"]);
    policy.chosen.requires_grad_();
    policy.rejected.requires_grad_();
    const PairLosses result =
        preference_losses(arguments_of(each["settings"]), policy, pairs_of(each["reference_logps"]),
                          pairs_of(each["lengths"]), at::kDouble);
    const at::Tensor mean = result.losses.mean();
    EXPECT_NEAR(mean.item<double>(), each["loss"].get<double>(), 1e-12);
    torch::autograd::backward({mean}, {});
    expect_near(policy.chosen.grad(), each["gradients"]["chosen"], 1e-12);
    expect_near(policy.rejected.grad(), each["gradients"]["rejected"], 1e-12);
    expect_near(result.rewards.chosen, each["rewards"]["chosen"], 1e-12);
    expect_near(result.rewards.rejected, each["rewards"]["rejected"], 1e-12);
  }
}

// Combinations that neither TRL nor LLaMA-Factory can compute.
TEST(PreferenceLoss, FtxAndReferenceFreeMeanTheSameForEveryLoss) {
  const Pairs p;
  const PairTensors policy{tensor(p.chosen), tensor(p.rejected)},
      reference{tensor(p.chosen_ref), tensor(p.rejected_ref)};
  const PairTensors lengths{tensor(p.chosen_length), tensor(p.rejected_length)}, zeros{at::zeros(4), at::zeros(4)};
  for (const std::string_view loss : kEnumNames<PreferenceLoss>) {
    SCOPED_TRACE(loss);
    PreferenceArguments plain;
    plain.stage = TrainingStage::dpo;
    plain.loss = *find_enum<PreferenceLoss>(loss);
    PreferenceArguments tuned = plain, free = plain;
    tuned.ftx = 0.7;
    free.reference_free = true;
    const auto losses = [&](const PreferenceArguments& a, const PairTensors& ref) {
      return preference_losses(a, policy, ref, lengths, at::kDouble).losses;
    };
    const at::Tensor of_tokens = -tensor(p.chosen) / tensor(p.chosen_length);
    EXPECT_TRUE(losses(tuned, reference).allclose(losses(plain, reference) + of_tokens * 0.7, 0, 1e-12));
    EXPECT_TRUE(losses(free, reference).allclose(losses(plain, zeros), 0, 1e-12));
  }
}

TEST(PreferenceLoss, RewardsAreOfWhatTheLossIsOf) {
  const Pairs p;
  PreferenceArguments a;
  a.stage = TrainingStage::dpo;
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
  a.loss = PreferenceLoss::simpo;
  EXPECT_NEAR(rewards().chosen[0].item<double>(), 0.1 * -12.5 / 5, 1e-12);
}

TEST(PreferenceLoss, ARewardModelsLossHasMarginsAndCenters) {
  PreferenceArguments a;
  a.stage = TrainingStage::rm;
  a.center_rewards_coefficient = 0.01;
  const PairTensors scores{tensor({1.5, -2}), tensor({0.5, 3})};
  const PairLosses result = reward_losses(a, scores, tensor({0.25, 1}));
  expect_near(result.losses, {-log_sigmoid(1 - 0.25) + 0.01 * 4, -log_sigmoid(-5.0 - 1) + 0.01}, 1e-12);
  expect_near(reward_losses(a, scores).losses, {-log_sigmoid(1.0) + 0.01 * 4, -log_sigmoid(-5.0) + 0.01}, 1e-12);
}

}  // namespace
}  // namespace concord
