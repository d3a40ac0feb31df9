#include <vector>

#include "backends/cuda/torch/ops/device_math.cuh"

namespace concord::cuda::torch_side {
namespace {

constexpr int kBlock = 256;
constexpr int kAtOnce = 4;  // 16 bytes of fp32
constexpr int kRounds = 4;  // vectors per thread: their loads run in parallel
constexpr int kParts = 48;  // per launch: its arguments must stay below 4 KiB

struct Nothing {};  // type of |values| if there is no 16-bit parameter

template <class G, class V>
struct Part {
  const G* grads;
  float *weights, *m, *v;
  V* values;
  int64_t vectors;
  int64_t end_block;  // first block after this part
};

template <class G, class V>
struct Parts {
  Part<G, V> at[kParts];
};

// One AdamW update of N elements; the formula is in core/optim/rules/adamw.h. Rounds as the host does, without fused
// multiply-adds, so that an element's bits do not depend on the device.
template <class G, class V, int N>
__device__ void update(const AdamWNumbers& n, float scale, const Part<G, V>& part, int64_t i) {
  const Vector<G, N> g_ = reinterpret_cast<const Vector<G, N>*>(part.grads)[i];
  Vector<float, N> w_ = reinterpret_cast<Vector<float, N>*>(part.weights)[i];
  Vector<float, N> m_ = reinterpret_cast<Vector<float, N>*>(part.m)[i];
  Vector<float, N> v_ = reinterpret_cast<Vector<float, N>*>(part.v)[i];
  for (int k = 0; k < N; ++k) {
    // g_t: the gradient, clipped and without the loss scale
    const float g = __fmul_rn(static_cast<float>(g_.at[k]), scale);
    // m_t = beta1 m + (1 - beta1) g, as m + (1 - beta1) (g - m)
    m_.at[k] = __fadd_rn(m_.at[k], __fmul_rn(n.one_minus_beta1, __fsub_rn(g, m_.at[k])));
    // v_t = beta2 v + (1 - beta2) g^2
    v_.at[k] = __fadd_rn(__fmul_rn(n.beta2, v_.at[k]), __fmul_rn(__fmul_rn(n.one_minus_beta2, g), g));
    // sqrt(v^) + eps, where v^ = v_t / (1 - beta2^t)
    const float denominator = __fadd_rn(__fdiv_rn(__fsqrt_rn(v_.at[k]), n.sqrt_bias_correction2), n.eps);
    // w_t = (1 - lr weight_decay) w - lr m^ / (sqrt(v^) + eps), where m^ = m_t / (1 - beta1^t)
    w_.at[k] = __fsub_rn(__fmul_rn(w_.at[k], n.decay), __fmul_rn(n.step_size, __fdiv_rn(m_.at[k], denominator)));
  }
  reinterpret_cast<Vector<float, N>*>(part.weights)[i] = w_;
  reinterpret_cast<Vector<float, N>*>(part.m)[i] = m_;
  reinterpret_cast<Vector<float, N>*>(part.v)[i] = v_;
  if constexpr (!std::is_same_v<V, Nothing>) {
    Vector<V, N> rounded;
    for (int k = 0; k < N; ++k) rounded.at[k] = static_cast<V>(w_.at[k]);
    reinterpret_cast<Vector<V, N>*>(part.values)[i] = rounded;
  }
}

template <class G, class V, int N>
__global__ void update_parts(AdamWNumbers numbers, __grid_constant__ const Parts<G, V> parts) {
  const float scale = numbers.factor == nullptr ? numbers.grad_scale : *numbers.factor;
  if (numbers.factor != nullptr && !isfinite(scale)) return;
  int p = 0;
  while (blockIdx.x >= parts.at[p].end_block) ++p;
  const int64_t first_block = p == 0 ? 0 : parts.at[p - 1].end_block;
  const int64_t begin = (blockIdx.x - first_block) * kBlock * kRounds + threadIdx.x;
#pragma unroll
  for (int round = 0; round < kRounds; ++round) {
    const int64_t i = begin + round * kBlock;
    if (i < parts.at[p].vectors) update<G, V, N>(numbers, scale, parts.at[p], i);
  }
}

// Collects parts of one kind and launches a kernel whenever kParts are full, and at its end.
template <class G, class V, int N>
class Launcher {
 public:
  Launcher(cudaStream_t stream, const AdamWNumbers& numbers) : stream_(stream), numbers_(numbers) {}
  ~Launcher() { launch(); }

  void add(const AdamWArrays& a, int64_t begin, int64_t end) {
    if (begin == end) return;
    if (used_ == kParts) launch();
    V* const values = std::is_same_v<V, Nothing> ? nullptr : static_cast<V*>(a.values) + begin;
    const int64_t vectors = (end - begin) / N;
    blocks_ += (vectors + kBlock * kRounds - 1) / (kBlock * kRounds);
    parts_.at[used_++] = {
        static_cast<const G*>(a.grads) + begin, a.weights + begin, a.m + begin, a.v + begin, values, vectors, blocks_};
  }

 private:
  void launch() {
    if (used_ > 0) update_parts<G, V, N><<<static_cast<unsigned>(blocks_), kBlock, 0, stream_>>>(numbers_, parts_);
    used_ = 0;
    blocks_ = 0;
  }

  const cudaStream_t stream_;
  const AdamWNumbers& numbers_;
  Parts<G, V> parts_ = {};
  int used_ = 0;
  int64_t blocks_ = 0;
};

// Computes min(1, max_norm / norm) / divisor like clip_factor of core/optim on the host; NaN unless all is finite.
__global__ void write_factor(const double* squares, const double* loss, double max_norm, double divisor,
                             float* factor) {
  const double norm = sqrt(*squares);
  const double clip = max_norm > 0 ? fmin(1.0, max_norm / (norm + 1e-6)) : 1.0;
  const bool finite = isfinite(norm) && (loss == nullptr || isfinite(*loss));
  *factor = finite ? static_cast<float>(clip / divisor) : NAN;
}

bool is_wide(const AdamWArrays& a) {
  return is_aligned(a.grads) && is_aligned(a.weights) && is_aligned(a.m) && is_aligned(a.v) && is_aligned(a.values);
}

template <class G, class V>
void step(cudaStream_t stream, const AdamWNumbers& numbers, const std::vector<AdamWArrays>& arrays) {
  Launcher<G, V, kAtOnce> wide(stream, numbers);
  Launcher<G, V, 1> narrow(stream, numbers);
  for (const AdamWArrays& a : arrays) {
    const int64_t border = is_wide(a) ? a.count / kAtOnce * kAtOnce : 0;
    wide.add(a, 0, border);
    narrow.add(a, border, a.count);
  }
}

template <class G>
void step_with(cudaStream_t stream, const AdamWNumbers& numbers, std::span<const AdamWArrays> all, Type grads_type) {
  std::vector<AdamWArrays> alone, bf16, f16;
  for (const AdamWArrays& a : all) {
    if (a.grads_type != grads_type) continue;
    (a.values == nullptr ? alone : a.values_type == Type::bf16 ? bf16 : f16).push_back(a);
  }
  step<G, Nothing>(stream, numbers, alone);
  step<G, __nv_bfloat16>(stream, numbers, bf16);
  step<G, __half>(stream, numbers, f16);
}

}  // namespace

void adamw(cudaStream_t stream, const AdamWNumbers& numbers, std::span<const AdamWArrays> arrays) {
  step_with<float>(stream, numbers, arrays, Type::f32);
  step_with<__nv_bfloat16>(stream, numbers, arrays, Type::bf16);
  step_with<__half>(stream, numbers, arrays, Type::f16);
  check_launch("adamw");
}

void update_factor(cudaStream_t stream, const double* squares, const double* loss, double max_norm, double divisor,
                   float* factor) {
  write_factor<<<1, 1, 0, stream>>>(squares, loss, max_norm, divisor, factor);
  check_launch("update_factor");
}

}  // namespace concord::cuda::torch_side
