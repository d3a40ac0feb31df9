#include "backends/cuda/torch/ops/device_math.cuh"

namespace concord::cuda::torch_side {
namespace {

constexpr int kBlock = 128;

template <class T, int N>
__global__ void gather(Lookup shape, const T* table, const int64_t* ids, T* y) {
  const int64_t token = blockIdx.x;
  const int64_t row = ids[token] - shape.first;
  const bool here = row >= 0 && row < shape.table_rows;
  const auto* const from = reinterpret_cast<const Vector<T, N>*>(table + (here ? row : 0) * shape.width);
  auto* const to = reinterpret_cast<Vector<T, N>*>(y + token * shape.width);
  for (int64_t i = threadIdx.x; i < shape.width / N; i += kBlock) {
    Vector<T, N> v = {};
    if (here) v = from[i];
    to[i] = v;
  }
}

// The block of the first of equal ids adds up the gradients of all of them.
template <class T>
__global__ void add_equal(Lookup shape, const T* grad, const int64_t* sorted, const int64_t* token, SumOf<T>* dtable) {
  using S = SumOf<T>;
  const int64_t begin = blockIdx.x;
  const int64_t id = sorted[begin], row = id - shape.first;
  if (row < 0 || row >= shape.table_rows || (begin > 0 && sorted[begin - 1] == id)) return;
  const int64_t column = static_cast<int64_t>(blockIdx.y) * kBlock + threadIdx.x;
  if (column >= shape.width) return;
  S sum = 0;
  for (int64_t i = begin; i < shape.tokens && sorted[i] == id; ++i) {
    sum += static_cast<S>(grad[token[i] * shape.width + column]);
  }
  dtable[row * shape.width + column] += sum;
}

}  // namespace

void embedding(Where where, const Lookup& shape, const void* table, const int64_t* ids, void* y) {
  if (shape.tokens * shape.width == 0) return;
  visit(where.type, [&]<class T>(T) {
    visit_wide<T>(goes_wide<T>(shape.width, {table, y}), [&](auto n) {
      gather<T, n.value><<<static_cast<unsigned>(shape.tokens), kBlock, 0, where.stream>>>(
          shape, static_cast<const T*>(table), ids, static_cast<T*>(y));
    });
  });
  check_launch("embedding");
}

void embedding_backward(Where where, const Lookup& shape, const void* grad, const int64_t* sorted, const int64_t* token,
                        void* dtable) {
  if (shape.tokens * shape.width == 0) return;
  const dim3 blocks(static_cast<unsigned>(shape.tokens), grid(shape.width, kBlock));
  visit(where.type, [&]<class T>(T) {
    add_equal<T><<<blocks, kBlock, 0, where.stream>>>(shape, static_cast<const T*>(grad), sorted, token,
                                                      static_cast<SumOf<T>*>(dtable));
  });
  check_launch("embedding_backward");
}

}  // namespace concord::cuda::torch_side
