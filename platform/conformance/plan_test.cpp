// The command line, the choice of worlds, and the plan of a run.
#include <gtest/gtest.h>

#include <algorithm>
#include <regex>
#include <set>
#include <stdexcept>

#include "platform/conformance/options.h"
#include "platform/conformance/processes/runner.h"
#include "platform/conformance/registry.h"

namespace concord::conformance {
namespace {

TEST(Options, AreReadInBothSpellings) {
  const Options options = parse_options({"--platform", "cpu", "--world=4", "--max-bytes", "64", "--rank_env",
                                         "A=b{rank}", "--quick", "--rank_program", "elsewhere"});
  EXPECT_EQ(options.platform, "cpu");
  EXPECT_EQ(options.largest_world(), 4);
  EXPECT_EQ(options.perf_max_bytes, 64);
  EXPECT_TRUE(options.quick);
  ASSERT_EQ(options.rank_environment.size(), 1u);
  EXPECT_EQ(options.rank_environment[0].second, "b{rank}");
  EXPECT_EQ(options.rank_program, "elsewhere");
}

TEST(Options, MistakesAreSentences) {
  const std::vector<std::vector<std::string>> wrong = {
      {"--nothing"}, {"cpu"}, {"--world"}, {"--world", "0"}, {"--world", "x"}, {"--filter", "("}, {"--rank_env", "A"}};
  for (const auto& arguments : wrong) EXPECT_THROW(parse_options(arguments), std::invalid_argument) << arguments[0];
}

TEST(Worlds, AreTheUsualOnesUpToTheLargestAndItself) {
  EXPECT_EQ(worlds_up_to(1), (std::vector<int>{1}));
  EXPECT_EQ(worlds_up_to(3), (std::vector<int>{1, 2, 3}));
  EXPECT_EQ(worlds_up_to(8), (std::vector<int>{1, 2, 3, 4, 8}));
  EXPECT_EQ(worlds_up_to(6), (std::vector<int>{1, 2, 3, 4, 6}));
}

TEST(Registry, NamesAreUniqueSentences) {
  std::set<std::string> seen;
  for (const auto& test : all_tests().tests()) {
    EXPECT_TRUE(std::regex_match(test.name, std::regex("[A-Z][A-Za-z0-9]+"))) << test.name;
    for (const int world : worlds_up_to(8)) {
      if (!test.runs_on(world)) continue;
      EXPECT_TRUE(seen.insert(test.full_name(world)).second) << test.full_name(world);
    }
  }
  EXPECT_GT(seen.size(), 1000u);
  EXPECT_THROW(
      {
        Registry registry;
        registry.add({"comm", "Twice", nullptr});
        registry.add({"comm", "Twice", nullptr});
      },
      std::logic_error);
}

TEST(Plan, RunsEveryTestOfEveryTable) {
  std::set<std::string> tables;
  for (const Planned& planned : plan_run(all_tests(), Options())) tables.insert(planned.test->table);
  EXPECT_EQ(tables, (std::set<std::string>{"comm", "core", "device", "event", "memory", "rng", "stream"}));
}

TEST(Plan, QuickLeavesOutWhatIsDear) {
  Options options;
  options.quick = true;
  for (const Planned& planned : plan_run(all_tests(), options)) {
    EXPECT_EQ(planned.test->cost, Cost::kQuick);
    EXPECT_LE(planned.world, kQuickWorld);
  }
}

TEST(Plan, EndsTheSharedProcessesOfAWorldLast) {
  Options options;
  options.world = 2;
  const std::vector<Planned> plan = plan_run(all_tests(), options);
  EXPECT_EQ(plan.back().test->processes, Processes::kEnd);
  EXPECT_EQ(std::count_if(plan.begin(), plan.end(),
                          [](const Planned& planned) { return planned.test->processes == Processes::kEnd; }),
            2);
}

TEST(Plan, FiltersByFullName) {
  Options options;
  options.filter = "SumOfF32MatchesTheReferenceOnThreeRanks$";
  const std::vector<Planned> plan = plan_run(all_tests(), options);
  EXPECT_EQ(plan.size(), 3u);  // all_reduce, reduce, reduce_scatter
}

}  // namespace
}  // namespace concord::conformance
