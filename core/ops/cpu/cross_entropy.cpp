#include "core/ops/cpu/cross_entropy.h"

#include <algorithm>
#include <limits>

#include "core/ops/cpu/parallel.h"

namespace concord::ops {
namespace {

// Columns that are read twice while they are in the L1 cache.
constexpr int64_t kBlock = 2048;

template <class T>
struct RowSum {
  Sum<T> largest = -std::numeric_limits<Sum<T>>::infinity();
  Sum<T> sum = 0;

  // Adds exp(x - largest) with the maximum so far; rescales the previous sum when the maximum grows.
  void add(const T* x, int64_t count) {
    using S = Sum<T>;
    const S now = max_of<S>(count, largest, [x](int64_t i) { return S(x[i]); });
    if (now == -std::numeric_limits<S>::infinity()) return;
    if (now > largest) sum *= softmax_exponential(largest - now);
    largest = now;
    sum += sum_of<S>(count, [x, now](int64_t i) { return softmax_exponential(S(x[i]) - now); });
  }
};

}  // namespace

template <class T>
void cross_entropy_parts(const VocabRows& shape, const T* logits, const int64_t* labels, bool with_sum, Sum<T>* parts) {
  using S = Sum<T>;
  parallel(shape.rows, row_grain(4 * shape.width), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const T* x = logits + row * shape.width;
      RowSum<T> total;
      S level = 0;
      for (int64_t i = 0; i < shape.used; i += kBlock) {
        const int64_t count = std::min(kBlock, shape.used - i);
        total.add(x + i, count);
        if (with_sum) level += sum_of<S>(count, [x, i](int64_t j) { return S(x[i + j]); });
      }
      const int64_t label = labels[row] - shape.first;
      S* to = parts + row * 4;
      to[0] = total.largest;
      to[1] = total.sum;
      to[2] = label >= 0 && label < shape.used ? S(x[label]) : S(0);
      to[3] = level;
    }
  });
}

template <class T>
void cross_entropy_grad(const VocabRows& shape, const T* logits, const int64_t* labels, const VocabGrad<T>& grad,
                        T* to) {
  using S = Sum<T>;
  parallel(shape.rows, row_grain(4 * shape.width), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const T* x = logits + row * shape.width;
      T* y = to + row * shape.width;
      const int64_t label = labels[row] - shape.first;
      const bool here = label >= 0 && label < shape.used;
      const S log_sum = grad.log_sum[row], soft = grad.soft[row], level = grad.level[row];
      const S at_label = here ? soft * softmax_exponential(S(x[label]) - log_sum) - level - grad.hard[row] : S(0);
      if (soft == 0 && level == 0) {  // an ignored label, or a gradient of 0
        std::fill(y, y + shape.used, T(0));
      } else {
#pragma GCC ivdep  // each element depends only on itself, even if y is x
        for (int64_t i = 0; i < shape.used; ++i) y[i] = T(soft * softmax_exponential(S(x[i]) - log_sum) - level);
      }
      if (here) y[label] = T(at_label);
      std::fill(y + shape.used, y + shape.width, T(0));
    }
  });
}

#define CONCORD_CROSS_ENTROPY(T)                                                                   \
  template void cross_entropy_parts<T>(const VocabRows&, const T*, const int64_t*, bool, Sum<T>*); \
  template void cross_entropy_grad<T>(const VocabRows&, const T*, const int64_t*, const VocabGrad<T>&, T*);
CONCORD_CROSS_ENTROPY(float)
CONCORD_CROSS_ENTROPY(double)
CONCORD_CROSS_ENTROPY(c10::BFloat16)
#undef CONCORD_CROSS_ENTROPY

}  // namespace concord::ops
