// Which plugin a process uses, and the error if there is none.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "platform/cpp/concord.hpp"
#include "tests/abi/test_plugins.h"

namespace {

using namespace concord;
using test::plugin_path;
using test::ScratchFolder;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

// Settings for the duration of a test. The real plugins next to the test program do not affect these tests: the samples
// have higher priorities.
class Choice : public testing::Test {
 protected:
  ~Choice() override {
    for (const char* name : {"platform", "plugin.path", "log"}) loader::override_config(name, std::nullopt);
  }
  void SetUp() override { set("platform", ""); }
  static void set(const std::string& name, const std::string& value) { loader::override_config(name, value); }
  void offer(std::initializer_list<const char*> names) {
    for (const char* name : names) folder_.link_plugin(name);
    set("plugin.path", folder_.path());
  }

  ScratchFolder folder_;
};

TEST_F(Choice, HighestPriorityWithADeviceWins) {
  offer({"low", "high", "empty", "driverless"});
  const loader::Choice choice = loader::choose_plugin();
  EXPECT_EQ(choice.plugin->name, "high");
  EXPECT_THAT(choice.why, HasSubstr("priority 50000, 2 devices, the highest of"));
}

TEST_F(Choice, EqualPrioritiesAreDecidedByName) {
  offer({"high_too", "high"});
  EXPECT_EQ(loader::choose_plugin().plugin->name, "high");
}

TEST_F(Choice, NegativePriorityIsNeverChosenByItself) {
  offer({"sample", "low"});
  EXPECT_EQ(loader::choose_plugin().plugin->name, "low");
  set("platform", "sample");
  EXPECT_EQ(loader::choose_plugin().plugin->name, "sample");
}

TEST_F(Choice, OneLogLineSaysWhichAndWhyAndWhyNotTheOthers) {
  offer({"low", "high", "empty", "driverless", "sample", "open_fails"});
  set("log", "info");
  testing::internal::CaptureStderr();
  loader::choose_plugin();
  const std::string log = testing::internal::GetCapturedStderr();
  EXPECT_EQ(std::count(log.begin(), log.end(), '\n'), 1) << log;
  EXPECT_THAT(log, AllOf(HasSubstr("platform high chosen (priority 50000, 2 devices"), HasSubstr("low: priority 5000"),
                         HasSubstr("empty: it reports no device"),
                         HasSubstr("driverless: it reports no device: UNAVAILABLE: the sample has no driver"),
                         HasSubstr("sample: its priority is negative"),
                         HasSubstr("open_fails: concord_plugin_open failed with UNAVAILABLE: the driver is 3.1")));
}

TEST_F(Choice, PluginWhoseDeviceCountThrowsIsPassedOver) {
  offer({"fine_but_count_throws", "low"});
  EXPECT_EQ(loader::choose_plugin().plugin->name, "low");
  const loader::Survey survey = loader::survey_plugins();
  const auto found = std::find_if(survey.candidates.begin(), survey.candidates.end(), [](const auto& candidate) {
    return candidate.path.find("fine_but_count_throws") != std::string::npos;
  });
  ASSERT_NE(found, survey.candidates.end());
  EXPECT_THAT(found->reason,
              HasSubstr("device.count threw an exception, which is not allowed for plugins: the bus is on fire"));
}

TEST_F(Choice, NamedPlatformThatFailsIsFatalAndListsEveryPlaceWithItsReason) {
  offer({"open_fails", "low"});
  set("platform", "open_fails");
  set("plugin.path", "/nowhere:" + folder_.path());
  const std::string text = test::error_of([] { loader::choose_plugin(); });
  EXPECT_THAT(text, AllOf(HasSubstr("no platform 'open_fails'"),
                          HasSubstr("/nowhere/libconcord_open_fails.so (CONCORD_PLUGIN_PATH): no such folder"),
                          HasSubstr(folder_.file("libconcord_open_fails.so") +
                                    " (CONCORD_PLUGIN_PATH): concord_plugin_open "
                                    "failed with UNAVAILABLE: the driver is 3.1, at least 4.0 is needed"),
                          HasSubstr("(next to the program): no such file"), HasSubstr("(installed)")));
}

TEST_F(Choice, NamedPlatformThatDoesNotExistListsTheNamesThatDo) {
  offer({"low", "high"});
  set("platform", "hihg");
  const std::string text = test::error_of([] { loader::choose_plugin(); });
  EXPECT_THAT(text, AllOf(HasSubstr("no platform 'hihg'"), HasSubstr("high"), HasSubstr("low")));
  EXPECT_THAT(text, Not(HasSubstr("CONCORD_PLUGIN_PATH: not set")));
}

TEST_F(Choice, PathInPlatformOpensThatFileAndNoOther) {
  offer({"low", "high"});
  set("platform", plugin_path("sample"));
  EXPECT_EQ(loader::choose_plugin().plugin->name, "sample");
  set("platform", "/nowhere/libconcord_high.so");
  EXPECT_THAT(test::error_of([] { loader::choose_plugin(); }),
              AllOf(HasSubstr("/nowhere/libconcord_high.so: no such file"), HasSubstr("high, low")));
}

TEST_F(Choice, FirstFolderWinsAndTheShadowedFileIsReported) {
  ScratchFolder second;
  second.link_plugin("low");
  offer({"low"});
  set("plugin.path", folder_.path() + ":" + second.path());
  const loader::Survey survey = loader::survey_plugins();
  ASSERT_GE(survey.candidates.size(), 2u);
  EXPECT_EQ(survey.candidates[0].path, folder_.file("libconcord_low.so"));
  EXPECT_EQ(survey.candidates[1].path, second.file("libconcord_low.so"));
  EXPECT_THAT(survey.candidates[1].reason, HasSubstr(folder_.file("libconcord_low.so") + " takes precedence"));
}

TEST_F(Choice, BrokenFileInAnEarlierFolderDoesNotHideAGoodOne) {
  ScratchFolder second;
  second.link_plugin("low");
  folder_.write("libconcord_low.so", "not a library");
  set("plugin.path", folder_.path() + ":" + second.path());
  set("platform", "low");
  EXPECT_EQ(loader::choose_plugin().plugin->name, "low");
}

TEST_F(Choice, EmptyNameIsAnErrorAndNotTheDefault) {
  EXPECT_THAT(test::error_of([] { open_platform(""); }), HasSubstr("the name is empty"));
}

TEST_F(Choice, CurrentPlatformIsChosenOnceForAllThreads) {
  offer({"low"});
  set("platform", "low");
  std::vector<std::string> names(8);
  std::vector<std::thread> threads;
  for (std::string& name : names) threads.emplace_back([&name] { name = current_platform().name(); });
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(names, testing::Each("low"));
  set("platform", "high");
  EXPECT_EQ(current_platform().name(), "low");
}

TEST_F(Choice, CapabilitiesAreFoundByNameAndUnknownOnesAreZero) {
  const Platform platform = open_platform(plugin_path("sample"));
  EXPECT_EQ(platform.capability(CONCORD_CAP_EVENT_TIMING), 1);
  EXPECT_EQ(platform.capability(CONCORD_CAP_COMM_SPLIT), 0);
  EXPECT_EQ(platform.capability_note(CONCORD_CAP_COMM_SPLIT), "a sample has one rank");
  EXPECT_EQ(platform.capability("no.such.thing"), 0);
  EXPECT_EQ(platform.capability_note("no.such.thing"), "");
}

}  // namespace
