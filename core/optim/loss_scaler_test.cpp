#include "core/optim/loss_scaler.h"

#include <gmock/gmock.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "core/base/config_error.h"

namespace concord {
namespace {

using nlohmann::json;
using testing::HasSubstr;

LossScalerSettings settings_of(const json& given) {
  return {.initial_scale = given.at("initial_scale"),
          .min_scale = given.at("min_scale"),
          .growth_factor = given.at("growth_factor"),
          .backoff_factor = given.at("backoff_factor"),
          .growth_interval = given.at("growth_interval"),
          .hysteresis = given.at("hysteresis")};
}

// Factors are powers of two, so the scales are exact in float, in which Megatron keeps them, and in double.
TEST(LossScaler, FollowsMegatronsThroughRandomOverflows) {
  std::ifstream file(CONCORD_GOLDEN "/lr/lr.json");
  const json document = json::parse(file);
  int64_t compared = 0;
  for (const json& golden : document.at("scalers")) {
    LossScaler scaler(settings_of(golden.at("settings")));
    for (size_t step = 0; step < golden.at("found_inf").size(); ++step, ++compared) {
      const bool found_inf = golden["found_inf"][step] == 1;
      EXPECT_EQ(scaler.update(found_inf), !found_inf);
      ASSERT_EQ(scaler.scale(), golden["scale"][step].get<double>()) << "step " << step << " of " << golden["settings"];
    }
  }
  EXPECT_EQ(compared, 3700);
}

TEST(LossScaler, ItsDefaultsAreMegatrons) {
  LossScaler scaler({});
  EXPECT_EQ(scaler.scale(), 4294967296.0);
  for (int step = 0; step < 999; ++step) scaler.update(false);
  EXPECT_EQ(scaler.scale(), 0x1p32);
  scaler.update(false);
  EXPECT_EQ(scaler.scale(), 0x1p33);
  scaler.update(true);
  EXPECT_EQ(scaler.scale(), 0x1p33);
  scaler.update(true);
  EXPECT_EQ(scaler.scale(), 0x1p32);
  EXPECT_EQ(scaler.inverse_scale(), 0x1p-32);
}

TEST(LossScaler, ItNeverGrowsBeyondFloat) {
  LossScaler scaler({.initial_scale = 0x1p127, .growth_interval = 1});
  EXPECT_TRUE(scaler.update(false));
  EXPECT_EQ(scaler.scale(), 0x1p127);
}

TEST(LossScaler, AConstantScaleStaysAndStillSkips) {
  LossScaler scaler({.constant = 128, .growth_interval = 1, .hysteresis = 1});
  EXPECT_FALSE(scaler.update(true));
  EXPECT_EQ(scaler.scale(), 128);
  EXPECT_TRUE(scaler.update(false));
  EXPECT_EQ(scaler.scale(), 128);
  scaler.set_state({64, 0, 0});
  EXPECT_EQ(scaler.scale(), 128);
}

TEST(LossScaler, AStatePutBackGoesOnTheSame) {
  const LossScalerSettings settings{.growth_interval = 7, .hysteresis = 3};
  LossScaler scaler(settings);
  for (int step = 0; step < 20; ++step) scaler.update(step % 5 == 0);
  LossScaler resumed(settings);
  resumed.set_state(scaler.state());
  for (int step = 0; step < 50; ++step) {
    scaler.update(step % 11 == 0);
    resumed.update(step % 11 == 0);
    EXPECT_EQ(resumed.state(), scaler.state());
  }
  EXPECT_THROW(resumed.set_state({0, 0, 0}), ConfigError);
  EXPECT_THROW(resumed.set_state({std::nan(""), 0, 0}), ConfigError);
  EXPECT_THROW(resumed.set_state({1, -1, 0}), ConfigError);
}

TEST(LossScaler, AllThatIsWrongIsSaidAtOnce) {
  try {
    LossScaler({.initial_scale = 0.5, .growth_factor = 1, .backoff_factor = 1, .growth_interval = 0, .hysteresis = 0});
    FAIL() << "was taken";
  } catch (const ConfigError& error) {
    for (const char* name : {"min_loss_scale is 1", "loss_scale_growth_factor is 1", "loss_scale_backoff_factor is 1",
                             "loss_scale_window is 0", "hysteresis is 0"})
      EXPECT_THAT(error.what(), HasSubstr(name));
  }
}

}  // namespace
}  // namespace concord
