#include "core/mesh/initialize_args.h"

#include <cstdlib>

namespace concord {

void use_platform(const std::string& name_or_path) {
  if (!name_or_path.empty()) setenv("CONCORD_PLATFORM", name_or_path.c_str(), 1);
}

RankLayout layout_of(const InitializeArgs& args, int64_t world) {
  return RankLayout({.world = world,
                     .tensor = args.tensor_model_parallel_size,
                     .context = args.context_parallel_size,
                     .pipeline = args.pipeline_model_parallel_size,
                     .virtual_pipeline = args.virtual_pipeline_model_parallel_size,
                     .expert = args.expert_model_parallel_size,
                     .expert_tensor = args.expert_tensor_parallel_size,
                     .order = args.order});
}

}  // namespace concord
