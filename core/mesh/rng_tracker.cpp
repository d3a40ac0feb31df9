#include "core/mesh/rng_tracker.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "core/base/config_error.h"
#include "core/base/stable_hash.h"

namespace concord {
namespace {

// Megatron's constants.
constexpr uint64_t kModelParallelOffset = 2718;
constexpr uint64_t kExpertParallelOffset = 1024;
constexpr uint64_t kPerPipelineStage = 100;
constexpr uint64_t kPerDataParallelRank = 10;
constexpr uint64_t kPerExpertRank = 100;

}  // namespace

RngSeeds rng_seeds(int64_t seed, const RankCoordinates& place, bool data_parallel_random_init) {
  if (seed <= 0) throw ConfigError(fmt::format("seed is {}; must be positive", seed));
  const auto number = [](int64_t coordinate) { return static_cast<uint64_t>(coordinate); };
  uint64_t base = number(seed) + kPerPipelineStage * number(place.pp);
  if (data_parallel_random_init) base += kPerDataParallelRank * number(place.dp);
  return {base, base + kModelParallelOffset + number(place.tp),
          base + kExpertParallelOffset + kPerExpertRank * number(place.ep) + number(place.etp)};
}

void RngTracker::reseed(const RngSeeds& seeds) {
  streams_.clear();
  current_ = 0;
  add(kDefaultRng, seeds.data_parallel);
  add(kDataParallelRng, seeds.data_parallel);
  add(kModelParallelRng, seeds.model_parallel);
  add(kExpertParallelRng, seeds.expert_parallel);
}

void RngTracker::add(std::string_view name, uint64_t seed) {
  for (const Stream& stream : streams_) {
    if (stream.name == name) throw ConfigError(fmt::format("random stream '{}' already exists", name));
  }
  streams_.push_back({std::string(name), Generator(seed, stable_hash(name))});
}

size_t RngTracker::index_of(std::string_view name) const {
  std::vector<std::string> names;
  for (size_t i = 0; i < streams_.size(); ++i) {
    if (streams_[i].name == name) return i;
    names.push_back(streams_[i].name);
  }
  throw ConfigError(fmt::format("unknown random stream '{}'; must be one of {}", name, fmt::join(names, ", ")));
}

RngTracker::Fork RngTracker::fork(std::string_view name) { return {*this, index_of(name)}; }

std::vector<RngState> RngTracker::save() const {
  std::vector<RngState> states;
  for (const Stream& stream : streams_) states.push_back({stream.name, stream.generator.state()});
  return states;
}

void RngTracker::restore(std::span<const RngState> states) {
  for (const RngState& each : states) streams_[index_of(each.name)].generator.restore(each.state);
}

void RngTracker::restore_known(std::span<const RngState> states) noexcept {
  for (const RngState& each : states) {
    for (Stream& stream : streams_) {
      if (stream.name == each.name) stream.generator.restore(each.state);
    }
  }
}

}  // namespace concord
