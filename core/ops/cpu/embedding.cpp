#include "core/ops/cpu/embedding.h"

#include <algorithm>
#include <cstring>

#include "core/ops/cpu/parallel.h"

namespace concord::ops {

template <class T>
void embedding_gather(const EmbeddingShape& shape, const T* weight, const int64_t* ids, T* y) {
  parallel(shape.tokens, row_grain(shape.width), [&](int64_t begin, int64_t end) {
    for (int64_t token = begin; token < end; ++token) {
      const int64_t row = ids[token] - shape.first;
      T* to = y + token * shape.width;
      if (row >= 0 && row < shape.rows) {
        std::copy_n(weight + row * shape.width, shape.width, to);
      } else {
        std::fill_n(to, shape.width, T(0));
      }
    }
  });
}

// Each thread processes some columns of all rows: no two conflict, and frequent ids do not cause an imbalance.
template <class T>
void embedding_scatter(const EmbeddingShape& shape, const T* grad, const int64_t* ids, Sum<T>* dweight) {
  constexpr int64_t kLine = 32;  // columns per block, so that two threads never share a cache line
  const int64_t lines = (shape.width + kLine - 1) / kLine;
  parallel(lines, row_grain(shape.tokens * kLine), [&](int64_t begin, int64_t end) {
    const int64_t from = begin * kLine;
    const int64_t count = std::min(end * kLine, shape.width) - from;
    for (int64_t token = 0; token < shape.tokens; ++token) {
      const int64_t row = ids[token] - shape.first;
      if (row < 0 || row >= shape.rows) continue;
      const T* g = grad + token * shape.width + from;
      Sum<T>* to = dweight + row * shape.width + from;
      for (int64_t i = 0; i < count; ++i) to[i] += Sum<T>(g[i]);
    }
  });
}

void embedding_clear(void* table, int64_t bytes) {
  constexpr int64_t kGrain = int64_t{1} << 20;
  parallel(bytes, kGrain, [&](int64_t begin, int64_t end) {
    std::memset(static_cast<char*>(table) + begin, 0, static_cast<size_t>(end - begin));
  });
}

#define CONCORD_EMBEDDING(T)                                                              \
  template void embedding_gather<T>(const EmbeddingShape&, const T*, const int64_t*, T*); \
  template void embedding_scatter<T>(const EmbeddingShape&, const T*, const int64_t*, Sum<T>*);
CONCORD_EMBEDDING(float)
CONCORD_EMBEDDING(double)
CONCORD_EMBEDDING(c10::BFloat16)
#undef CONCORD_EMBEDDING

}  // namespace concord::ops
