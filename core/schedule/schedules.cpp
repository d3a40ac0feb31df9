#include "core/schedule/schedules.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>

#include "core/base/config_error.h"
#include "core/base/quoted.h"
#include "core/schedule/generators/generators.h"

namespace concord {
namespace {

struct Kind {
  std::string_view name;
  int64_t vpp;   // default chunks per rank
  bool any_vpp;  // whether other values are allowed
  int actions;   // computations per micro-batch and stage
  Placement placement;
  void (*generate)(const generators::Sizes&, Schedule*);
};

constexpr std::array<Kind, 6> kKinds = {{
    {"gpipe", 1, false, 2, Placement::loop, generators::gpipe},
    {"1f1b", 1, false, 2, Placement::loop, generators::one_f_one_b},
    {"interleaved", 2, true, 2, Placement::loop, generators::interleaved},
    {"zb-h1", 1, false, 3, Placement::loop, generators::zb_h1},
    {"zb-v", 2, false, 3, Placement::v, generators::zb_v},
    {"forward-only", 1, true, 1, Placement::loop, generators::forward_only},
}};

constexpr auto kKindNames = [] {
  std::array<std::string_view, kKinds.size()> names{};
  for (size_t i = 0; i < names.size(); ++i) names[i] = kKinds[i].name;
  return names;
}();

const Kind& find_kind(std::string_view name) {
  const std::string wanted = canonical_kind(name);
  return *std::find_if(kKinds.begin(), kKinds.end(), [&](const Kind& kind) { return kind.name == wanted; });
}

void check_positive(std::string_view what, int64_t value, int64_t most) {
  if (value >= 1 && value <= most) return;
  throw ConfigError(fmt::format("{} is {}; must be from 1 to {}", what, value, most));
}

int64_t chosen_vpp(const Kind& kind, const ScheduleRequest& request, Placement placement) {
  const int64_t natural = placement == Placement::v ? 2 : kind.vpp;
  const int64_t vpp = request.vpp == 0 ? natural : request.vpp;
  check_positive("virtual_pipeline_model_parallel_size", vpp, kMaxRanks);
  if (!kind.any_vpp && vpp != kind.vpp) {
    throw ConfigError(fmt::format("schedule {} has {} {} per rank, but virtual_pipeline_model_parallel_size is {}; {}",
                                  kind.name, kind.vpp, kind.vpp == 1 ? "chunk" : "chunks", vpp,
                                  kind.vpp == 1 ? "use interleaved, or omit it" : "omit it"));
  }
  if (vpp > 1 && request.pp == 1) {
    throw ConfigError(
        fmt::format("{} chunks per rank (virtual_pipeline_model_parallel_size) require pipeline_model_parallel_size >= "
                    "2, but it is 1; use 1f1b, or more ranks",
                    vpp));
  }
  return vpp;
}

// Megatron's rules. With a last group smaller than pp, each of its chunks would wait for the previous one.
int64_t chosen_group(const Kind& kind, const ScheduleRequest& request, int64_t vpp) {
  const int64_t pp = request.pp;
  const int64_t microbatches = request.microbatches;
  const int64_t group = request.microbatch_group_size == 0 ? pp : request.microbatch_group_size;
  if (kind.name != "interleaved") {
    if (request.microbatch_group_size == 0) return group;
    throw ConfigError(
        fmt::format("microbatch_group_size_per_vp_stage {} applies only to schedule interleaved, not {}; omit it",
                    request.microbatch_group_size, kind.name));
  }
  if (vpp == 1)
    throw ConfigError("schedule interleaved requires virtual_pipeline_model_parallel_size >= 2, but it is 1; use 1f1b");
  if (microbatches < pp) {
    throw ConfigError(
        fmt::format("schedule interleaved on {} ranks needs at least {} micro-batches, but got {}; use 1f1b, zb-v, "
                    "fewer ranks or more micro-batches",
                    pp, pp, microbatches));
  }
  if (group < pp || group > microbatches) {
    throw ConfigError(
        fmt::format("microbatch_group_size_per_vp_stage {} must be from pipeline_model_parallel_size {} to the number "
                    "of micro-batches {}",
                    group, pp, microbatches));
  }
  if (const int64_t rest = microbatches % group; rest > 0 && rest < pp) {
    throw ConfigError(fmt::format(
        "{} micro-batches in groups of {} leave a last group of {}, smaller than pipeline_model_parallel_size {}; use "
        "a multiple of {} micro-batches, or another microbatch_group_size_per_vp_stage",
        microbatches, group, rest, pp, group));
  }
  return group;
}

Placement chosen_placement(const Kind& kind, const ScheduleRequest& request) {
  if (!request.placement || *request.placement == kind.placement) return kind.placement;
  if (kind.name == "forward-only") return *request.placement;
  throw ConfigError(fmt::format("schedule {} has placement {}, not {}; omit it (only forward-only supports any)",
                                kind.name, to_string(kind.placement), to_string(*request.placement)));
}

void check_size(const Kind& kind, int64_t stages, int64_t microbatches) {
  const int64_t each = microbatches * kind.actions;
  if (stages <= kMaxComputations / each) return;
  throw ConfigError(fmt::format("{} stages x {} micro-batches x {} actions exceed {}, the limit for a schedule", stages,
                                microbatches, kind.actions, kMaxComputations));
}

}  // namespace

std::span<const std::string_view> schedule_kinds() { return kKindNames; }

std::string canonical_kind(std::string_view name) {
  std::string wanted(name);
  std::replace(wanted.begin(), wanted.end(), '_', '-');
  if (wanted == "interleaved-1f1b") wanted = "interleaved";
  if (std::find(kKindNames.begin(), kKindNames.end(), wanted) != kKindNames.end()) return wanted;
  std::string valid;
  for (const std::string_view kind : kKindNames) valid += (valid.empty() ? "" : ", ") + std::string(kind);
  throw ConfigError(fmt::format("unknown schedule {}; must be one of {}, or a file NAME.csv", quoted(name), valid));
}

Schedule make_schedule(const ScheduleRequest& request) {
  const Kind& kind = find_kind(request.kind);
  check_positive("pipeline_model_parallel_size", request.pp, kMaxRanks);
  check_positive("the number of micro-batches", request.microbatches, kMaxIndex);
  const Placement placement = chosen_placement(kind, request);
  const int64_t vpp = chosen_vpp(kind, request, placement);
  const int64_t group = chosen_group(kind, request, vpp);
  check_size(kind, request.pp * vpp, request.microbatches);
  const generators::Sizes sizes = {static_cast<int>(request.pp), static_cast<int>(vpp),
                                   static_cast<int>(request.microbatches), static_cast<int>(group)};
  Schedule schedule;
  schedule.kind = kind.name;
  schedule.pp = sizes.pp;
  schedule.vpp = sizes.vpp;
  schedule.microbatches = sizes.microbatches;
  schedule.rank_of_stage = place_stages(placement, sizes.pp, sizes.vpp);
  schedule.ranks.resize(static_cast<size_t>(sizes.pp));
  kind.generate(sizes, &schedule);
  return schedule;
}

}  // namespace concord
