#include "core/checkpoint/hf_weights.h"
#include "core/checkpoint/write/save_job.h"

namespace concord {

void save_hf_weights(const std::string& folder, std::span<Parameter* const> parameters, ParallelContext& context,
                     const HfSaveOptions& options) {
  SaveJob(folder, parameters, context, options, SaveJob::Source::live).wait();
}

}  // namespace concord
