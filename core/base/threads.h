// Work of one process on several threads.
#pragma once

#include <cstdint>
#include <functional>

namespace concord {

// Runs |body| on |count| threads, the calling one among them; what they share is theirs to protect. Throws what the
// first of them threw that threw; the others end as |body| has it. Waits: for all of them.
void run_on_threads(int64_t count, const std::function<void()>& body);

// The cores of this machine for each of |processes| that share it, at least 1 and at most |most|.
int64_t cores_for_each(int64_t processes, int64_t most);

}  // namespace concord
