// Arguments of core/mesh/initialize.h; independent of libtorch.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/mesh/rank_layout.h"

namespace concord {

// Named as in Megatron's and ROLL's arguments.
struct InitializeArgs {
  int64_t tensor_model_parallel_size = 1;
  int64_t pipeline_model_parallel_size = 1;
  int64_t virtual_pipeline_model_parallel_size = 1;
  int64_t context_parallel_size = 1;
  int64_t expert_model_parallel_size = 1;
  int64_t expert_tensor_parallel_size = 0;  // 0: same as tensor_model_parallel_size
  std::string order = "tp-cp-ep-dp-pp";
  std::string platform = {};                  // name or path of a plugin; empty: CONCORD_PLATFORM, or the best one
  int64_t seed = 42;                          // positive
  bool data_parallel_random_init = false;     // data-parallel ranks draw different numbers
  bool deterministic_mode = false;            // only algorithms with bitwise reproducible results
  int64_t ddp_timeout = 1800;                 // seconds: for the rendezvous, for communicators, for every operation
  std::vector<GroupKind> create_groups = {};  // created immediately, by all ranks; the others on first use
  std::string flight_folder = {};             // for concord-flight-<rank>.json; empty: CONCORD_FLIGHT_FOLDER, else here
  bool operator==(const InitializeArgs&) const = default;
};

// Makes |name_or_path| the platform of this process and of those that it starts, as CONCORD_PLATFORM does. A rank takes
// its entry of a list (job_platforms.h). Does nothing if it is empty. Call before current_platform().
void use_platform(const std::string& name_or_path);

// Returns the layout for |args|. Throws ConfigError like RankLayout.
RankLayout layout_of(const InitializeArgs& args, int64_t world);

}  // namespace concord
