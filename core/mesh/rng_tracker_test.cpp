#include "core/mesh/rng_tracker.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "core/base/config_error.h"

namespace concord {
namespace {

using ::testing::HasSubstr;

RankCoordinates place(int64_t tp, int64_t dp, int64_t pp, int64_t etp, int64_t ep) {
  return {.tp = tp, .cp = 0, .dp = dp, .pp = pp, .etp = etp, .ep = ep, .edp = 0};
}

template <class Body>
std::string refusal(Body body) {
  try {
    body();
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "accepted";
}

// Stands for a fill of |count| numbers, which advances the stream.
void draw(RngTracker& rng, uint64_t count) {
  Generator::State state = rng.current().state();
  state.offset += count;
  rng.current().restore(state);
}

TEST(RngSeeds, AreMegatrons) {
  EXPECT_EQ(rng_seeds(1234, place(0, 0, 0, 0, 0), false), (RngSeeds{1234, 1234 + 2718, 1234 + 1024}));
  EXPECT_EQ(rng_seeds(1234, place(3, 5, 2, 1, 4), false), (RngSeeds{1434, 1434 + 2718 + 3, 1434 + 1024 + 400 + 1}));
  EXPECT_EQ(rng_seeds(1234, place(3, 5, 2, 1, 4), true), (RngSeeds{1484, 1484 + 2718 + 3, 1484 + 1024 + 400 + 1}));
}

TEST(RngSeeds, MustBePositive) {
  EXPECT_THAT(refusal([] { rng_seeds(0, place(0, 0, 0, 0, 0), false); }), HasSubstr("seed is 0; must be positive"));
  EXPECT_THAT(refusal([] { rng_seeds(-7, place(0, 0, 0, 0, 0), false); }), HasSubstr("seed is -7"));
}

TEST(RngTracker, StreamsOfOneRankNeverMeet) {
  RngTracker rng(RngSeeds{7, 7, 7});  // equal keys on purpose
  std::set<std::pair<uint64_t, uint64_t>> sequences;
  for (const RngState& each : rng.save()) sequences.insert({each.state.key, each.state.subsequence});
  EXPECT_EQ(sequences.size(), 4u);
}

TEST(RngTracker, AForkDrawsFromItsStreamAndGoesBack) {
  RngTracker rng(rng_seeds(1, place(0, 0, 0, 0, 0), false));
  draw(rng, 10);
  {
    const auto outer = rng.fork(kModelParallelRng);
    EXPECT_EQ(rng.current_name(), kModelParallelRng);
    EXPECT_EQ(rng.current().state().key, 1u + 2718u);
    draw(rng, 3);
    const auto inner = rng.fork(kExpertParallelRng);
    draw(rng, 4);
  }
  EXPECT_EQ(rng.current_name(), kDefaultRng);
  EXPECT_EQ(rng.current().state().offset, 10u);
  const std::vector<RngState> states = rng.save();
  EXPECT_EQ(states[2].state.offset, 3u);
  EXPECT_EQ(states[3].state.offset, 4u);
}

TEST(RngTracker, AForkGoesBackWhenItsScopeThrows) {
  RngTracker rng(rng_seeds(1, place(0, 0, 0, 0, 0), false));
  try {
    const auto scope = rng.fork(kModelParallelRng);
    throw std::runtime_error("boom");
  } catch (const std::runtime_error&) {
  }
  EXPECT_EQ(rng.current_name(), kDefaultRng);
}

TEST(RngTracker, ReplayDrawsTheSameAgainAndThenGoesOn) {
  RngTracker rng(rng_seeds(1, place(0, 0, 0, 0, 0), false));
  draw(rng, 5);
  const std::vector<RngState> before = rng.save();
  draw(rng, 7);
  {
    const auto scope = rng.replay(before);
    EXPECT_EQ(rng.current().state().offset, 5u);
    draw(rng, 7);
  }
  EXPECT_EQ(rng.current().state().offset, 12u);
}

TEST(RngTracker, StatesAreRestoredInAFreshTracker) {
  RngTracker rng(rng_seeds(42, place(1, 0, 2, 0, 0), false));
  {
    const auto scope = rng.fork(kModelParallelRng);
    draw(rng, 1000);
  }
  RngTracker again(rng_seeds(1, place(0, 0, 0, 0, 0), false));
  again.restore(rng.save());
  EXPECT_EQ(again.save(), rng.save());
}

TEST(RngTracker, ReseedingStartsAfresh) {
  RngTracker rng(rng_seeds(42, place(0, 0, 0, 0, 0), false));
  const std::vector<RngState> fresh = rng.save();
  rng.add("mine", 3);
  draw(rng, 1000);
  rng.reseed(rng_seeds(42, place(0, 0, 0, 0, 0), false));
  EXPECT_EQ(rng.save(), fresh);
}

TEST(RngTracker, ReseedingInsideScopesForgetsTheStreamsThatTheyWouldGoBackTo) {
  RngTracker rng(rng_seeds(42, place(0, 0, 0, 0, 0), false));
  rng.add("mine", 3);
  {
    const auto outer = rng.fork("mine");
    const auto inner = rng.fork(kModelParallelRng);
    const auto replay = rng.replay(rng.save());
    rng.reseed(rng_seeds(7, place(0, 0, 0, 0, 0), false));
  }
  EXPECT_EQ(rng.current_name(), kDefaultRng);
}

TEST(RngTracker, UnknownAndDoubledNamesAreRefusedWithTheKnownOnes) {
  RngTracker rng(rng_seeds(1, place(0, 0, 0, 0, 0), false));
  EXPECT_THAT(
      refusal([&] { (void)rng.fork("tensor"); }),
      HasSubstr(
          "unknown random stream 'tensor'; must be one of default, data-parallel-rng, model-parallel-rng, expert"));
  EXPECT_THAT(refusal([&] { rng.add("default", 1); }), HasSubstr("'default' already"));
  EXPECT_THAT(refusal([&] { rng.restore(std::vector<RngState>{{"other", {1, 2, 3}}}); }), HasSubstr("'other'"));
}

}  // namespace
}  // namespace concord
