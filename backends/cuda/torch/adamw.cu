#include "backends/cuda/torch/device_math.cuh"

namespace concord::cuda::torch_side {
namespace {

constexpr int kBlock = 256;
constexpr int kAtOnce = 4;  // 16 bytes of fp32

struct Nothing {};  // instead of the 16-bit parameter

// Roundings as on the host: without fused multiply-adds, so that an element's bits do not depend on the device.
template <class G, class V, int N>
__global__ void update(AdamWNumbers n, const G* grads, float* weights, float* m, float* v, V* values, int64_t count) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kBlock + threadIdx.x;
  if (i >= count / N) return;
  const Vector<G, N> g_ = reinterpret_cast<const Vector<G, N>*>(grads)[i];
  Vector<float, N> w_ = reinterpret_cast<Vector<float, N>*>(weights)[i];
  Vector<float, N> m_ = reinterpret_cast<Vector<float, N>*>(m)[i];
  Vector<float, N> v_ = reinterpret_cast<Vector<float, N>*>(v)[i];
  for (int k = 0; k < N; ++k) {
    const float g = __fmul_rn(static_cast<float>(g_.at[k]), n.grad_scale);
    m_.at[k] = __fadd_rn(m_.at[k], __fmul_rn(n.beta1_rest, __fsub_rn(g, m_.at[k])));
    v_.at[k] = __fadd_rn(__fmul_rn(n.beta2, v_.at[k]), __fmul_rn(__fmul_rn(n.beta2_rest, g), g));
    const float root = __fadd_rn(__fdiv_rn(__fsqrt_rn(v_.at[k]), n.root_rest), n.eps);
    w_.at[k] = __fsub_rn(__fmul_rn(w_.at[k], n.decay), __fmul_rn(n.step_size, __fdiv_rn(m_.at[k], root)));
  }
  reinterpret_cast<Vector<float, N>*>(weights)[i] = w_;
  reinterpret_cast<Vector<float, N>*>(m)[i] = m_;
  reinterpret_cast<Vector<float, N>*>(v)[i] = v_;
  if constexpr (!std::is_same_v<V, Nothing>) {
    Vector<V, N> rounded;
    for (int k = 0; k < N; ++k) rounded.at[k] = static_cast<V>(w_.at[k]);
    reinterpret_cast<Vector<V, N>*>(values)[i] = rounded;
  }
}

template <class G, class V, int N>
void launch(cudaStream_t stream, const AdamWNumbers& numbers, const AdamWArrays& a, int64_t begin, int64_t count) {
  if (count == 0) return;
  V* const values = std::is_same_v<V, Nothing> ? nullptr : static_cast<V*>(a.values) + begin;
  update<G, V, N><<<grid(count / N, kBlock), kBlock, 0, stream>>>(numbers, static_cast<const G*>(a.grads) + begin,
                                                                  a.weights + begin, a.m + begin, a.v + begin, values,
                                                                  count);
}

template <class G, class V>
void step(cudaStream_t stream, const AdamWNumbers& numbers, const AdamWArrays& a, int64_t count) {
  const auto pointers = {a.grads, static_cast<const void*>(a.weights), static_cast<const void*>(a.m),
                         static_cast<const void*>(a.v), static_cast<const void*>(a.values)};
  const int64_t wide = std::all_of(pointers.begin(), pointers.end(), is_aligned) ? count / kAtOnce * kAtOnce : 0;
  launch<G, V, kAtOnce>(stream, numbers, a, 0, wide);
  launch<G, V, 1>(stream, numbers, a, wide, count - wide);
}

template <class G>
void step_with(cudaStream_t stream, const AdamWNumbers& numbers, const AdamWArrays& a, int64_t count) {
  if (a.values == nullptr) return step<G, Nothing>(stream, numbers, a, count);
  if (a.values_type == Type::bf16) return step<G, __nv_bfloat16>(stream, numbers, a, count);
  if (a.values_type == Type::f16) return step<G, __half>(stream, numbers, a, count);
  throw std::runtime_error("adamw: values have to be bf16 or fp16");
}

}  // namespace

void adamw(cudaStream_t stream, const AdamWNumbers& numbers, const AdamWArrays& a, int64_t count) {
  switch (a.grads_type) {
    case Type::f32: step_with<float>(stream, numbers, a, count); break;
    case Type::bf16: step_with<__nv_bfloat16>(stream, numbers, a, count); break;
    case Type::f16: step_with<__half>(stream, numbers, a, count); break;
    case Type::f64: throw std::runtime_error("adamw: gradients have to be fp32, bf16 or fp16");
  }
  check_launch("adamw");
}

}  // namespace concord::cuda::torch_side
