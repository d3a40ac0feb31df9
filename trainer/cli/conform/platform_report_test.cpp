// `concord conform --report FILE.zip`: what is in the file, for a plugin that passes and for one with a defect.
#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/processes/ended_process.h"
#include "tests/temporary_folder.h"

namespace concord::testing_processes {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using ::testing::HasSubstr;

const std::string kProgram = CONCORD_PROGRAM;

// The platform whose report is tested: CONCORD_PLATFORM, or cpu.
std::string platform() {
  const char* const chosen = std::getenv("CONCORD_PLATFORM");
  return chosen != nullptr ? chosen : "cpu";
}

// The archive, unpacked.
class Unpacked {
 public:
  explicit Unpacked(const std::string& file) {
    const EndedProcess python = run_to_end({"/usr/bin/env", "python3", "-m", "zipfile", "-e", file, folder_.path()});
    EXPECT_EQ(python.exit_code, 0) << python.err;
  }
  bool has(const std::string& name) const { return fs::exists(folder_ / name); }
  json read(const std::string& name) const {
    std::ifstream file(folder_ / name);
    const json document = json::parse(file, nullptr, /*allow_exceptions=*/false);
    EXPECT_FALSE(document.is_discarded()) << name;
    return document;
  }
  json part(const std::string& name) const {
    const json summary = read("summary.json");
    for (const json& each : summary["parts"]) {
      if (each["part"] == name) return each;
    }
    ADD_FAILURE() << "no part " << name;
    return {};
  }

 private:
  tests::TemporaryFolder folder_;
};

// The kit's own tests are elsewhere: one check of each kind is enough here.
std::vector<std::string> report_command(const std::string& file, const std::string& platform) {
  return {kProgram,   "conform",  "--platform",
          platform,   "--quick",  "--world",
          "2",        "--filter", "AllReduceSumOfF32|device\\.|event\\.Elapsed",
          "--report", file};
}

TEST(PlatformReport, OfAPlatformThatPassesHasEveryPartWithItsBounds) {
  const tests::TemporaryFolder folder;
  const std::string file = folder / "report.zip";
  const EndedProcess command = run_to_end(report_command(file, platform()));
  EXPECT_EQ(command.exit_code, 0) << command.out << command.err;
  const Unpacked report(file);
  const json summary = report.read("summary.json");
  EXPECT_EQ(summary["verdict"], "pass") << summary.dump(1);
  EXPECT_EQ(summary["platform"], platform());
  const json capabilities = report.read("platforms.json");
  EXPECT_EQ(capabilities["chosen"]["name"], platform());
  EXPECT_TRUE(report.read("doctor.json").contains("findings"));

  const json conformance = report.read("conformance.json");
  EXPECT_EQ(conformance["verdict"], "conformant");
  int with_bound = 0;
  for (const json& test : conformance["tests"]) with_bound += test.contains("error_bound_used") ? 1 : 0;
  EXPECT_GT(with_bound, 0);

  const json operators = report.read("operators.json");
  EXPECT_EQ(operators["counts"]["fail"], 0);
  EXPECT_GT(operators["counts"]["pass"], 100);
  for (const json& each : operators["comparisons"]) {
    EXPECT_EQ(each["verdict"], "pass") << each.dump();
    for (const json& used : each["error_bound_used"]) EXPECT_LE(used, 1) << each.dump();
  }

  const json timeline = report.read("timeline/rank_0.json");
  int steps = 0, kernels = 0;
  for (const json& event : timeline["traceEvents"]) {
    steps += event.value("cat", "") == "step" ? 1 : 0;
    kernels += event.value("cat", "") == "kernel" ? 1 : 0;
  }
  EXPECT_EQ(steps, 10);
  if (platform() != "cpu") {
    EXPECT_GT(kernels, 100);
  }

  const json trajectory = report.read("trajectory.json");
  EXPECT_EQ(trajectory["verdict"], "pass");
  EXPECT_EQ(trajectory["steps"].size(), 20u);
  EXPECT_LE(trajectory["largest_loss_difference"], trajectory["loss_bound"]);
}

TEST(PlatformReport, OfAPluginWithADefectHasTheCheckThatFailed) {
  const tests::TemporaryFolder folder;
  const std::string file = folder / "report.zip";
  ::setenv("CONCORD_MUTANT_BASE", CONCORD_MUTANT_BASE, 1);
  ::setenv("CONCORD_MUTANT", "WrongDeviceIsAccepted", 1);
  const EndedProcess command = run_to_end(report_command(file, CONCORD_MUTANT_PLUGIN));
  ::unsetenv("CONCORD_MUTANT");
  EXPECT_EQ(command.exit_code, 1) << command.out << command.err;
  const Unpacked report(file);
  EXPECT_EQ(report.read("summary.json")["verdict"], "fail");
  EXPECT_EQ(report.part("conformance")["verdict"], "fail");
  const json conformance = report.read("conformance.json");
  EXPECT_EQ(conformance["verdict"], "not conformant");
  bool is_named = false;
  for (const json& test : conformance["tests"]) {
    if (test["status"] != "fail") continue;
    is_named |= test["name"].get<std::string>().find("WrongArgumentsAreRefused") != std::string::npos;
    EXPECT_NE(test["reason"], "");
  }
  EXPECT_TRUE(is_named) << conformance.dump(1);
}

TEST(PlatformReport, ReplacesNoFileWithoutOverwriteAndRefusesOtherFormats) {
  const tests::TemporaryFolder folder;
  const std::string file = folder / "report.zip";
  std::ofstream(file) << "kept";
  EndedProcess command = run_to_end(report_command(file, "cpu"));
  EXPECT_EQ(command.exit_code, 2);
  EXPECT_THAT(command.err, HasSubstr("--overwrite"));
  EXPECT_EQ(fs::file_size(file), 4u);
  command = run_to_end({kProgram, "conform", "--perf", "--report=" + file});
  EXPECT_EQ(command.exit_code, 2);
  EXPECT_THAT(command.err, HasSubstr("--perf"));
}

}  // namespace
}  // namespace concord::testing_processes
