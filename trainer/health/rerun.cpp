#include "trainer/health/rerun.h"

#include <fmt/ranges.h>

#include <algorithm>

namespace concord {
namespace {

using Seen = bool RerunObservation::*;

// Observations that each state depends on; states without an entry are verdicts.
struct Looks {
  RerunState state;
  std::vector<Seen> at;
};
const std::vector<Looks>& all_looks() {
  using enum RerunState;
  using O = RerunObservation;
  static const std::vector<Looks> looks = {{start, {&O::symptom}},
                                           {repeating, {&O::symptom}},
                                           {comparing, {&O::damage, &O::intact, &O::replicas}},
                                           {repairing, {&O::symptom, &O::replicas}},
                                           {exchanging, {&O::blames_any}}};
  return looks;
}

std::string conditions(const RerunObservation& observation) {
  std::vector<std::string_view> names;
  if (observation.symptom) names.emplace_back("symptom");
  if (observation.damage) names.emplace_back("damage");
  if (observation.intact) names.emplace_back("intact");
  if (observation.replicas) names.emplace_back("replicas");
  if (observation.blames_any) names.emplace_back("blames any");
  return names.empty() ? "nothing" : fmt::format("{}", fmt::join(names, ", "));
}

}  // namespace

std::string_view to_string(Symptom symptom) {
  switch (symptom) {
    case Symptom::not_finite: return "not finite";
    case Symptom::spike: return "a spike";
    default: return "none";
  }
}

std::string_view to_string(RerunState state) {
  switch (state) {
    case RerunState::repeating: return "repeating";
    case RerunState::comparing: return "comparing";
    case RerunState::repairing: return "repairing";
    case RerunState::exchanging: return "exchanging";
    case RerunState::fine: return "fine";
    case RerunState::transient: return "transient";
    case RerunState::repaired: return "repaired";
    case RerunState::damaged: return "damaged";
    case RerunState::persistent: return "persistent";
    case RerunState::inherent: return "inherent";
    default: return "start";
  }
}

std::string_view to_string(StepDecision decision) {
  switch (decision) {
    case StepDecision::update: return "update";
    case StepDecision::skip: return "skip";
    default: return "stop";
  }
}

bool is_verdict(RerunState state) {
  return std::ranges::none_of(all_looks(), [&](const Looks& looks) { return looks.state == state; });
}

RerunState next(RerunState state, const RerunObservation& observation) {
  const RerunState undamaged = observation.replicas ? RerunState::exchanging : RerunState::inherent;
  switch (state) {
    case RerunState::start: return observation.symptom ? RerunState::repeating : RerunState::fine;
    case RerunState::repeating: return observation.symptom ? RerunState::comparing : RerunState::transient;
    case RerunState::comparing:
      if (!observation.damage) return undamaged;
      return observation.intact ? RerunState::repairing : RerunState::damaged;
    case RerunState::repairing: return observation.symptom ? undamaged : RerunState::repaired;
    case RerunState::exchanging: return observation.blames_any ? RerunState::persistent : RerunState::inherent;
    default: return state;
  }
}

std::string transition_table() {
  std::string table;
  for (const Looks& looks : all_looks()) {
    for (size_t bits = 0; bits < size_t{1} << looks.at.size(); ++bits) {
      RerunObservation observation;
      for (size_t i = 0; i < looks.at.size(); ++i) observation.*looks.at[i] = (bits >> i & 1) != 0;
      table += fmt::format("{:<10}  {} -> {}\n", to_string(looks.state), conditions(observation),
                           to_string(next(looks.state, observation)));
    }
  }
  return table;
}

std::vector<int64_t> judge_exchange(std::span<const ExchangeResult> results, bool reproducible) {
  const size_t devices = results.size();
  std::vector<bool> not_finite(devices, false);
  std::vector<int> differs(devices, 0);
  for (size_t other = 0; other < devices; ++other) {
    const size_t owner = (other + 1) % devices;  // owner of the batch that both have computed
    const ReplicaResult &by_owner = results[owner].own, &by_other = results[other].next;
    if (by_owner.finite != by_other.finite) {
      not_finite[by_owner.finite ? other : owner] = true;
    } else if (reproducible && by_owner.bits != by_other.bits) {
      ++differs[owner];
      ++differs[other];
    }
  }
  std::vector<int64_t> places;
  const auto collect = [&](const auto& is_chosen) {
    for (size_t i = 0; i < devices && devices > 1; ++i) {
      if (is_chosen(i)) places.push_back(static_cast<int64_t>(i));
    }
  };
  collect([&](size_t i) { return not_finite[i]; });
  if (!places.empty()) return places;
  const int most = devices == 0 ? 0 : *std::max_element(differs.begin(), differs.end());
  if (most > 0) collect([&](size_t i) { return differs[i] == most; });
  return places;
}

StepDecision decide_step(RerunState verdict, Symptom symptom, RerunAction action) {
  if (verdict == RerunState::fine) return StepDecision::update;
  if (verdict == RerunState::damaged) return StepDecision::stop;
  if (action == RerunAction::stop) return StepDecision::stop;
  if (action == RerunAction::skip) return StepDecision::skip;
  if (verdict == RerunState::transient || verdict == RerunState::repaired) return StepDecision::update;
  return verdict == RerunState::inherent && symptom == Symptom::spike ? StepDecision::update : StepDecision::stop;
}

}  // namespace concord
