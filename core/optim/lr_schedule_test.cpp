#include "core/optim/lr_schedule.h"

#include <gmock/gmock.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "core/base/config_error.h"
#include "core/optim/loss_scaler.h"

namespace concord {
namespace {

using nlohmann::json;
using testing::HasSubstr;

// A curve is at most a dozen roundings of numbers that are not larger than the learning rate, in an order that differs
// between implementations, and a cosine or a power, which libraries round within an ulp.
constexpr double kRoundings = 16 * 0x1p-53;

template <typename Value>
void read(const json& arguments, const char* name, Value* out) {
  if (arguments.contains(name)) *out = arguments.at(name).get<Value>();
}

void read_curve(const json& arguments, const char* name, LrCurve* out) {
  if (arguments.contains(name)) *out = parse_enum<LrCurve>(name, arguments.at(name).get<std::string>());
}

LrArguments arguments_of(const json& given) {
  LrArguments arguments;
  read(given, "lr_scheduler_type", &arguments.lr_scheduler_type);
  read(given, "lr_scheduler_kwargs", &arguments.lr_scheduler_kwargs);
  read(given, "learning_rate", &arguments.learning_rate);
  read(given, "min_lr", &arguments.min_lr);
  read(given, "lr_warmup_init", &arguments.lr_warmup_init);
  read(given, "warmup_steps", &arguments.warmup_steps);
  read(given, "warmup_samples", &arguments.warmup_samples);
  read(given, "lr_decay_steps", &arguments.lr_decay_steps);
  read(given, "lr_decay_samples", &arguments.lr_decay_samples);
  read(given, "lr_wsd_decay_steps", &arguments.lr_wsd_decay_steps);
  read(given, "lr_wsd_decay_samples", &arguments.lr_wsd_decay_samples);
  read_curve(given, "lr_wsd_decay_style", &arguments.lr_wsd_decay_style);
  read(given, "start_weight_decay", &arguments.start_weight_decay);
  read(given, "end_weight_decay", &arguments.end_weight_decay);
  read_curve(given, "weight_decay_incr_style", &arguments.weight_decay_incr_style);
  read(given, "max_steps", &arguments.max_steps);
  read(given, "global_batch_size", &arguments.global_batch_size);
  read(given, "lr_step_offset", &arguments.lr_step_offset);
  return arguments;
}

// How many of the values of |source| were compared.
int64_t compare_with(const std::string& source) {
  std::ifstream file(CONCORD_GOLDEN "/lr/lr.json");
  const json document = json::parse(file);
  int64_t compared = 0;
  for (const json& golden : document.at("cases")) {
    if (golden.at("source") != source) continue;
    const LrArguments arguments = arguments_of(golden.at("arguments"));
    LrSchedule schedule(arguments);
    const json& rates = golden.at("lr");
    for (size_t step = 0; step < rates.size(); ++step, ++compared, schedule.step()) {
      EXPECT_NEAR(schedule.lr(), rates[step].get<double>(), kRoundings * arguments.learning_rate)
          << "update " << step << " of " << golden.at("arguments");
      if (!golden.contains("weight_decay")) continue;
      EXPECT_NEAR(schedule.weight_decay(), golden["weight_decay"][step].get<double>(), kRoundings)
          << "update " << step << " of " << golden.at("arguments");
    }
  }
  return compared;
}

TEST(LrSchedule, EveryCurveIsMegatrons) { EXPECT_GT(compare_with("megatron"), 1200); }

TEST(LrSchedule, EveryCurveIsHuggingFaces) { EXPECT_GT(compare_with("transformers"), 900); }

TEST(LrSchedule, WithAnOffsetOfOneItIsTheCurveOfTheGoldenTraining) { EXPECT_EQ(compare_with("train"), 20); }

LrArguments warm(int64_t offset) {
  LrArguments arguments;
  arguments.lr_scheduler_type = "cosine";
  arguments.learning_rate = 1;
  arguments.warmup_steps = 4;
  arguments.max_steps = 20;
  arguments.lr_step_offset = offset;
  return arguments;
}

TEST(LrSchedule, AnOffsetOfOneIsTheSameCurveOneUpdateEarlier) {
  LrSchedule later(warm(0));
  LrSchedule earlier(warm(1));
  EXPECT_EQ(later.lr(), 0);
  EXPECT_EQ(earlier.lr(), 0.25);
  for (int i = 0; i < 19; ++i) {
    later.step();
    EXPECT_EQ(later.lr(), earlier.lr());
    earlier.step();
  }
  EXPECT_NEAR(earlier.lr(), 0, kRoundings);  // the last update has the curve's last value
}

// The two policies together, as a step uses them: overflow in every third step leaves the curve where it was.
TEST(LrSchedule, ASkippedStepDoesNotMoveIt) {
  LrSchedule schedule(warm(0));
  LossScaler scaler({});
  std::vector<double> made;
  for (int step = 0; step < 15; ++step) {
    const double lr = schedule.lr();
    if (!scaler.update(step % 3 == 2)) continue;
    made.push_back(lr);
    schedule.step();
  }
  EXPECT_EQ(schedule.counter(), 10);
  for (size_t i = 0; i < made.size(); ++i) EXPECT_EQ(made[i], lr_at(schedule.settings(), static_cast<int64_t>(i)));
}

TEST(LrSchedule, ItsCounterIsAllItsState) {
  LrArguments arguments = warm(1);
  arguments.warmup_steps = 0;
  arguments.warmup_samples = 30;
  arguments.global_batch_size = 7;
  LrSchedule schedule(arguments);
  for (int i = 0; i < 11; ++i) schedule.step();
  EXPECT_EQ(schedule.counter(), 77);
  LrSchedule resumed(arguments);
  resumed.set_counter(schedule.counter());
  EXPECT_EQ(resumed.lr(), schedule.lr());
  EXPECT_THROW(resumed.set_counter(-1), ConfigError);
}

TEST(LrSchedule, AWarmUpInSamplesIsTheOneInStepsTimesTheBatch) {
  LrArguments arguments = warm(0);
  LrArguments samples = warm(0);
  samples.warmup_steps = 0;
  samples.warmup_samples = 4 * 32;
  samples.global_batch_size = 32;
  LrSchedule a(arguments);
  LrSchedule b(samples);
  for (int i = 0; i < 25; ++i, a.step(), b.step()) EXPECT_NEAR(a.lr(), b.lr(), kRoundings);
}

TEST(LrSchedule, AWarmUpByRatioIsRoundedUp) {
  LrArguments arguments = warm(0);
  arguments.warmup_steps = 0;
  arguments.warmup_ratio = 0.11;  // 2.2 of 20 steps
  EXPECT_EQ(resolve_lr(arguments).warmup, 3);
  arguments.warmup_ratio = 0.1;
  EXPECT_EQ(resolve_lr(arguments).warmup, 2);
}

TEST(LrSchedule, AWarmUpLongerThanTheRunStaysOnItsSlope) {
  LrArguments arguments = warm(0);
  arguments.warmup_steps = 40;
  LrSchedule schedule(arguments);
  schedule.set_counter(20);
  EXPECT_EQ(schedule.lr(), 0.5);
}

TEST(LrSchedule, NamesAreTakenInBothSpellings) {
  LrArguments arguments = warm(0);
  arguments.lr_scheduler_type = "inverse-square-root";
  const double dashes = LrSchedule(arguments).settings().timescale;
  arguments.lr_scheduler_type = "Inverse_Square_Root";
  EXPECT_EQ(LrSchedule(arguments).settings().timescale, dashes);
  arguments.lr_scheduler_type = "WSD";
  arguments.lr_wsd_decay_steps = 5;
  arguments.lr_wsd_decay_style = LrCurve::minus_sqrt;
  EXPECT_EQ(resolve_lr(arguments).curve, LrCurve::minus_sqrt);
}

std::string refusal(const LrArguments& arguments) {
  try {
    resolve_lr(arguments);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "taken";
}

TEST(LrSchedule, AnUnknownNameListsTheKnownOnes) {
  LrArguments arguments = warm(0);
  arguments.lr_scheduler_type = "cosin";
  EXPECT_THAT(refusal(arguments), HasSubstr("'cosin'; must be one of constant, constant_with_warmup, linear, cosine"));
}

TEST(LrSchedule, AllThatIsWrongIsSaidAtOnce) {
  LrArguments arguments = warm(2);
  arguments.learning_rate = std::nan("");
  arguments.warmup_ratio = 1.5;
  const std::string text = refusal(arguments);
  EXPECT_THAT(text, HasSubstr("learning_rate is nan"));
  EXPECT_THAT(text, HasSubstr("warmup_ratio is 1.5"));
  EXPECT_THAT(text, HasSubstr("lr_step_offset is 2"));
}

TEST(LrSchedule, WhatDoesNotFitTogetherIsRefused) {
  LrArguments arguments = warm(0);
  arguments.warmup_samples = 3;
  EXPECT_THAT(refusal(arguments), HasSubstr("warmup_steps 4 and warmup_samples 3 are both given"));
  arguments = warm(0);
  arguments.warmup_ratio = 0.1;
  EXPECT_THAT(refusal(arguments), HasSubstr("warmup_ratio 0.1 and a warmup of 4 steps"));
  arguments = warm(0);
  arguments.max_steps = 0;
  EXPECT_THAT(refusal(arguments), HasSubstr("needs an end"));
  arguments = warm(0);
  arguments.lr_scheduler_type = "wsd";
  EXPECT_THAT(refusal(arguments), HasSubstr("requires lr_wsd_decay_steps"));
  arguments.lr_wsd_decay_steps = 17;
  EXPECT_THAT(refusal(arguments), HasSubstr("a warmup of 4 and a decay of 17 do not fit into the curve length of 20"));
  arguments = warm(0);
  arguments.min_lr = 2;
  EXPECT_THAT(refusal(arguments), HasSubstr("min_lr 2 is greater than learning_rate 1"));
  arguments = warm(0);
  arguments.start_weight_decay = 0.1;
  EXPECT_THAT(refusal(arguments), HasSubstr("constant cannot change from 0.1 to 0"));
  arguments = warm(0);
  arguments.warmup_samples = 1;
  arguments.warmup_steps = 0;
  arguments.max_steps = int64_t{1} << 40;
  arguments.global_batch_size = int64_t{1} << 40;
  EXPECT_THAT(refusal(arguments), HasSubstr("exceed 2^53 samples"));
}

TEST(LrSchedule, KwargsThatAreNotTakenAreRefused) {
  LrArguments arguments = warm(0);
  arguments.lr_scheduler_kwargs = {{"num_cycle", "0.5"}};
  EXPECT_THAT(refusal(arguments), HasSubstr("cosine has no option 'num_cycle'; options are num_cycles"));
  arguments.lr_scheduler_kwargs = {{"num_cycles", "half"}};
  EXPECT_THAT(refusal(arguments), HasSubstr("num_cycles is 'half'; must be a number"));
  arguments.lr_scheduler_type = "cosine_with_min_lr";
  arguments.lr_scheduler_kwargs = {{"min_lr", "0.1"}, {"min_lr_rate", "0.1"}};
  EXPECT_THAT(refusal(arguments), HasSubstr("needs exactly one of min_lr and min_lr_rate"));
  arguments.lr_scheduler_kwargs = {{"min_lr_rate", "1.5"}};
  EXPECT_THAT(refusal(arguments), HasSubstr("minimum learning rate 1.5"));
  arguments.lr_scheduler_type = "warmup_stable_decay";
  arguments.lr_scheduler_kwargs = {{"num_decay_steps", "3.5"}};
  EXPECT_THAT(refusal(arguments), HasSubstr("num_decay_steps is '3.5'; must be an integer"));
}

}  // namespace
}  // namespace concord
