// The built-in schedules, by name. Each is a pure function from a few numbers to the computations of every rank;
// passes.h adds the transfers. A new kind is one .cpp file, one line in schedules.cpp and one golden file.
//
//   gpipe         all forwards, then all backwards: holds every micro-batch
//   1f1b          a backward as soon as possible; rank r holds pp - r micro-batches (PipeDream-Flush, Megatron)
//   interleaved   1f1b over vpp chunks per rank, in Megatron's order, with its microbatch_group_size_per_vp_stage
//   zb-h1         1f1b whose weight gradients fill the bubble; 1f1b's memory (Qi et al. 2023, Zero Bubble Pipeline
//                 Parallelism)
//   zb-v          two chunks per rank in a v; no idle time between a rank's first and last action with 2 pp or more
//                 micro-batches; 1f1b's memory (the same paper)
//   forward-only  for evaluation, over any placement
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "core/schedule/schedule.h"

namespace concord {

struct ScheduleRequest {
  std::string kind = "1f1b";  // '_' is accepted for '-'
  int64_t pp = 1;             // pipeline_model_parallel_size
  int64_t microbatches = 1;
  int64_t vpp = 0;                    // virtual_pipeline_model_parallel_size; 0: the default of the kind
  int64_t microbatch_group_size = 0;  // microbatch_group_size_per_vp_stage, for interleaved; 0: pp
  std::optional<Placement> placement = std::nullopt;  // for forward-only; the other kinds have their own
};

inline constexpr int64_t kMaxRanks = 4096;
inline constexpr int64_t kMaxComputations = int64_t{1} << 23;  // over all ranks; about a gigabyte with transfers

// Returns the computations of every rank. Throws ConfigError, with the numbers and what to change, for an unknown kind
// and for sizes that the kind does not support.
Schedule make_schedule(const ScheduleRequest& request);

std::span<const std::string_view> schedule_kinds();

// Returns the canonical name: "zb_v" -> "zb-v". Throws ConfigError with the known kinds for an unknown name.
std::string canonical_kind(std::string_view name);

}  // namespace concord
