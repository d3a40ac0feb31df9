#include "core/base/files/output_check.h"

#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>

#include "core/base/config_error.h"
#include "tests/temporary_folder.h"

namespace concord {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

template <class Check>
std::string said_by(Check check) {
  try {
    check();
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

class OutputCheck : public ::testing::Test {
 protected:
  OutputCheck() { std::ofstream(folder_ / "in") << "input"; }
  std::string refusal(const std::string& name, const OutputRules& rules) const {
    return said_by([&] { check_output_file("--out", folder_ / name, rules); });
  }

  tests::TemporaryFolder folder_;
};

TEST_F(OutputCheck, WhatExistsIsReplacedOnlyIfAsked) {
  EXPECT_EQ(refusal("new", {}), "");
  EXPECT_THAT(refusal("in", {}), AllOf(HasSubstr("in' already exists"), HasSubstr("--out"), HasSubstr("--overwrite")));
  EXPECT_EQ(refusal("in", {.overwrite = true}), "");
  fs::create_symlink("nowhere", folder_ / "dangling");
  EXPECT_THAT(refusal("dangling", {}), HasSubstr("already exists"));
  fs::create_directory(folder_ / "folder");
  EXPECT_THAT(refusal("folder", {.overwrite = true}), HasSubstr("is a folder"));
  EXPECT_EQ(said_by([] { check_output_file("--out", "-", {}); }), "");
}

TEST_F(OutputCheck, AnInputIsNeverReplacedByWhateverName) {
  fs::create_symlink(folder_ / "in", folder_ / "link");
  fs::create_hard_link(folder_ / "in", folder_ / "hard");
  fs::create_hard_link(folder_ / "in", folder_ / "temporary.new");
  const OutputRules rules{.overwrite = true, .inputs = {"", folder_ / "none", folder_ / "in"}};
  for (const char* name : {"in", "link", "hard", "temporary"})
    EXPECT_THAT(refusal(name, rules), HasSubstr("would overwrite")) << name;
  EXPECT_THAT(refusal("hard", rules), AllOf(HasSubstr("would overwrite"), HasSubstr("/in'")));
  EXPECT_EQ(refusal("other", rules), "");
  fs::create_directories(folder_ / "model/deep");
  fs::create_hard_link(folder_ / "in", folder_ / "model/deep/weights");
  EXPECT_THAT(refusal("hard", {.overwrite = true, .inputs = {folder_ / "model"}}), HasSubstr("model/deep/weights"));
}

TEST_F(OutputCheck, TwoArgumentsNeverNameTheSameFile) {
  fs::create_directory(folder_ / "deep");
  fs::create_directory_symlink(folder_ / "deep", folder_ / "link");
  const auto refused = [&](const std::string& csv, const std::string& svg) {
    return said_by([&] { check_output_files({{"--csv", csv}, {"--svg", svg}}, {.overwrite = true}); });
  };
  EXPECT_THAT(refused(folder_ / "new", folder_ / "new"), HasSubstr("--csv and --svg both name"));
  EXPECT_THAT(refused(folder_ / "new", folder_ / "deep/../new"), HasSubstr("both name"));
  EXPECT_THAT(refused(folder_ / "deep/new", folder_ / "link/new"), HasSubstr("both name"));
  EXPECT_THAT(refused("-", "-"), HasSubstr("both name"));
  EXPECT_EQ(refused(folder_ / "new", folder_ / "deep/new"), "");
  EXPECT_EQ(refused("", ""), "");
  EXPECT_EQ(refused("-", ""), "");
}

TEST_F(OutputCheck, AFolderThatHoldsAnInputIsNotReplaced) {
  fs::create_directory(folder_ / "old");
  const auto refused = [&](const std::string& input) {
    return said_by([&] { check_replaced_folder("--out", folder_ / "old", {.inputs = {input}}); });
  };
  EXPECT_EQ(refused(folder_ / "in"), "");
  fs::create_hard_link(folder_ / "in", folder_ / "old/same");
  EXPECT_THAT(refused(folder_ / "old/same"), HasSubstr("would replace"));
  EXPECT_THAT(refused(folder_ / "in"), HasSubstr("would replace"));
  fs::create_symlink(folder_ / "old", folder_ / "link");
  EXPECT_THAT(refused(folder_ / "link"), HasSubstr("would replace"));
}

}  // namespace
}  // namespace concord
