#include "core/ops/cpu/norm.h"

#include <algorithm>
#include <vector>

#include "core/ops/cpu/parallel.h"

namespace concord::ops {
namespace {

template <class T>
Sum<T> row_mean(const T* x, int64_t width) {
  return sum_of<Sum<T>>(width, [x](int64_t i) { return Sum<T>(x[i]); }) / Sum<T>(width);
}

// Two passes, the second over cached data: no cancellation, unlike mean(x^2) - mean^2.
template <class T>
Sum<T> row_rstd(const T* x, int64_t width, Sum<T> mean, double eps) {
  const Sum<T> squares = sum_of<Sum<T>>(width, [x, mean](int64_t i) {
    const Sum<T> d = Sum<T>(x[i]) - mean;
    return d * d;
  });
  return Sum<T>(1) / std::sqrt(squares / Sum<T>(width) + Sum<T>(eps));
}

// One row of the derivative, with h = (x - mean) * rstd and g = grad * weight:
//   dx = rstd * (g - mean(g) - h * mean(g h)) + more,   the mean(g) only if a mean was subtracted
// Adds grad * h to dweight and grad to dbias.
template <class T>
void row_backward(int64_t width, const T* grad, const T* x, const T* weight, Sum<T> mean, Sum<T> rstd, bool centred,
                  const T* more, T* dx, Sum<T>* dweight, Sum<T>* dbias) {
  using S = Sum<T>;
  const S scale = S(1) / S(width);
  const S along =
      scale * sum_of<S>(width, [=](int64_t i) { return S(grad[i]) * S(weight[i]) * ((S(x[i]) - mean) * rstd); });
  const S level = centred ? scale * sum_of<S>(width, [=](int64_t i) { return S(grad[i]) * S(weight[i]); }) : S(0);
  const auto write = [&](auto rest) {
    for (int64_t i = 0; i < width; ++i) {
      const S h = (S(x[i]) - mean) * rstd;
      const S g = S(grad[i]);
      dweight[i] += g * h;
      dx[i] = T(rstd * (g * S(weight[i]) - level - h * along) + rest(i));
    }
  };
  if (more == nullptr) {
    write([](int64_t) { return S(0); });
  } else {
    write([more](int64_t i) { return S(more[i]); });
  }
  if (dbias == nullptr) return;
  for (int64_t i = 0; i < width; ++i) dbias[i] += S(grad[i]);
}

// to = the sum of |parts| consecutive arrays.
template <class T>
void add_up(const std::vector<Sum<T>>& parts, int64_t count, int64_t width, T* to) {
  parallel(width, 4096, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      Sum<T> sum = 0;
      for (int64_t part = 0; part < count; ++part) sum += parts[static_cast<size_t>(part * width + i)];
      to[i] = T(sum);
    }
  });
}

}  // namespace

template <class T>
void norm_forward(NormRows shape, const T* x, const T* weight, const T* bias, double eps, T* y, Sum<T>* mean,
                  Sum<T>* rstd) {
  using S = Sum<T>;
  const int64_t width = shape.width;
  parallel(shape.rows, row_grain(width), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const T* from = x + row * width;
      T* to = y + row * width;
      const S m = mean != nullptr ? row_mean(from, width) : S(0);
      const S r = row_rstd(from, width, m, eps);
      if (mean != nullptr) mean[row] = m;
      rstd[row] = r;
      if (bias == nullptr) {
        for (int64_t i = 0; i < width; ++i) to[i] = T((S(from[i]) - m) * r * S(weight[i]));
      } else {
        for (int64_t i = 0; i < width; ++i) to[i] = T((S(from[i]) - m) * r * S(weight[i]) + S(bias[i]));
      }
    }
  });
}

template <class T>
void norm_backward(NormRows shape, const T* grad, const T* x, const T* weight, const Sum<T>* mean, const Sum<T>* rstd,
                   const T* more, T* dx, T* dweight, T* dbias) {
  const int64_t width = shape.width;
  const int64_t parts = std::clamp<int64_t>(shape.rows / row_grain(width), 1, threads());
  std::vector<Sum<T>> dweights(static_cast<size_t>(parts * width));
  std::vector<Sum<T>> dbiases(dbias != nullptr ? dweights.size() : 0);
  parallel(parts, 1, [&](int64_t first, int64_t last) {
    for (int64_t part = first; part < last; ++part) {
      Sum<T>* dw = dweights.data() + part * width;
      Sum<T>* db = dbias != nullptr ? dbiases.data() + part * width : nullptr;
      for (int64_t row = shape.rows * part / parts; row < shape.rows * (part + 1) / parts; ++row) {
        row_backward(width, grad + row * width, x + row * width, weight, mean != nullptr ? mean[row] : Sum<T>(0),
                     rstd[row], mean != nullptr, more != nullptr ? more + row * width : nullptr, dx + row * width, dw,
                     db);
      }
    }
  });
  add_up(dweights, parts, width, dweight);
  if (dbias != nullptr) add_up(dbiases, parts, width, dbias);
}

#define CONCORD_NORM(T)                                                                                              \
  template void norm_forward<T>(NormRows, const T*, const T*, const T*, double, T*, Sum<T>*, Sum<T>*);               \
  template void norm_backward<T>(NormRows, const T*, const T*, const T*, const Sum<T>*, const Sum<T>*, const T*, T*, \
                                 T*, T*);
CONCORD_NORM(float)
CONCORD_NORM(double)
CONCORD_NORM(c10::BFloat16)
#undef CONCORD_NORM

}  // namespace concord::ops
