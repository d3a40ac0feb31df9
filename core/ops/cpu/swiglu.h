// The loops of swiglu, over rows of 2 * |width| elements, the gate first. T is float, double or BFloat16.
#pragma once

#include <cstdint>

namespace concord::ops {

template <class T>
void swiglu_forward(int64_t rows, int64_t width, const T* gate_up, T* y);

template <class T>
void swiglu_backward(int64_t rows, int64_t width, const T* grad, const T* gate_up, T* dgate_up);

}  // namespace concord::ops
