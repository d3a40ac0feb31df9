// Finding CANN, and the errors if it is missing, too old, or incomplete.
#include "backends/ascend/cann.h"

#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <map>

#include "platform/sdk/plugin.hpp"

namespace concord::ascend {
namespace {

using ::testing::HasSubstr;

std::map<std::string, std::string>& settings() {
  static std::map<std::string, std::string> map;
  return map;
}

const concord_host* test_host() {
  static const concord_host host = {{sizeof(concord_host), CONCORD_ABI_MAJOR, CONCORD_ABI_MINOR},
                                    nullptr,
                                    [](void*, const char*) {},
                                    [](void*, concord_log_level, const char*) {},
                                    [](void*, const char* name) -> const char* {
                                      const auto found = settings().find(name);
                                      return found != settings().end() ? found->second.c_str() : nullptr;
                                    }};
  return &host;
}

class CannTest : public ::testing::Test {
 protected:
  void SetUp() override {
    settings().clear();
    sdk::host_slot() = test_host();
    unsetenv("ASCEND_HOME_PATH");
  }
};

template <class Load>
std::string refusal(Load&& load) {
  try {
    load();
  } catch (const sdk::Failure& failure) {
    EXPECT_EQ(failure.status(), CONCORD_STATUS_UNAVAILABLE);
    return failure.what();
  }
  return "nothing was refused";
}

TEST_F(CannTest, SupportedVersionsAreAccepted) {
  for (const char* version : {"8.1.RC1", "8.2.RC1.alpha002", "8.5.0", "9.0.0", "9.1.0-beta.1", "9.99"}) {
    EXPECT_NO_THROW(check_cann_version(version, "lib")) << version;
  }
}

TEST_F(CannTest, OtherVersionsAreRefusedWithWhatWasFoundWhatFitsAndWhatToDo) {
  for (const char* version : {"8.0.0", "8.0.RC3", "7.0.0", "6.3", "10.0.0", "", "CANN", "8"}) {
    const std::string words = refusal([&] { check_cann_version(version, "/x/libacl_rt.so"); });
    EXPECT_THAT(words, HasSubstr(std::string("'") + version + "'"));
    EXPECT_THAT(words, HasSubstr("/x/libacl_rt.so"));
    EXPECT_THAT(words, HasSubstr("8.1 to 9.x"));
    EXPECT_THAT(words, HasSubstr("set_env.sh"));
  }
}

TEST_F(CannTest, AMissingLibraryIsToldWithEveryPlaceThatWasTried) {
  if (dlopen("libacl_rt.so", RTLD_LAZY) != nullptr || dlopen("libascendcl.so", RTLD_LAZY) != nullptr) {
    GTEST_SKIP() << "this machine has a CANN";
  }
  setenv("ASCEND_HOME_PATH", "/nowhere/cann", 1);
  const std::string words = refusal([] { load_acl(); });
  for (const char* part : {"libacl_rt.so", "libascendcl.so", "/nowhere/cann/lib64/libacl_rt.so",
                           "/nowhere/cann/lib64/libascendcl.so", "set_env.sh", "ASCEND_HOME_PATH"}) {
    EXPECT_THAT(words, HasSubstr(part));
  }
}

TEST_F(CannTest, ALibraryThatWasChosenIsTheOnlyOneTried) {
  settings()["ascend.acl"] = "/nowhere/libchosen.so";
  const std::string words = refusal([] { load_acl(); });
  EXPECT_THAT(words, HasSubstr("/nowhere/libchosen.so"));
  EXPECT_THAT(words, ::testing::Not(HasSubstr("libascendcl.so")));
}

TEST_F(CannTest, TheVersionIsToldBeforeTheNamesThatAreMissing) {
  settings()["ascend.acl"] = FAKE_CANN_OLD;
  const std::string words = refusal([] { load_acl(); });
  EXPECT_THAT(words, HasSubstr("'7.0.0'"));
  EXPECT_THAT(words, ::testing::Not(HasSubstr("has no")));
}

TEST_F(CannTest, RequiredNamesThatAreMissingAreListedAndOptionalOnesAreNot) {
  settings()["ascend.acl"] = FAKE_CANN_EMPTY;
  const std::string words = refusal([] { load_acl(); });
  EXPECT_THAT(words, HasSubstr("has no aclInit, "));
  EXPECT_THAT(words, HasSubstr("aclrtMemcpyAsync"));
  EXPECT_THAT(words, ::testing::Not(HasSubstr("aclrtLaunchHostFunc")));
}

TEST_F(CannTest, NamesThatHcclLacksAreListed) {
  settings()["ascend.hccl"] = FAKE_CANN_EMPTY;
  EXPECT_THAT(refusal([] { load_hccl(); }), HasSubstr("HcclCommInitRootInfo"));
}

TEST_F(CannTest, AMissingOperatorLibraryIsNoErrorButAReason) {
  settings()["ascend.opapi"] = "/nowhere/libopapi.so";
  std::string reason;
  EXPECT_FALSE(load_aclnn(&reason).has_value());
  EXPECT_THAT(reason, HasSubstr("/nowhere/libopapi.so"));
  settings()["ascend.opapi"] = FAKE_CANN_EMPTY;
  EXPECT_FALSE(load_aclnn(&reason).has_value());
  EXPECT_THAT(reason, HasSubstr("aclnnInplaceDivs"));
}

}  // namespace
}  // namespace concord::ascend
