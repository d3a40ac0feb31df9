// The program as started by a user: concord platforms, and wrong usage.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <array>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "platform/abi/concord.h"
#include "tests/abi/test_plugins.h"

namespace {

const std::string kAbi = std::to_string(CONCORD_ABI_MAJOR) + "." + std::to_string(CONCORD_ABI_MINOR);

using namespace concord;
using nlohmann::json;
using test::plugin_path;
using test::ScratchFolder;
using testing::AllOf;
using testing::HasSubstr;
using testing::MatchesRegex;

struct Outcome {
  int exit_code;
  std::string output;  // standard output
  std::string errors;  // standard error
};

class Program : public testing::Test {
 protected:
  // |environment| in shell syntax: "CONCORD_PLATFORM=cpu".
  Outcome run(const std::string& arguments, const std::string& environment = "") {
    const std::string errors = folder_.file("errors.txt");
    const std::string command = "env -u CONCORD_PLATFORM -u CONCORD_LAYERS CONCORD_PLUGIN_PATH='" + folder_.path() +
                                "' " + environment + " '" CONCORD_PROGRAM "' " + arguments + " 2>'" + errors + "'";
    Outcome outcome{-1, "", ""};
    FILE* pipe = popen(command.c_str(), "r");
    std::array<char, 4096> part{};
    for (size_t size = 0; (size = fread(part.data(), 1, part.size(), pipe)) > 0;)
      outcome.output.append(part.data(), size);
    const int status = pclose(pipe);
    outcome.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    outcome.errors = test::read_file(errors);
    return outcome;
  }
  json run_json(const std::string& environment = "") {
    return json::parse(run("platforms --json", environment).output);
  }

  static json plugin(const json& document, const std::string& name) {
    for (const json& entry : document.at("plugins")) {
      if (entry.at("name") == name) return entry;
    }
    ADD_FAILURE() << "no plugin " << name << " in " << document.dump();
    return {};
  }

  ScratchFolder folder_;
};

TEST_F(Program, PlatformsShowsWhatWasFoundChosenAndRefused) {
  for (const char* name : {"high", "low", "open_fails"}) folder_.link_plugin(name);
  folder_.write("libconcord_text.so", "hello");
  const Outcome outcome = run("platforms");
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_THAT(outcome.output,
              AllOf(HasSubstr("chosen: high (priority 50000, 2 devices"), HasSubstr("* high [chosen]"),
                    HasSubstr("- low [usable]"), HasSubstr("- open_fails [refused]"),
                    HasSubstr("reason: concord_plugin_open failed with UNAVAILABLE: the driver is 3.1"),
                    HasSubstr("reason: it is not an ELF file"), HasSubstr("device 1: sample device"),
                    HasSubstr("can: memory.host_accessible"), HasSubstr("cannot: comm.split: a sample has one rank"),
                    HasSubstr(folder_.path() + " (CONCORD_PLUGIN_PATH)")));
}

TEST_F(Program, PlatformsAsJsonIsOneDocumentWithTheSameContents) {
  for (const char* name : {"high", "low", "open_fails"}) folder_.link_plugin(name);
  const json document = run_json();
  EXPECT_EQ(document.at("abi"), kAbi);
  EXPECT_EQ(document.at("chosen").at("name"), "high");
  EXPECT_THAT(document.at("chosen").at("why").get<std::string>(), HasSubstr("priority 50000"));
  const json high = plugin(document, "high");
  EXPECT_EQ(high.at("state"), "chosen");
  EXPECT_EQ(high.at("abi"), kAbi);
  EXPECT_EQ(high.at("version"), "0.1 (sample)");
  EXPECT_EQ(high.at("priority"), 50000);
  EXPECT_EQ(high.at("devices").size(), 2u);
  EXPECT_EQ(high.at("devices")[1].at("name"), "sample device");
  EXPECT_EQ(high.at("capabilities")[0].at("name"), "memory.host_accessible");
  EXPECT_EQ(plugin(document, "low").at("state"), "usable");
  const json refused = plugin(document, "open_fails");
  EXPECT_EQ(refused.at("state"), "refused");
  EXPECT_THAT(refused.at("reason").get<std::string>(), HasSubstr("the driver is 3.1"));
  EXPECT_GE(document.at("folders").size(), 2u);
}

TEST_F(Program, PlatformNamedByItsPathIsShownThoughItLiesElsewhere) {
  folder_.link_plugin("low");
  const json document = run_json("CONCORD_PLATFORM='" + plugin_path("frozen") + "'");
  EXPECT_EQ(document.at("chosen").at("name"), "frozen");
  EXPECT_EQ(plugin(document, "frozen").at("origin"), "CONCORD_PLATFORM");
  EXPECT_EQ(plugin(document, "frozen").at("devices").size(), 1u);
  EXPECT_EQ(plugin(document, "low").at("state"), "usable");
}

TEST_F(Program, PlatformNamedButNotThereEndsWithOneAndTheReason) {
  folder_.link_plugin("low");
  const Outcome outcome = run("platforms --json", "CONCORD_PLATFORM=nowhere");
  EXPECT_EQ(outcome.exit_code, 1);
  const json document = json::parse(outcome.output);
  EXPECT_TRUE(document.at("chosen").is_null());
  EXPECT_THAT(document.at("problem").get<std::string>(), AllOf(HasSubstr("no platform 'nowhere'"), HasSubstr("low")));
  EXPECT_EQ(plugin(document, "low").at("state"), "usable");
}

TEST_F(Program, WrongUsageEndsWithTwo) {
  EXPECT_EQ(run("").exit_code, 2);
  EXPECT_EQ(run("platfroms").exit_code, 2);
  EXPECT_EQ(run("platforms --jsno").exit_code, 2);
  const Outcome layers = run("platforms", "CONCORD_LAYERS=tarce");
  EXPECT_EQ(layers.exit_code, 2);
  EXPECT_THAT(layers.errors, HasSubstr("there is no layer 'tarce'; the layers are validate, trace, fault"));
  EXPECT_EQ(layers.output, "");
}

TEST_F(Program, HelpAndVersionEndWithZero) {
  EXPECT_EQ(run("--help").exit_code, 0);
  const Outcome help = run("platforms --help");
  EXPECT_EQ(help.exit_code, 0);
  EXPECT_THAT(help.output, AllOf(HasSubstr("--json"), HasSubstr("CONCORD_PLUGIN_PATH"), HasSubstr("Exit codes")));
  // Between releases the version ends in the commit.
  EXPECT_THAT(
      run("--version").output,
      MatchesRegex(
          R"(concord [0-9]+\.[0-9]+\.[0-9]+(\.dev[0-9]+)?(\+[a-z0-9.]+)? \(plugin ABI 1\.[0-9]+.*\)[[:space:]])"));
}

TEST_F(Program, TraceAtTheEndOfAProcessIsWholeAndValidateCountsLeaks) {
  folder_.link_plugin("low");
  const std::string trace = folder_.file("trace.json");
  const Outcome outcome =
      run("platforms",
          "CONCORD_PLATFORM=low CONCORD_LAYERS=validate,trace CONCORD_VALIDATE=leaks CONCORD_TRACE='" + trace + "'");
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_EQ(outcome.errors, "") << "nothing is alive at the end";
  size_t counts = 0;
  for (const json& event : json::parse(test::read_file(trace))) counts += event.at("name") == "device.count" ? 1 : 0;
  EXPECT_GE(counts, 1u);
}

}  // namespace
