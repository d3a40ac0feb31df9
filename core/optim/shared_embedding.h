// The embedding that the first and the last pipeline stage share (tie_word_embeddings, MTP), if the two are on
// different platforms.
//
// Both stages have the same gradient bits, since it is summed over the embedding group, and on one platform both
// compute the same update. Platforms round differently, so there the last stage takes over the weights of the first:
// the main weights, from which the same parameter follows everywhere. Moments stay each stage's own. They are averages
// of equal gradients, so their rounding errors do not add up, and checkpoints contain those of the first stage.
// Threads: training thread only.
#pragma once

#include <span>

#include "core/mesh/parallel_context.h"
#include "core/optim/segment.h"

namespace concord {

// Copies the weights of shared embeddings in |segments| from the first stage to the last, after an update. Every rank
// of the embedding group calls it. Does nothing if the group is on one platform. Waits: on the device.
void sync_shared_embedding(std::span<const Segment> segments, ParallelContext& job);

}  // namespace concord
