// Helpers for work on several threads of one process.
#pragma once

#include <cstdint>
#include <functional>

namespace concord {

// Runs |body| on |count| threads, including the calling one; |body| synchronises its own shared data. Rethrows the
// error of the first thread, by index, that has thrown, after all have returned. Waits: for all threads.
void run_on_threads(int64_t count, const std::function<void()>& body);

// Returns the number of cores of this machine for each of |processes|, at least 1 and at most |most|.
int64_t cores_for_each(int64_t processes, int64_t most);

}  // namespace concord
