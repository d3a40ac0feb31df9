// A process group as the shards of a vocabulary.
#pragma once

#include "core/mesh/process_group.h"
#include "core/ops/loss/cross_entropy.h"

namespace concord {

// |group| must outlive the share.
inline VocabShare vocab_share(ProcessGroup& group) {
  return {group.rank(), group.size(),
          [&group](const at::Tensor& all, const at::Tensor& mine) { group.all_gather(all, mine).wait(); }};
}

}  // namespace concord
