// How far the ranks of a pipeline can go in a step before anything of it is final: their first forwards, with the
// transfers between them. Pure.
#pragma once

#include <cstddef>
#include <vector>

#include "core/schedule/schedule.h"

namespace concord {

// For each rank the number of actions at the head of its list that are forwards and transfers of activations only, and
// that no other rank has an open end of: a transfer is in both heads or in neither. So all ranks come to the end of
// their heads whatever becomes of the rest, and can then begin their lists again. |schedule| is complete (passes.h) and
// has passed the checker.
std::vector<size_t> warm_up(const Schedule& schedule);

}  // namespace concord
