// libtorch's threads, without libtorch's headers.
#pragma once

#include <cstdint>
#include <functional>

namespace concord::ops {

// How many threads libtorch uses inside an operator.
int64_t threads();

// Splits [0, count) into ranges of at least |grain| and runs body(begin, end) for each, on as many threads as that
// gives. Waits: until all are done. Throws what a body threw.
void parallel(int64_t count, int64_t grain, const std::function<void(int64_t, int64_t)>& body);

// A grain for rows of |elements| each: a thread should have work for some ten microseconds.
inline int64_t row_grain(int64_t elements) { return elements >= 32768 ? 1 : 1 + 32768 / (elements + 1); }

}  // namespace concord::ops
