// The loops of cross_entropy, over rows of logits in memory of the host. T is float, double or BFloat16.
#pragma once

#include <cstdint>

#include "core/ops/cpu/math.h"

namespace concord::ops {

// This rank's columns of the logits.
struct VocabRows {
  int64_t rows;
  int64_t width;  // columns here
  int64_t used;   // the first of them that count; the others pad the vocabulary
  int64_t first;  // the number of column 0 in the whole vocabulary
};

// For each row four numbers, parts[row * 4 ...]: the largest logit m, the sum of exp(logit - m), the label's logit
// where it is here (else 0), and, where |with_sum|, the sum of the logits (else 0). A row without columns has m = -inf
// and zeros.
template <class T>
void cross_entropy_parts(const VocabRows& shape, const T* logits, const int64_t* labels, bool with_sum, Sum<T>* parts);

// The parts of a row's gradient: softmax * soft - (the label's column: hard) - (all columns: level).
template <class T>
struct VocabGrad {
  const Sum<T>* log_sum;  // of exp, over the whole vocabulary
  const Sum<T>* soft;
  const Sum<T>* hard;
  const Sum<T>* level;
};

// Writes the gradient; |to| may be |logits|. Padding gets 0.
template <class T>
void cross_entropy_grad(const VocabRows& shape, const T* logits, const int64_t* labels, const VocabGrad<T>& grad,
                        T* to);

}  // namespace concord::ops
