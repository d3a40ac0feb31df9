// Properties of every schedule, tested on thousands of random ones from the generators and from a random walk.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/base/config_error.h"
#include "core/schedule/check.h"
#include "core/schedule/passes.h"
#include "core/schedule/schedule_csv.h"
#include "core/schedule/schedules.h"
#include "core/schedule/simulate.h"
#include "core/schedule/testing/random_schedule.h"

namespace concord {
namespace {

using ::testing::HasSubstr;

ScheduleRequest random_request(std::mt19937& random) {
  const auto kinds = schedule_kinds();
  ScheduleRequest request;
  request.kind = kinds[static_cast<size_t>(uniform(random, 0, static_cast<int>(kinds.size()) - 1))];
  request.pp = uniform(random, 1, 12);
  request.microbatches = uniform(random, 1, 40);
  if (request.kind == "interleaved") {
    request.pp = std::max<int64_t>(request.pp, 2);
    request.vpp = uniform(random, 2, 4);
    request.microbatch_group_size = request.pp + uniform(random, 0, 3);
    // Whole groups, and sometimes a last one of at least pp.
    request.microbatches = request.microbatch_group_size * uniform(random, 1, 3);
    if (uniform(random, 0, 2) == 0)
      request.microbatches +=
          uniform(random, static_cast<int>(request.pp), static_cast<int>(request.microbatch_group_size));
  } else if (request.kind == "zb-v") {
    request.pp = std::max<int64_t>(request.pp, 2);
  } else if (request.kind == "forward-only" && request.pp > 1) {
    if (uniform(random, 0, 1) == 1)
      request.placement = Placement::v;
    else
      request.vpp = uniform(random, 1, 4);
  }
  return request;
}

std::string text_of(const ScheduleRequest& request) {
  return request.kind + " pp " + std::to_string(request.pp) + " vpp " + std::to_string(request.vpp) + " group " +
         std::to_string(request.microbatch_group_size) + " micro-batches " + std::to_string(request.microbatches);
}

std::string csv_refusal_in_fuzz(const std::string& csv) {
  try {
    parse_schedule_csv(csv, "my.csv");
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "accepted";
}

TEST(ScheduleProperties, EveryGeneratedPlanIsCompleteWithinItsMemoryAndFreeOfDeadlock) {
  std::mt19937 random(12);
  for (int i = 0; i < 3000; ++i) {
    const ScheduleRequest request = random_request(random);
    const Schedule computations = make_schedule(request);
    const Schedule complete = complete_schedule(computations);
    ASSERT_NO_THROW(check_schedule(computations)) << text_of(request);
    ASSERT_NO_THROW(check_schedule(complete)) << text_of(request);
    ASSERT_TRUE(i % 50 != 0 || naively_runs(complete)) << text_of(request);
  }
}

TEST(ScheduleProperties, NoGeneratedPlanIsShorterThanItsWorkAndItsPathAllow) {
  std::mt19937 random(13);
  for (int i = 0; i < 500; ++i) {
    const ScheduleRequest request = random_request(random);
    const Schedule complete = complete_schedule(make_schedule(request));
    const Simulation simulation = simulate(complete, {});
    const bool forward_only = is_forward_only(complete);
    const double work = static_cast<double>(complete.vpp) * complete.microbatches * (forward_only ? 1 : 3);
    const double path = forward_only ? complete.stages() : 2 * complete.stages() + 1;  // down and back, then the last W
    ASSERT_GE(simulation.makespan, std::max(work, path)) << text_of(request);
    ASSERT_NEAR(simulation.bubble_ratio, 1 - work / simulation.makespan, 1e-9) << text_of(request);
    ASSERT_LE(simulation.device_idle_ratio, simulation.bubble_ratio + 1e-9) << text_of(request);
    // simulate counts the same memory as the checker.
    for (size_t rank = 0; rank < complete.ranks.size(); ++rank) {
      ASSERT_LE(simulation.peak_activations[rank], complete.activation_limit[rank]) << text_of(request);
    }
  }
}

TEST(ScheduleProperties, EveryLegalCsvIsAcceptedAndGetsTransfersWithoutDeadlock) {
  std::mt19937 random(14);
  for (int i = 0; i < 2000; ++i) {
    const Schedule schedule =
        random_schedule(random, uniform(random, 1, 6), uniform(random, 1, 3), uniform(random, 1, 8), i % 2 == 0);
    const std::string csv = schedule_csv(schedule);
    ASSERT_EQ(csv_refusal_in_fuzz(csv), "accepted") << csv;
    const Schedule complete = complete_schedule(parse_schedule_csv(csv, "my.csv"));
    const std::string whole = schedule_csv(complete);
    ASSERT_EQ(csv_refusal_in_fuzz(whole), "accepted") << whole;
    ASSERT_TRUE(i % 20 != 0 || naively_runs(complete)) << whole;
  }
}

// After the transfers of a schedule are separated and shuffled a little, some schedules still run and some deadlock.
// The checker and the naive walk must agree on each.
TEST(ScheduleProperties, DeadlocksAreFoundWhereANaiveWalkFindsThem) {
  std::mt19937 random(15);
  int deadlocks = 0;
  int runs = 0;
  for (int i = 0; i < 3000; ++i) {
    Schedule schedule = complete_schedule(
        random_schedule(random, uniform(random, 2, 4), uniform(random, 1, 2), uniform(random, 1, 4), false));
    for (std::vector<Action>& actions : schedule.ranks) {
      for (size_t at = 1; at < actions.size(); ++at) {
        actions[at].joined = false;
        if (uniform(random, 0, 3) == 0 && is_transfer(actions[at].kind) && is_transfer(actions[at - 1].kind))
          std::swap(actions[at], actions[at - 1]);
      }
    }
    const std::optional<ScheduleFault> fault = find_fault(schedule);
    if (fault && fault->what.find("deadlock") == std::string::npos) continue;  // a channel out of order
    ASSERT_EQ(!fault, naively_runs(schedule)) << schedule_csv(schedule) << (fault ? fault->what : "");
    ++(fault ? deadlocks : runs);
  }
  EXPECT_GT(deadlocks, 200);
  EXPECT_GT(runs, 200);
}

struct Cells {
  std::vector<std::vector<std::string>> rows;

  explicit Cells(const Schedule& schedule) {
    for (const std::vector<Action>& actions : schedule.ranks) {
      rows.emplace_back();
      for (const Action& action : actions) rows.back().push_back(to_string(action));
    }
  }
  std::string csv() const {
    std::string text;
    for (const std::vector<std::string>& row : rows) {
      for (size_t i = 0; i < row.size(); ++i) text += (i == 0 ? "" : ",") + row[i];
      text += "\n";
    }
    return text;
  }
};

std::string place(size_t row, size_t column, const std::string& text) {
  return "row " + std::to_string(row + 1) + ", column " + std::to_string(column + 1) + " (" + text + ")";
}

// Breaks one action of a legal schedule in a way whose position is known, and returns that position.
std::string break_one(std::mt19937& random, const Schedule& schedule, Cells* cells) {
  const auto row = static_cast<size_t>(uniform(random, 0, schedule.pp - 1));
  const std::vector<Action>& actions = schedule.ranks[row];
  std::vector<std::string>& texts = cells->rows[row];
  const auto at = static_cast<size_t>(uniform(random, 0, static_cast<int>(actions.size()) - 1));
  const Action action = actions[at];
  switch (uniform(random, 0, 3)) {
    case 0: {  // a duplicate, later: the second one is reported
      const auto later =
          static_cast<size_t>(uniform(random, static_cast<int>(at) + 1, static_cast<int>(actions.size())));
      texts.insert(texts.begin() + static_cast<std::ptrdiff_t>(later), texts[at]);
      const bool backward_again = gives_input_gradient(action.kind);
      return place(row, later, to_string(action)) + (backward_again ? ": " : ": duplicate action");
    }
    case 1: {  // a backward in the first column: it has no forward yet
      const auto found =
          std::find_if(actions.begin(), actions.end(), [](const Action& a) { return gives_input_gradient(a.kind); });
      const std::string text = to_string(*found);
      texts.erase(texts.begin() + (found - actions.begin()));
      texts.insert(texts.begin(), text);
      return place(row, 0, text) + ": it needs";
    }
    case 2: {  // not an action
      texts[at] += "?";
      return "row " + std::to_string(row + 1) + ", column " + std::to_string(at + 1) + ": '" + texts[at] +
             "' is not an action";
    }
    default: {  // without its forward, the first action of a micro-batch that needs it is reported
      const auto forward = std::find_if(actions.begin(), actions.end(), [&](const Action& a) {
        return a.kind == ActionKind::forward && a.stage == action.stage && a.microbatch == action.microbatch;
      });
      const auto index = static_cast<size_t>(forward - actions.begin());
      texts.erase(texts.begin() + static_cast<std::ptrdiff_t>(index));
      for (size_t i = index + 1; i < actions.size(); ++i) {
        const bool next_stage = actions[i].kind == ActionKind::forward && actions[i].stage == action.stage + 1;
        const bool backward = gives_input_gradient(actions[i].kind) && actions[i].stage == action.stage;
        if (actions[i].microbatch == action.microbatch && (next_stage || backward))
          return place(row, i - 1, to_string(actions[i])) + ": it needs";
      }
      return "never";
    }
  }
}

TEST(ScheduleProperties, BrokenCsvsAreRefusedWithTheFirstBrokenActionNamed) {
  std::mt19937 random(16);
  for (int i = 0; i < 4000; ++i) {
    const Schedule schedule =
        random_schedule(random, uniform(random, 1, 5), uniform(random, 1, 3), uniform(random, 2, 6), i % 2 == 0);
    Cells cells(schedule);
    const std::string expected = break_one(random, schedule, &cells);
    ASSERT_THAT(csv_refusal_in_fuzz(cells.csv()), HasSubstr(expected)) << cells.csv();
  }
}

// Any bytes are parsed or rejected with a message; nothing else happens.
TEST(ScheduleProperties, RandomBytesAreRefusedOrRead) {
  std::mt19937 random(17);
  const std::string alphabet = "0123456789FBIWSEND_RCVUGA,,,,\n\n+ \r\t-";
  int refused = 0;
  for (int i = 0; i < 5000; ++i) {
    std::string text;
    for (int n = uniform(random, 0, 60); n > 0; --n)
      text += alphabet[static_cast<size_t>(uniform(random, 0, static_cast<int>(alphabet.size()) - 1))];
    refused += csv_refusal_in_fuzz(text) == "accepted" ? 0 : 1;
  }
  EXPECT_GT(refused, 4900);
}

// 262,144 computations and the same number of transfers. The goal is a second; the limit only ends a hang or a
// quadratic walk.
TEST(ScheduleProperties, ALargePlanIsMadeAndChecked) {
  const Schedule complete =
      complete_schedule(make_schedule({.kind = "interleaved", .pp = 64, .microbatches = 512, .vpp = 4}));
  EXPECT_FALSE(find_fault(complete));
  size_t computations = 0;
  for (const std::vector<Action>& actions : complete.ranks) {
    computations += static_cast<size_t>(
        std::count_if(actions.begin(), actions.end(), [](const Action& a) { return is_compute(a.kind); }));
  }
  EXPECT_EQ(computations, 64u * 512 * 4 * 2);
}

}  // namespace
}  // namespace concord
