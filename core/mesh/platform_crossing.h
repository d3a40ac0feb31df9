// Which groups of a rank have ranks on several platforms.
#pragma once

#include "core/mesh/parallel_context.h"

namespace concord {

// Returns false if this rank is in no group of |kind|.
inline bool crosses_platforms(const ParallelContext& job, GroupKind kind) {
  const std::optional<RankGroup> ranks = job.layout().group_of(kind, job.rank());
  return ranks && job.platforms().crosses(*ranks);
}

// Returns whether ranks that train the same parameters are on several platforms. Then each weight has to be updated on
// one rank (use_distributed_optimizer), since platforms round differently.
inline bool replicas_cross_platforms(const ParallelContext& job) {
  return crosses_platforms(job, GroupKind::dp_cp) || crosses_platforms(job, GroupKind::edp);
}

}  // namespace concord
