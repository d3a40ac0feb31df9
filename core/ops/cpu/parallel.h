// libtorch's threads, without libtorch's headers.
#pragma once

#include <cstdint>
#include <functional>

namespace concord::ops {

// Returns the number of threads that libtorch uses inside an operator.
int64_t threads();

// Splits [0, count) into ranges of at least |grain| and runs body(begin, end) for each, in parallel. Waits: until all
// are done. Rethrows an error of |body|.
void parallel(int64_t count, int64_t grain, const std::function<void(int64_t, int64_t)>& body);

// Returns the grain for rows of |elements| each: a thread should have work for some ten microseconds.
inline int64_t row_grain(int64_t elements) { return elements >= 32768 ? 1 : 1 + 32768 / (elements + 1); }

}  // namespace concord::ops
