// RMS and layer normalisation of rows in host memory: the loops of rms_norm and layer_norm. T is float, double or
// BFloat16; statistics and sums are in Sum<T>. All arrays are dense.
#pragma once

#include <cstdint>

#include "core/ops/cpu/math.h"

namespace concord::ops {

struct NormRows {
  int64_t rows;
  int64_t width;
};

// If |mean| is null: y = x * rstd * weight with rstd = 1 / sqrt(mean(x^2) + eps). Otherwise y = (x - mean) * rstd *
// weight + bias, where |bias| may be null. Writes y, rstd and mean.
template <class T>
void norm_forward(NormRows shape, const T* x, const T* weight, const T* bias, double eps, T* y, Sum<T>* mean,
                  Sum<T>* rstd);

// Writes the derivative: |dx|, |dweight| and, unless null, |dbias|. If |more| is not null, it is added to dx before
// rounding.
template <class T>
void norm_backward(NormRows shape, const T* grad, const T* x, const T* weight, const Sum<T>* mean, const Sum<T>* rstd,
                   const T* more, T* dx, T* dweight, T* dbias);

}  // namespace concord::ops
