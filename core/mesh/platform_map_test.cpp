#include "core/mesh/platform_map.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "core/base/config_error.h"
#include "core/mesh/store/platform_exchange.h"

namespace concord {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::string error_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "no error";
}

TEST(PlatformMap, AListDividesTheRanksEvenly) {
  const PlatformMap map = PlatformMap::parse("cuda,ascend,cpu", 6);
  std::vector<std::string> names;
  for (int64_t rank = 0; rank < 6; ++rank) names.push_back(map.of(rank));
  EXPECT_EQ(names, (std::vector<std::string>{"cuda", "cuda", "ascend", "ascend", "cpu", "cpu"}));
  EXPECT_TRUE(map.is_mixed());
  EXPECT_EQ(map.to_string(), "2 x cuda, 2 x ascend, 2 x cpu");
}

TEST(PlatformMap, OneNameAndTheSameNamesAreNotMixed) {
  EXPECT_FALSE(PlatformMap().is_mixed());
  EXPECT_FALSE(PlatformMap::parse("", 8).is_mixed());
  EXPECT_FALSE(PlatformMap::parse("cpu,cpu", 8).is_mixed());
  EXPECT_FALSE(PlatformMap::parse("cpu,cpu", 8).crosses(RankLayout({.world = 8}).group(GroupKind::dp, 0)));
}

TEST(PlatformMap, InvalidListsAreRefused) {
  EXPECT_THAT(error_of([] { PlatformMap::parse("cpu,ascend", 3); }),
              AllOf(HasSubstr("2 platforms"), HasSubstr("3 ranks")));
  EXPECT_THAT(error_of([] { PlatformMap::parse("cpu,,ascend", 3); }), HasSubstr("a name in the list is empty"));
}

TEST(PlatformMap, DevicesAreNumberedWithinTheirPlatform) {
  const PlatformMap map({"cuda", "ascend", "cuda", "ascend"}, 4);
  EXPECT_EQ(map.index_among(0, 2), 1);
  EXPECT_EQ(map.index_among(0, 3), 1);
  EXPECT_EQ(map.index_among(2, 3), 0);  // the second machine
}

TEST(PlatformMap, StagesOnTwoPlatformsCrossThemInThePipelineOnly) {
  const RankLayout layout({.world = 8, .tensor = 2, .pipeline = 2});
  const PlatformMap map = PlatformMap::parse("cuda,ascend", 8);
  for (int64_t i = 0; i < layout.group_count(GroupKind::tp); ++i)
    EXPECT_FALSE(map.crosses(layout.group(GroupKind::tp, i)));
  EXPECT_FALSE(map.crosses(layout.group(GroupKind::dp, 0)));
  EXPECT_TRUE(map.crosses(layout.group(GroupKind::pp, 0)));
  EXPECT_NO_THROW(check_platforms(layout, map));
  EXPECT_THAT(describe_platforms(layout, map),
              AllOf(HasSubstr("  pp                  crosses platforms, over the bridge: 0,4 (cuda, ascend)\n"),
                    HasSubstr("  dp                  inside platforms, with their own collectives\n")));
}

TEST(PlatformMap, TensorContextAndExpertParallelismAcrossPlatformsAreRefused) {
  const PlatformMap map = PlatformMap::parse("cuda,ascend", 2);
  EXPECT_THAT(error_of([&] { check_platforms(RankLayout({.world = 2, .tensor = 2}), map); }),
              AllOf(HasSubstr("the tp group of ranks 0,1 (cuda, ascend)"), HasSubstr("only pipeline stages")));
  EXPECT_THAT(error_of([&] { check_platforms(RankLayout({.world = 2, .context = 2}), map); }),
              HasSubstr("the cp group"));
  EXPECT_THAT(error_of([&] { check_platforms(RankLayout({.world = 2, .expert = 2}), map); }),
              HasSubstr("the ep group"));
  EXPECT_NO_THROW(check_platforms(RankLayout({.world = 2}), map));
}

// Every rank announces its platform, meets the others (join), and asks for theirs.
std::vector<std::string> exchanged(const std::vector<OwnPlatform>& ranks) {
  const std::shared_ptr<Store> store = make_local_store();
  for (const OwnPlatform& own : ranks) announce_platform(*store, own);
  std::vector<std::string> results(ranks.size());
  std::vector<std::thread> threads;
  for (size_t i = 0; i < ranks.size(); ++i) {
    threads.emplace_back([&, i] {
      results[i] = error_of(
          [&] { throw ConfigError(exchange_platforms(*store, ranks[i], std::chrono::seconds(60)).to_string()); });
    });
  }
  for (std::thread& thread : threads) thread.join();
  return results;
}

TEST(PlatformExchange, EveryRankLearnsAllPlatforms) {
  EXPECT_THAT(exchanged({{0, 3, "cuda", true}, {1, 3, "ascend", true}, {2, 3, "cuda", true}}),
              ::testing::Each("1 x cuda, 1 x ascend, 1 x cuda"));
  for (const std::string& text : exchanged({{0, 2, "cpu", false}, {1, 2, "cpu", false}}))
    EXPECT_EQ(text, PlatformMap().to_string());
}

TEST(PlatformExchange, ADifferentPlatformThatNobodyHasChosenIsRefusedOnAllRanks) {
  EXPECT_THAT(exchanged({{0, 2, "cuda", true}, {1, 2, "cpu", false}}),
              ::testing::Each(AllOf(HasSubstr("rank 1 uses cpu because it is the best that has a device there"),
                                    HasSubstr("set CONCORD_PLATFORM"))));
}

}  // namespace
}  // namespace concord
