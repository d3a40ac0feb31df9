#include "platform/loader/host.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <thread>

#include "platform/abi/concord.h"
#include "platform/loader/error.h"

namespace concord::loader {
namespace {

using testing::HasSubstr;
using testing::MatchesRegex;

TEST(Host, SentenceBelongsToItsThreadAndIsTakenOnce) {
  const concord_host* host = make_host("test");
  host->set_error_detail(host->self, "mine");
  std::thread([&] {
    EXPECT_EQ(take_error_detail(), "");
    host->set_error_detail(host->self, "yours");
  }).join();
  EXPECT_EQ(take_error_detail(), "mine");
  EXPECT_EQ(take_error_detail(), "");
}

TEST(Host, NullSentenceClears) {
  const concord_host* host = make_host("test");
  host->set_error_detail(host->self, "old");
  host->set_error_detail(host->self, nullptr);
  EXPECT_EQ(take_error_detail(), "");
}

TEST(Host, SettingsComeFromTheEnvironmentUnlessOverridden) {
  setenv("CONCORD_CPU_DEVICES", "4", 1);
  const concord_host* host = make_host("test");
  const char* first = host->config(host->self, "cpu.devices");
  EXPECT_STREQ(first, "4");
  override_config("cpu.devices", "8");
  EXPECT_STREQ(host->config(host->self, "cpu.devices"), "8");
  override_config("cpu.devices", std::nullopt);
  unsetenv("CONCORD_CPU_DEVICES");
  EXPECT_EQ(host->config(host->self, "cpu.devices"), nullptr);
  EXPECT_EQ(host->config(host->self, nullptr), nullptr);
  EXPECT_STREQ(first, "4") << "what was given out lives until the process ends";
}

std::string logged(concord_log_level level, const std::optional<std::string>& threshold) {
  override_config("log", threshold);
  testing::internal::CaptureStderr();
  const concord_host* host = make_host("plug");
  host->log(host->self, level, "two\nlines");
  override_config("log", std::nullopt);
  return testing::internal::GetCapturedStderr();
}

TEST(Host, LogLinesLookAlikeAndStayOneLine) {
  EXPECT_THAT(logged(CONCORD_LOG_WARN, "info"), MatchesRegex("[0-9:.]+ concord\\[[0-9]+\\] warn plug: two lines\n"));
}

TEST(Host, LogIsCutAtItsLevel) {
  EXPECT_EQ(logged(CONCORD_LOG_INFO, std::nullopt), "") << "a library is quiet";
  EXPECT_NE(logged(CONCORD_LOG_WARN, std::nullopt), "");
  EXPECT_EQ(logged(CONCORD_LOG_INFO, "warn"), "");
  EXPECT_NE(logged(CONCORD_LOG_ERROR, "warn"), "");
  EXPECT_EQ(logged(CONCORD_LOG_DEBUG, "info"), "");
  EXPECT_NE(logged(CONCORD_LOG_DEBUG, "debug"), "");
}

TEST(Host, UnknownLogLevelIsToldOnceAndWarnUsed) {
  const std::string text = logged(CONCORD_LOG_WARN, "loud");
  EXPECT_THAT(text, HasSubstr("CONCORD_LOG is 'loud'; it must be one of debug, info, warn, error; using warn"));
  EXPECT_THAT(text, HasSubstr("two lines"));
}

TEST(Errors, StatusNamesGoBothWaysAndUnknownCodesKeepTheirNumber) {
  for (const std::string& name : status_names()) EXPECT_EQ(status_name(status_from_name(name).value()), name);
  EXPECT_EQ(status_names().size(), 12u);
  EXPECT_EQ(status_name(4711), "unknown status 4711");
  EXPECT_FALSE(status_from_name("NO_SUCH").has_value());
}

}  // namespace
}  // namespace concord::loader
