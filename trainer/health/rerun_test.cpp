#include "trainer/health/rerun.h"

#include <gtest/gtest.h>

#include <functional>
#include <random>
#include <tuple>

#include "trainer/health/spike_window.h"

namespace concord {
namespace {

TEST(Rerun, TheTransitionsAreThese) {
  EXPECT_EQ(transition_table(), R"(start       nothing -> fine
start       symptom -> repeating
repeating   nothing -> transient
repeating   symptom -> comparing
comparing   nothing -> inherent
comparing   damage -> damaged
comparing   intact -> inherent
comparing   damage, intact -> repairing
comparing   replicas -> exchanging
comparing   damage, replicas -> damaged
comparing   intact, replicas -> exchanging
comparing   damage, intact, replicas -> repairing
repairing   nothing -> repaired
repairing   symptom -> inherent
repairing   replicas -> repaired
repairing   symptom, replicas -> exchanging
exchanging  nothing -> inherent
exchanging  blames any -> persistent
)");
}

RerunObservation observed(int bits) {
  return {(bits & 1) != 0, (bits & 2) != 0, (bits & 4) != 0, (bits & 8) != 0, (bits & 16) != 0};
}

// Whatever is observed: at most four computations until the verdict, which stays; and no device is suspects for weights
// that differ.
TEST(Rerun, EverySequenceOfObservationsEndsWithAVerdict) {
  constexpr int kObservations = 32, kSteps = 5;
  std::function<void(RerunState, int, int, bool)> walk = [&](RerunState state, int steps, int computations,
                                                             bool is_damaged) {
    if (is_verdict(state)) {
      EXPECT_LE(computations, 4);
      for (int bits = 0; bits < kObservations; ++bits) EXPECT_EQ(next(state, observed(bits)), state);
      return;
    }
    ASSERT_LT(steps, kSteps);
    const bool computes = state != RerunState::comparing;
    for (int bits = 0; bits < kObservations; ++bits) {
      const RerunObservation seen = observed(bits);
      const RerunState after = next(state, seen);
      const bool damage = is_damaged || (state == RerunState::comparing && seen.damage && !seen.intact);
      EXPECT_FALSE(damage && after == RerunState::persistent);
      walk(after, steps + 1, computations + computes, damage);
    }
  };
  walk(RerunState::start, 0, 0, false);
}

// All combinations of verdict, symptom and action.
TEST(Rerun, WhatBecomesOfAStep) {
  using enum RerunState;
  using enum RerunAction;
  const auto decision = [](RerunState verdict, Symptom symptom, RerunAction action) {
    return to_string(decide_step(verdict, symptom, action));
  };
  for (const Symptom symptom : {Symptom::not_finite, Symptom::spike}) {
    const bool is_spike = symptom == Symptom::spike;
    for (const RerunAction action : {stop, skip, go_on}) EXPECT_EQ(decision(fine, symptom, action), "update");
    for (const RerunAction action : {stop, skip, go_on}) EXPECT_EQ(decision(damaged, symptom, action), "stop");
    for (const RerunState verdict : {transient, repaired, persistent, inherent}) {
      EXPECT_EQ(decision(verdict, symptom, stop), "stop");
      EXPECT_EQ(decision(verdict, symptom, skip), "skip");
    }
    EXPECT_EQ(decision(transient, symptom, go_on), "update");
    EXPECT_EQ(decision(repaired, symptom, go_on), "update");
    EXPECT_EQ(decision(persistent, symptom, go_on), "stop");
    EXPECT_EQ(decision(inherent, symptom, go_on), is_spike ? "update" : "stop");
  }
}

// What healthy devices have: each batch has its bits, and some may not be finite.
std::vector<ExchangeResult> healthy(size_t devices, int not_finite_batches) {
  const auto result = [&](size_t batch) {
    return ReplicaResult{static_cast<int64_t>(100 + batch), (not_finite_batches >> batch & 1) == 0};
  };
  std::vector<ExchangeResult> results;
  for (size_t i = 0; i < devices; ++i) results.push_back({result(i), result((i + 1) % devices)});
  return results;
}

TEST(Rerun, HealthyDevicesAreNotBlamedForTheirBatches) {
  EXPECT_TRUE(judge_exchange({}, true).empty());
  for (size_t devices = 1; devices <= 5; ++devices) {
    for (int bad = 0; bad < 1 << devices; ++bad) {
      for (const bool reproducible : {false, true}) {
        EXPECT_TRUE(judge_exchange(healthy(devices, bad), reproducible).empty()) << devices << ", " << bad;
      }
    }
  }
}

// On one device, in its own batch, in the other one or in both; whatever batches are not finite by themselves.
TEST(Rerun, ADeviceThatMakesNumbersThatAreNotFiniteIsBlamed) {
  for (size_t devices = 2; devices <= 5; ++devices) {
    for (size_t faulty = 0; faulty < devices; ++faulty) {
      for (int bad = 0; bad < 1 << devices; ++bad) {
        for (int where = 1; where < 4; ++where) {
          std::vector<ExchangeResult> results = healthy(devices, bad);
          bool is_visible = false;  // a batch that is finite elsewhere
          for (const auto& [bit, result] : {std::pair{1, &results[faulty].own}, std::pair{2, &results[faulty].next}}) {
            if (!(where & bit)) continue;
            is_visible |= result->finite;
            *result = {7, false};
          }
          if (!is_visible) continue;
          EXPECT_EQ(judge_exchange(results, false), std::vector{static_cast<int64_t>(faulty)});
          EXPECT_EQ(judge_exchange(results, true), std::vector{static_cast<int64_t>(faulty)});
        }
      }
    }
  }
}

TEST(Rerun, ADeviceThatMakesOtherBitsIsBlamedWhereItsNeighboursAgree) {
  for (size_t devices = 2; devices <= 5; ++devices) {
    for (size_t faulty = 0; faulty < devices; ++faulty) {
      std::vector<ExchangeResult> results = healthy(devices, 0);
      results[faulty].own.bits = 7;
      std::vector<int64_t> suspects = judge_exchange(results, true);
      EXPECT_EQ(suspects.size(), 2u) << "one batch on two devices: either of them";
      EXPECT_TRUE(std::count(suspects.begin(), suspects.end(), faulty) == 1);
      results[faulty].next.bits = 8;
      suspects = judge_exchange(results, true);
      if (devices == 2) {
        EXPECT_EQ(suspects, (std::vector<int64_t>{0, 1})) << "two batches on two devices";
      } else {
        EXPECT_EQ(suspects, std::vector{static_cast<int64_t>(faulty)});
      }
      EXPECT_TRUE(judge_exchange(results, false).empty()) << "their bits differ on one device too";
    }
  }
}

TEST(SpikeWindow, ComparesWithTheMedianOfTheLastHundred) {
  SpikeWindow window(10);
  for (int i = 0; i < 9; ++i) window.add(1);
  EXPECT_FALSE(window.is_spike(1000)) << "too few to compare with";
  window.add(50);  // of ten, one
  EXPECT_TRUE(window.is_spike(10.1));
  EXPECT_FALSE(window.is_spike(10));
  for (int i = 0; i < 51; ++i) window.add(2);
  EXPECT_FALSE(window.is_spike(19));
  for (int i = 0; i < 100; ++i) window.add(5);
  EXPECT_FALSE(window.is_spike(50)) << "the first are forgotten";
  EXPECT_TRUE(window.is_spike(51));
}

TEST(SpikeWindow, AFactorOfZeroFindsNone) {
  SpikeWindow window(0);
  for (int i = 0; i < 100; ++i) window.add(1);
  EXPECT_FALSE(window.is_spike(1e300));
}

}  // namespace
}  // namespace concord
