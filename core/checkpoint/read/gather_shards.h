// Gathers a parameter's shards, or their gradients, into the global tensors that they represent.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "core/mesh/parallel_context.h"
#include "core/parallel/shard_spec.h"

namespace concord {

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

// |shard| is this rank's, of local_shape. Returns the global tensors of |spec|, on the host, on every rank of the
// groups that it is split over (tp, or etp and ep), all of which call it. Padding is removed. Waits: for these ranks.
NamedTensors gather_shards(const at::Tensor& shard, const ShardSpec& spec, ParallelContext& context);

}  // namespace concord
