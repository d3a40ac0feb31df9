#include "trainer/cli/plans/lr.h"

#include <gmock/gmock.h>

#include <CLI/CLI.hpp>
#include <sstream>

#include "core/base/config_error.h"

namespace concord {
namespace {

using testing::HasSubstr;

LrArguments linear(int64_t steps) {
  LrArguments arguments;
  arguments.learning_rate = 1;
  arguments.warmup_steps = 2;
  arguments.max_steps = steps;
  return arguments;
}

TEST(LrCommand, EveryUpdateIsALineOfTheTable) {
  EXPECT_EQ(lr_csv(lr_points(linear(4))), "step,learning_rate,weight_decay\n1,0,0\n2,0.5,0\n3,1,0\n4,0.5,0\n");
  EXPECT_EQ(lr_json(lr_points(linear(2))), "{\"learning_rate\":[0.0,0.5],\"weight_decay\":[0.0,0.0]}");
}

TEST(LrCommand, TheTextHasTheFirstTheLastAndAboutTwenty) {
  const std::string text = lr_text(lr_points(linear(1000)));
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 21);
  EXPECT_THAT(text, HasSubstr("\n         1  0.0000e+00"));
  EXPECT_THAT(text, HasSubstr("\n      1000  1.0020e-03"));
  const std::string one = lr_text(lr_points(linear(1)));
  EXPECT_EQ(std::count(one.begin(), one.end(), '\n'), 2);
}

TEST(LrCommand, ThePictureIsOneOfTheSchedule) {
  EXPECT_THAT(lr_svg(linear(5000), lr_points(linear(5000))), HasSubstr(">linear, 5000 steps</text>"));
}

TEST(LrCommand, ARunWithoutStepsIsRefused) { EXPECT_THROW(lr_points(linear(0)), ConfigError); }

// The whole way from the command line, where the names are those of TrainingArguments.
TEST(LrCommand, TakesTheNamesOfTraining) {
  CLI::App app;
  add_lr_command(&app);
  testing::internal::CaptureStdout();
  app.parse(
      "lr --lr_scheduler_type cosine_with_min_lr --lr_scheduler_kwargs min_lr=0.5,num_cycles=0.5 --learning_rate 1 "
      "--max_steps 3 --csv -");
  std::istringstream lines(testing::internal::GetCapturedStdout());
  std::string line;
  std::getline(lines, line);
  std::getline(lines, line);
  EXPECT_EQ(line, "1,1,0");
  CLI::App other;
  add_lr_command(&other);
  try {
    other.parse("lr --max_steps 3 --tp 2 --learning_rat 1");
    ADD_FAILURE() << "neither is an argument";
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(),
                testing::ContainsRegex("'tp'; did you mean tensor_model_parallel_size.*\n.*'learning_rat'"));
  }
  CLI::App second;
  add_lr_command(&second);
  EXPECT_THROW(second.parse("lr --max_steps 3 --lr_scheduler_kwargs min_lr"), ConfigError);
  CLI::App third;
  add_lr_command(&third);
  EXPECT_THROW(third.parse("lr --max_steps 3 --csv - --json"), ConfigError);
}

}  // namespace
}  // namespace concord
