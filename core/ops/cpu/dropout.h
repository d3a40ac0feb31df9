// The loop of dropout. T is float, double or BFloat16.
#pragma once

#include <cstdint>
#include <functional>

namespace concord::ops {

// Writes |count| uniform numbers starting at |position| to |numbers|. Called by several threads concurrently.
using DrawUniform = std::function<void(float* numbers, int64_t count, int64_t position)>;

template <class T>
void dropout_loop(int64_t count, const T* x, double p, const DrawUniform& draw, T* y);

}  // namespace concord::ops
