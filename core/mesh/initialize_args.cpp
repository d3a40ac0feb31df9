#include "core/mesh/initialize_args.h"

#include <cstdlib>

#include "core/mesh/job_environment.h"
#include "core/mesh/job_platforms.h"
#include "core/mesh/platform_map.h"

namespace concord {

namespace {

bool is_list(const std::string& platform) { return platform.find(',') != std::string::npos; }

}  // namespace

std::string own_platform(const std::string& list) {
  if (!is_list(list)) return list;
  const JobEnvironment job = read_job_environment();
  return PlatformMap::parse(list, job.world).of(job.rank);
}

void use_platform(const std::string& name_or_path) {
  if (name_or_path.empty()) return;
  const bool is_launcher = is_list(name_or_path) && read_job_environment().source == JobSource::single;
  setenv("CONCORD_PLATFORM", (is_launcher ? name_or_path : own_platform(name_or_path)).c_str(), 1);
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
