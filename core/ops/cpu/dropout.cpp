#include "core/ops/cpu/dropout.h"

#include <algorithm>

#include "core/ops/cpu/math.h"
#include "core/ops/cpu/parallel.h"

namespace concord::ops {

template <class T>
void dropout_loop(int64_t count, const T* x, double p, const DrawUniform& draw, T* y) {
  using S = Sum<T>;
  constexpr int64_t kBlock = 4096;  // random numbers that stay in the cache until they are used
  const auto scale = static_cast<S>(1 / (1 - p));
  const auto bound = static_cast<float>(p);
  parallel((count + kBlock - 1) / kBlock, 4, [&](int64_t begin, int64_t end) {
    float numbers[kBlock];
    for (int64_t block = begin; block < end; ++block) {
      const int64_t from = block * kBlock;
      const int64_t some = std::min(kBlock, count - from);
      draw(numbers, some, from);
      for (int64_t i = 0; i < some; ++i) {
        const S kept = S(x[from + i]) * scale;
        y[from + i] = T(numbers[i] < bound ? S(0) : kept);
      }
    }
  });
}

template void dropout_loop<float>(int64_t, const float*, double, const DrawUniform&, float*);
template void dropout_loop<double>(int64_t, const double*, double, const DrawUniform&, double*);
template void dropout_loop<c10::BFloat16>(int64_t, const c10::BFloat16*, double, const DrawUniform&, c10::BFloat16*);

}  // namespace concord::ops
