#include "backends/cuda/torch/ops/device_math.cuh"

namespace concord::cuda::torch_side {
namespace {

constexpr int kBlock = 256;

template <class S>
__device__ S sigmoid(S x) {
  return S(1) / (S(1) + exp(-x));
}

template <class T, int N>
__global__ void forward(int64_t vectors, int64_t row_vectors, const T* gate_up, T* y) {
  using S = SumOf<T>;
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kBlock + threadIdx.x;
  if (i >= vectors) return;
  const int64_t row = i / row_vectors;
  const auto* const in = reinterpret_cast<const Vector<T, N>*>(gate_up) + row * row_vectors;
  const Vector<T, N> gate = in[i], up = in[i + row_vectors];
  Vector<T, N> result;
  for (int k = 0; k < N; ++k) {
    const S g = static_cast<S>(gate.at[k]);
    result.at[k] = static_cast<T>(g * sigmoid(g) * static_cast<S>(up.at[k]));
  }
  reinterpret_cast<Vector<T, N>*>(y)[i] = result;
}

template <class T, int N>
__global__ void backward(int64_t vectors, int64_t row_vectors, const T* grad, const T* gate_up, T* result) {
  using S = SumOf<T>;
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kBlock + threadIdx.x;
  if (i >= vectors) return;
  const int64_t at = i + i / row_vectors * row_vectors;
  const auto* const in = reinterpret_cast<const Vector<T, N>*>(gate_up);
  auto* const out = reinterpret_cast<Vector<T, N>*>(result);
  const Vector<T, N> gate = in[at], up = in[at + row_vectors], d = reinterpret_cast<const Vector<T, N>*>(grad)[i];
  Vector<T, N> dgate, dup;
  for (int k = 0; k < N; ++k) {
    const S g = static_cast<S>(gate.at[k]), s = sigmoid(g), dk = static_cast<S>(d.at[k]);
    dgate.at[k] = static_cast<T>(dk * static_cast<S>(up.at[k]) * (s + g * s * (S(1) - s)));
    dup.at[k] = static_cast<T>(dk * g * s);
  }
  out[at] = dgate;
  out[at + row_vectors] = dup;
}

}  // namespace

void swiglu(Where where, Rows shape, const void* gate_up, void* y) {
  if (shape.rows * shape.width == 0) return;
  visit(where.type, [&]<class T>(T) {
    visit_wide<T>(goes_wide<T>(shape.width, {gate_up, y}), [&](auto n) {
      const int64_t vectors = shape.rows * shape.width / n.value;
      forward<T, n.value><<<grid(vectors, kBlock), kBlock, 0, where.stream>>>(
          vectors, shape.width / n.value, static_cast<const T*>(gate_up), static_cast<T*>(y));
    });
  });
  check_launch("swiglu");
}

void swiglu_backward(Where where, Rows shape, const void* grad, const void* gate_up, void* result) {
  if (shape.rows * shape.width == 0) return;
  visit(where.type, [&]<class T>(T) {
    visit_wide<T>(goes_wide<T>(shape.width, {grad, gate_up, result}), [&](auto n) {
      const int64_t vectors = shape.rows * shape.width / n.value;
      backward<T, n.value><<<grid(vectors, kBlock), kBlock, 0, where.stream>>>(
          vectors, shape.width / n.value, static_cast<const T*>(grad), static_cast<const T*>(gate_up),
          static_cast<T*>(result));
    });
  });
  check_launch("swiglu_backward");
}

}  // namespace concord::cuda::torch_side
