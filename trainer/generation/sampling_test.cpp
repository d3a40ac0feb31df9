#include "trainer/generation/sampling.h"

#include <gmock/gmock.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "core/base/config_error.h"

namespace concord {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

SamplingOptions options_of(const nlohmann::json& given) {
  return {.temperature = given["temperature"].get<double>(),
          .top_k = given["top_k"].get<int64_t>(),
          .top_p = given["top_p"].get<double>()};
}

// Both are in fp64: what is left are the roundings of some forty exponentials and their sum.
TEST(Sampling, ProbabilitiesAreThoseOfTransformersProcessors) {
  std::ifstream file(CONCORD_GOLDEN "/sampling/sampling.json");
  const nlohmann::json cases = nlohmann::json::parse(file);
  ASSERT_EQ(cases.size(), 24U);
  for (const nlohmann::json& each : cases) {
    const auto logits = each["logits"].get<std::vector<float>>();
    std::vector<double> found(logits.size(), 0);
    for (const auto& [id, probability] : token_probabilities(logits, options_of(each))) {
      found[static_cast<size_t>(id)] = probability;
    }
    for (size_t i = 0; i < logits.size(); ++i) {
      EXPECT_NEAR(found[i], each["probabilities"][i].get<double>(), 1e-14)
          << "token " << i << " with temperature " << each["temperature"] << ", top_k " << each["top_k"] << ", top_p "
          << each["top_p"];
    }
  }
}

TEST(Sampling, ATokenIsChosenWhereTheSumOfProbabilitiesExceedsTheRandomNumber) {
  const std::vector<float> logits = {std::log(1.0f), std::log(2.0f), std::log(1.0f)};  // 1/4, 1/2, 1/4
  const SamplingOptions all{.temperature = 1};
  EXPECT_EQ(sample_token(logits, all, 0), 0);
  EXPECT_EQ(sample_token(logits, all, 0.249), 0);
  EXPECT_EQ(sample_token(logits, all, 0.251), 1);
  EXPECT_EQ(sample_token(logits, all, 0.749), 1);
  EXPECT_EQ(sample_token(logits, all, 0.751), 2);
  EXPECT_EQ(sample_token(logits, all, 1 - 0x1p-53), 2);
  EXPECT_EQ(sample_token(logits, {.temperature = 0}, 0.9), 1);
  EXPECT_EQ(sample_token(std::vector<float>{1, 3, 3}, {.temperature = 0}, 0.9), 1) << "the first of equal ones";
}

// The definition must not change: it is what makes a seed mean the same text in every version.
TEST(Sampling, RandomNumbersDependOnSeedPromptAndPositionOnly) {
  std::set<double> seen;
  for (const int64_t seed : {1, 2}) {
    for (int64_t prompt = 0; prompt < 10; ++prompt) {
      for (int64_t position = 0; position < 50; ++position) seen.insert(sampling_uniform(seed, prompt, position));
    }
  }
  EXPECT_EQ(seen.size(), 1000U);
  EXPECT_GE(*seen.begin(), 0);
  EXPECT_LT(*seen.rbegin(), 1);
  double sum = 0;
  for (const double each : seen) sum += each;
  EXPECT_NEAR(sum / 1000, 0.5, 5 / std::sqrt(12 * 1000.0));  // five standard deviations
  EXPECT_DOUBLE_EQ(sampling_uniform(42, 0, 0), 0.8288870721984655);
  EXPECT_DOUBLE_EQ(sampling_uniform(42, 3, 17), 0.8331500441117595);
}

TEST(Sampling, SettingsThatCannotBeAreRefused) {
  const auto refused = [](const SamplingOptions& options, const char* words) {
    EXPECT_THAT([&] { check_sampling(options); }, ThrowsMessage<ConfigError>(HasSubstr(words)));
  };
  refused({.temperature = -1}, "temperature is -1");
  refused({.temperature = std::nan("")}, "temperature is nan");
  refused({.temperature = 1, .top_k = -1}, "top_k is -1");
  refused({.temperature = 1, .top_p = 0}, "top_p is 0");
  refused({.temperature = 1, .top_p = 1.5}, "top_p is 1.5");
  refused({.temperature = 1, .seed = 0}, "seed is 0");
  refused({.top_k = 5}, "temperature is 0 (greedy)");
  EXPECT_NO_THROW(check_sampling({}));
}

}  // namespace
}  // namespace concord
