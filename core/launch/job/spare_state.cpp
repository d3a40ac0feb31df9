#include "core/launch/job/spare_state.h"

#include <algorithm>

namespace concord {
namespace {

std::optional<size_t> first_with(std::span<const SparePhase> spares, SparePhase phase) {
  const auto found = std::ranges::find(spares, phase);
  if (found == spares.end()) return std::nullopt;
  return static_cast<size_t>(found - spares.begin());
}

}  // namespace

SpareStep next_step(const JobRules& rules, SparePhase phase, SpareEvent event) {
  for (const SpareRow& row : rules.spare) {
    if (row.phase == phase && row.event == event) return {row.next, row.order};
  }
  return {phase, SpareOrder::none};
}

std::optional<size_t> spare_to_start(std::span<const SparePhase> spares) {
  if (first_with(spares, SparePhase::loading)) return std::nullopt;
  return first_with(spares, SparePhase::absent);
}

std::optional<size_t> spare_to_take(std::span<const SparePhase> spares) {
  if (const auto ready = first_with(spares, SparePhase::ready)) return ready;
  return first_with(spares, SparePhase::loading);
}

}  // namespace concord
