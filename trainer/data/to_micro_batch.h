// Converts the loader's vectors to the tensors that models take.
#pragma once

#include <optional>
#include <vector>

#include "core/models/micro_batch.h"
#include "trainer/data/loader.h"

namespace concord {

// Returns tensors on the host that own the vectors' memory; nothing is copied.
MicroBatch to_micro_batch(TokenBatch&& batch);

// loader.next() as tensors.
std::optional<std::vector<MicroBatch>> next_micro_batches(DataLoader& loader);

}  // namespace concord
