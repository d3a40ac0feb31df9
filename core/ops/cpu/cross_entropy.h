// The loops of cross_entropy, over rows of logits in host memory. T is float, double or BFloat16.
#pragma once

#include <cstdint>

#include "core/ops/cpu/math.h"

namespace concord::ops {

// This rank's columns of the logits.
struct VocabRows {
  int64_t rows;
  int64_t width;  // columns on this rank
  int64_t used;   // valid columns; the others pad the vocabulary
  int64_t first;  // index of column 0 in the whole vocabulary
};

// Writes four numbers per row, parts[row * 4 ...]: the maximum logit m, the sum of exp(logit - m), the label's logit if
// it is on this rank (else 0) and, if |with_sum|, the sum of the logits (else 0). A row without columns has m = -inf
// and zeros.
template <class T>
void cross_entropy_parts(const VocabRows& shape, const T* logits, const int64_t* labels, bool with_sum, Sum<T>* parts);

// The terms of a row's gradient: softmax * soft - (label's column: hard) - (all columns: level).
template <class T>
struct VocabGrad {
  const Sum<T>* log_sum;  // log of the sum of exp over the whole vocabulary
  const Sum<T>* soft;
  const Sum<T>* hard;
  const Sum<T>* level;
};

// Writes the gradient; |to| may be |logits|. The gradient of padding is 0.
template <class T>
void cross_entropy_grad(const VocabRows& shape, const T* logits, const int64_t* labels, const VocabGrad<T>& grad,
                        T* to);

}  // namespace concord::ops
