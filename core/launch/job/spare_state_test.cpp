#include "core/launch/job/spare_state.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "core/launch/job/job_state.h"

namespace concord {
namespace {

// --- A launcher with spares: every order in which they load, die and are taken, and in which attempts begin and end.

struct SpareWorld {
  std::vector<SparePhase> spares;
  int processes = 0;  // of ranks
  bool is_training = false;
  int deaths = 0;  // number of deaths of spares and attempts that may still happen
  auto operator<=>(const SpareWorld&) const = default;
};

class SpareModel {
 public:
  SpareModel(JobRules rules, int nproc, int spares) : rules_(std::move(rules)), nproc_(nproc) {
    visit({.spares = std::vector<SparePhase>(static_cast<size_t>(spares), SparePhase::absent), .deaths = 4});
  }
  std::set<std::string> problems() const { return problems_; }
  size_t states() const { return seen_.size(); }
  // The maximum in one attempt, of all spares and of those that were ready.
  int most_taken() const { return most_taken_; }
  int most_ready() const { return most_ready_; }
  bool starts_again() const { return starts_again_; }  // a spare that has died is started once more

 private:
  SpareOrder apply(SpareWorld* world, size_t place, SpareEvent event) const {
    const SpareStep step = next_step(rules_, world->spares[place], event);
    world->spares[place] = step.phase;
    return step.order;
  }

  void visit(const SpareWorld& world) {
    if (!seen_.insert(world).second) return;
    const auto is_process = [](SparePhase phase) { return phase == SparePhase::loading || phase == SparePhase::ready; };
    const auto loading = std::ranges::count(world.spares, SparePhase::loading);
    const auto waiting = std::ranges::count_if(world.spares, is_process);
    if (loading > 1) problems_.insert("several load at once");
    if (world.processes + waiting > nproc_ + static_cast<int>(world.spares.size())) problems_.insert("too many");
    most_ready_ = std::max(most_ready_, static_cast<int>(std::ranges::count(world.spares, SparePhase::ready)));
    if (world.processes == 0) begin_attempt(world);
    if (world.processes > 0) during_attempt(world);
    for (size_t i = 0; i < world.spares.size(); ++i) {
      if (world.spares[i] == SparePhase::loading) happen(world, i, SpareEvent::loaded);
      if (is_process(world.spares[i]) && world.deaths > 0) happen(world, i, SpareEvent::died);
    }
  }

  void happen(SpareWorld world, size_t place, SpareEvent event) {
    const SparePhase before = world.spares[place];
    world.deaths -= event == SpareEvent::died;
    if (apply(&world, place, event) != SpareOrder::none) problems_.insert("an order for what a process did");
    if (world.spares[place] == before) problems_.insert("what a process did is not noticed");
    visit(world);
  }

  void begin_attempt(SpareWorld world) {
    const bool had_broken = std::ranges::count(world.spares, SparePhase::broken) > 0;
    for (size_t i = 0; i < world.spares.size(); ++i) apply(&world, i, SpareEvent::renewed);
    if (std::ranges::count(world.spares, SparePhase::broken) > 0) problems_.insert("one stays broken");
    starts_again_ = starts_again_ || had_broken;
    int taken = 0;
    for (; world.processes < nproc_; ++world.processes) {
      const std::optional<size_t> place = spare_to_take(world.spares);
      if (!place) continue;  // a new process
      if (!spare_exists(world, *place)) problems_.insert("one that is not there becomes a rank");
      if (apply(&world, *place, SpareEvent::taken) != SpareOrder::hand_over) problems_.insert("it is not handed over");
      if (spare_exists(world, *place)) problems_.insert("a process is a rank and a spare");
      if (++taken > nproc_) return;
    }
    most_taken_ = std::max(most_taken_, taken);
    world.is_training = false;
    visit(world);
  }

  void during_attempt(SpareWorld world) {
    if (!world.is_training) {
      SpareWorld next = world;
      next.is_training = true;
      visit(next);
    } else if (const std::optional<size_t> place = spare_to_start(world.spares)) {
      SpareWorld next = world;
      if (apply(&next, *place, SpareEvent::wanted) != SpareOrder::start) problems_.insert("it is not started");
      visit(next);
    }
    if (world.deaths == 0) return;
    --world.deaths;
    world.processes = 0;  // a rank has failed, and the others were killed
    visit(world);
  }

  static bool spare_exists(const SpareWorld& world, size_t place) {
    return world.spares[place] == SparePhase::loading || world.spares[place] == SparePhase::ready;
  }

  JobRules rules_;
  int nproc_;
  std::set<SpareWorld> seen_;
  std::set<std::string> problems_;
  int most_taken_ = 0, most_ready_ = 0;
  bool starts_again_ = false;
};

std::string problems_of_spares(const JobRules& rules) {
  std::string text;
  for (const auto& [nproc, spares] : std::vector<std::pair<int, int>>{{2, 1}, {2, 2}, {1, 3}}) {
    const SpareModel model(rules, nproc, spares);
    for (const std::string& problem : model.problems()) text += problem + "; ";
    if (model.most_taken() != std::min(nproc, spares)) text += "not all spares become ranks; ";
    if (model.most_ready() != spares) text += "not all spares are ready some day; ";
    if (!model.starts_again()) text += "a spare that has died is never started again; ";
  }
  return text;
}

TEST(JobState, EveryOrderOfEventsOfSpares) {
  EXPECT_EQ(problems_of_spares(job_rules()), "");
  EXPECT_GT(SpareModel(job_rules(), 2, 2).states(), 50U);
}

TEST(JobState, NoRowOfSparesCanBeLeftOut) {
  const JobRules& all = job_rules();
  for (size_t i = 0; i < all.spare.size(); ++i) {
    JobRules broken = all;
    broken.spare.erase(broken.spare.begin() + static_cast<int64_t>(i));
    EXPECT_NE(problems_of_spares(broken), "") << to_string(all.spare[i].phase) << " " << to_string(all.spare[i].event);
  }
}

}  // namespace
}  // namespace concord
