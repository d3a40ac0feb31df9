// The kit as a program: exit codes, the report, expectations, and what it does if nothing can run.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "platform/abi/concord.h"
#include "platform/conformance/json.h"

namespace concord::conformance {
namespace {

const std::string kAbi = std::to_string(CONCORD_ABI_MAJOR) + "." + std::to_string(CONCORD_ABI_MINOR);

struct Ran {
  int exit_code;
  std::string output;
};

Ran conform(const std::string& arguments) {
  const std::string command = std::string("'" CONFORM "' ") + arguments + " 2>&1";
  std::FILE* pipe = popen(command.c_str(), "r");
  Ran ran{-1, ""};
  std::array<char, 4096> block;
  for (size_t count; (count = std::fread(block.data(), 1, block.size(), pipe)) > 0;)
    ran.output.append(block.data(), count);
  const int status = pclose(pipe);
  ran.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128;
  return ran;
}

std::string scratch_file(const std::string& text) {
  static int number = 0;
  const std::string path =
      testing::TempDir() + "/conform-" + std::to_string(getpid()) + "-" + std::to_string(++number) + ".json";
  std::ofstream(path) << text;
  return path;
}

TEST(ConformProgram, ReportsAConformantPluginAsJson) {
  const Ran ran =
      conform("--platform cpu --world 2 --filter 'AllReduceSumOfF32MatchesTheReference|core' --json --quick");
  EXPECT_EQ(ran.exit_code, 0) << ran.output;
  const Json report = Json::parse(ran.output);
  EXPECT_EQ(report["plugin"]["name"].text(), "cpu");
  EXPECT_EQ(report["abi_version"].text(), kAbi);
  EXPECT_EQ(report["device"].text(), "cpu");
  EXPECT_EQ(report["world"].number(), 2);
  EXPECT_EQ(report["verdict"].text(), "conformant");
  EXPECT_EQ(report["counts"]["fail"].number(), 0);
  EXPECT_EQ(report["counts"]["pass"].number(), static_cast<double>(report["tests"].items().size()));
  for (const Json& test : report["tests"].items()) {
    EXPECT_EQ(test["status"].text(), "pass") << test["name"].text();
    EXPECT_TRUE(test["reason"].is(Json::Kind::kText));
    EXPECT_TRUE(test["seconds"].is(Json::Kind::kNumber));
  }
}

TEST(ConformProgram, WritesTheSameReportToAFile) {
  const std::string path = scratch_file("kept");
  const std::string run = "--platform cpu --world 1 --filter device --report '" + path + "'";
  const Ran refused = conform(run);
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_EQ(std::filesystem::file_size(path), 4u);
  EXPECT_EQ(conform(run + " --overwrite --expectations '" + path + "'").exit_code, 2);
  EXPECT_EQ(std::filesystem::file_size(path), 4u);
  EXPECT_EQ(conform(run + " --overwrite").exit_code, 0);
  std::ifstream file(path);
  const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  EXPECT_EQ(Json::parse(text)["verdict"].text(), "conformant");
}

TEST(ConformProgram, FailsWhereNothingRan) {
  const Ran none = conform("--platform cpu --filter ThereIsNoSuchTest --json");
  EXPECT_EQ(none.exit_code, 1);
  EXPECT_EQ(Json::parse(none.output)["verdict"].text(), "nothing ran");
  const Ran absent = conform("--platform nosuchplatform");
  EXPECT_EQ(absent.exit_code, 1);
  EXPECT_NE(absent.output.find("nothing ran"), std::string::npos) << absent.output;
  EXPECT_NE(absent.output.find("nosuchplatform"), std::string::npos) << absent.output;
}

TEST(ConformProgram, SaysInOneSentenceThatAPluginHasNoDevice) {
  const Ran ran = conform("--platform null --world 2 --quick --expectations none");
  EXPECT_EQ(ran.exit_code, 1);
  EXPECT_NE(ran.output.find("the plugin null ("), std::string::npos) << ran.output;
  EXPECT_NE(ran.output.find("has no device"), std::string::npos) << ran.output;
  EXPECT_NE(ran.output.find("nothing ran"), std::string::npos) << ran.output;
  EXPECT_LE(std::count(ran.output.begin(), ran.output.end(), '\n'), 3) << ran.output;
}

TEST(ConformProgram, RefusesWrongUsage) {
  EXPECT_EQ(conform("--nothing").exit_code, 2);
  EXPECT_EQ(conform("--world many").exit_code, 2);
  EXPECT_EQ(conform("--help").exit_code, 0);
}

TEST(ConformProgram, ListsTestsWithoutAPlugin) {
  const Ran ran = conform("--list --platform nosuchplatform --world 2");
  EXPECT_EQ(ran.exit_code, 0);
  EXPECT_NE(ran.output.find("comm.AllReduceSumOfF32MatchesTheReferenceOnTwoRanks"), std::string::npos);
  EXPECT_EQ(ran.output.find("OnThreeRanks"), std::string::npos);
}

TEST(ConformProgram, FailsAnUnexpectedPassAndAnEntryThatMatchesNothing) {
  const std::string path =
      scratch_file(R"({"expected_failure": [{"test": "device\\.ThereIsAtLeastOneDevice", "reason": "x"},
                                                                 {"test": "device\\.NoSuchTest", "reason": "y"}]})");
  const Ran ran = conform("--platform cpu --world 1 --filter device --json --expectations '" + path + "'");
  EXPECT_EQ(ran.exit_code, 1);
  const Json report = Json::parse(ran.output);
  EXPECT_EQ(report["counts"]["fail"].number(), 2);
  EXPECT_EQ(report["verdict"].text(), "not conformant");
}

TEST(ConformProgram, MeasuresEveryOperation) {
  const Ran ran = conform("--platform cpu --perf --world 2 --max_bytes 4096 --json");
  EXPECT_EQ(ran.exit_code, 0) << ran.output;
  const Json report = Json::parse(ran.output);
  EXPECT_EQ(report["rows"].items().size(), 7u * 5u);  // 8, 32, 128, 512, 2048 bytes
  for (const Json& row : report["rows"].items()) EXPECT_GT(row["out_of_place_us"].number(), 0);
}

}  // namespace
}  // namespace concord::conformance
