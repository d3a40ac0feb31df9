// Root-mean-square and layer normalisation of rows in memory of the host; the loops of rms_norm and layer_norm.
// T is float, double or BFloat16; statistics are kept and sums taken in Sum<T>. All arrays are dense.
#pragma once

#include <cstdint>

#include "core/ops/cpu/math.h"

namespace concord::ops {

struct NormRows {
  int64_t rows;
  int64_t width;
};

// |mean| null: y = x * rstd * weight with rstd = 1 / sqrt(mean(x^2) + eps). Else y = (x - mean) * rstd * weight + bias,
// where |bias| may be null. Writes y, rstd and mean.
template <class T>
void norm_forward(NormRows shape, const T* x, const T* weight, const T* bias, double eps, T* y, Sum<T>* mean,
                  Sum<T>* rstd);

// The derivative of that. Writes |dx|, |dweight| and, where it is not null, |dbias|. |more|, where it is not null, is
// added to dx before that is rounded.
template <class T>
void norm_backward(NormRows shape, const T* grad, const T* x, const T* weight, const Sum<T>* mean, const Sum<T>* rstd,
                   const T* more, T* dx, T* dweight, T* dbias);

}  // namespace concord::ops
