#include <cmath>

#include "backends/cuda/torch/ops/choices.h"
#include "backends/cuda/torch/ops/device_math.cuh"

namespace concord::cuda::torch_side {
namespace {

constexpr int kBlock = 512;

// The largest of some logits and the sum of exp(logit - largest).
template <class S>
struct Softmax {
  S largest;
  S sum;
};

template <class S>
__device__ Softmax<S> both(Softmax<S> a, Softmax<S> b) {
  const S top = max(a.largest, b.largest);
  if (top == -static_cast<S>(INFINITY)) return {top, S(0)};  // neither has seen a logit that counts
  return {top, a.sum * exp(a.largest - top) + b.sum * exp(b.largest - top)};
}

template <class S>
__device__ Softmax<S> over_block(Softmax<S> mine) {
  __shared__ S largest[kBlock / 32], sum[kBlock / 32];
  for (int lane = 16; lane > 0; lane /= 2) {
    mine = both(mine, {__shfl_xor_sync(~0u, mine.largest, lane), __shfl_xor_sync(~0u, mine.sum, lane)});
  }
  const int warp = static_cast<int>(threadIdx.x) / 32;
  if (threadIdx.x % 32 == 0) {
    largest[warp] = mine.largest;
    sum[warp] = mine.sum;
  }
  __syncthreads();
  mine = {largest[0], sum[0]};
  for (int i = 1; i < kBlock / 32; ++i) mine = both(mine, {largest[i], sum[i]});
  return mine;
}

// One block per row. Vectors that reach beyond the counted columns are processed element by element.
template <class T, int N, bool kWithSum>
__global__ void parts_of_row(VocabRows shape, const T* logits, const int64_t* labels, SumOf<T>* parts) {
  using S = SumOf<T>;
  __shared__ S shared[kBlock / 32];
  const int64_t row = blockIdx.x;
  const T* const in = logits + row * shape.width;
  Softmax<S> mine{-static_cast<S>(INFINITY), S(0)};
  S total = 0;
  for (int64_t i = threadIdx.x * N; i < shape.used; i += kBlock * N) {
    const Vector<T, N> v = *reinterpret_cast<const Vector<T, N>*>(in + i);
    S top = -static_cast<S>(INFINITY);
    for (int k = 0; k < N; ++k) {
      if (i + k < shape.used) top = max(top, static_cast<S>(v.at[k]));
    }
    Softmax<S> some{top, S(0)};
    for (int k = 0; k < N; ++k) {
      if (i + k >= shape.used) continue;
      some.sum += exp(static_cast<S>(v.at[k]) - top);
      if constexpr (kWithSum) total += static_cast<S>(v.at[k]);
    }
    mine = both(mine, some);
  }
  mine = over_block(mine);
  if constexpr (kWithSum) total = over_row<kBlock>(total, shared, Plus());
  if (threadIdx.x != 0) return;
  const int64_t label = labels[row] - shape.first;
  SumOf<T>* const out = parts + row * 4;
  out[0] = mine.largest;
  out[1] = mine.sum;
  out[2] = label >= 0 && label < shape.used ? static_cast<S>(in[label]) : S(0);
  out[3] = total;
}

template <class T, int N>
__global__ void grad_of_row(VocabRows shape, T* logits, const int64_t* labels, const SumOf<T>* log_sum,
                            const SumOf<T>* soft, const SumOf<T>* hard, const SumOf<T>* level) {
  using S = SumOf<T>;
  const int64_t row = blockIdx.y;
  const int64_t i = (static_cast<int64_t>(blockIdx.x) * kBlock + threadIdx.x) * N;
  if (i >= shape.width) return;
  const int64_t label = labels[row] - shape.first;
  const S sum = log_sum[row], a = soft[row], b = hard[row], c = level[row];
  auto* const at = reinterpret_cast<Vector<T, N>*>(logits + row * shape.width + i);
  const Vector<T, N> v = *at;
  Vector<T, N> result;
  for (int k = 0; k < N; ++k) {
    const S x = exp(static_cast<S>(v.at[k]) - sum) * a - (i + k == label ? b : S(0)) - c;
    result.at[k] = static_cast<T>(i + k < shape.used ? x : S(0));
  }
  *at = result;
}

// exp(x - shift), in the types of 16 bits by the processor's own power of 2: off by 2 + 1.2 (|x| + |shift|) units in
// the last place of fp32.
template <class T>
__device__ SumOf<T> exp_minus(SumOf<T> x, SumOf<T> shift) {
  if constexpr (sizeof(T) == 2) {
    constexpr float kLog2E = 1.4426950408889634F;
    float power = 0;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(fmaf(x, kLog2E, -shift * kLog2E)));
    return power;
  } else {
    return exp(x - shift);
  }
}

constexpr int kRowBlock = 1024;  // threads of one row

template <class S>
__device__ Softmax<S> over_row_block(Softmax<S> mine) {
  __shared__ S largest[kRowBlock / 32], sum[kRowBlock / 32];
  for (int lane = 16; lane > 0; lane /= 2) {
    mine = both(mine, {__shfl_xor_sync(~0u, mine.largest, lane), __shfl_xor_sync(~0u, mine.sum, lane)});
  }
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  if (lane == 0) {
    largest[warp] = mine.largest;
    sum[warp] = mine.sum;
  }
  __syncthreads();
  mine = {largest[lane], sum[lane]};  // one for each of the 32 warps
  for (int k = 16; k > 0; k /= 2) {
    mine = both(mine, {__shfl_xor_sync(~0u, mine.largest, k), __shfl_xor_sync(~0u, mine.sum, k)});
  }
  return mine;
}

// |count| more logits, at most N of them, which is the usual case.
template <class T, int N, bool kSmooth>
__device__ void see(const Vector<T, N>& v, int count, Softmax<SumOf<T>>* softmax, SumOf<T>* total) {
  using S = SumOf<T>;
  S x[N], top = softmax->largest;
#pragma unroll
  for (int k = 0; k < N; ++k) {
    x[k] = k < count ? static_cast<S>(v.at[k]) : -static_cast<S>(INFINITY);
    top = max(top, x[k]);
    if constexpr (kSmooth) *total += k < count ? x[k] : S(0);
  }
  if (top == -static_cast<S>(INFINITY)) return;  // no logit that counts so far
  S sum = softmax->largest == top ? softmax->sum : softmax->sum * exp_minus<T>(softmax->largest, top);
#pragma unroll
  for (int k = 0; k < N; ++k) sum += exp_minus<T>(x[k], top);
  *softmax = {top, sum};
}

// softmax * soft - [label] * hard - level of a row.
template <class S>
struct RowGrad {
  S log_sum, soft, hard, level;
};

// Element |label| of the vector (none if it is not one of its) is the label's; from |count| on there is padding.
template <class T, int N>
__device__ Vector<T, N> grad_of(const Vector<T, N>& v, const RowGrad<SumOf<T>>& row, int label, int count) {
  using S = SumOf<T>;
  Vector<T, N> result;
#pragma unroll
  for (int k = 0; k < N; ++k) {
    const S x = exp_minus<T>(static_cast<S>(v.at[k]), row.log_sum) * row.soft - row.level;
    result.at[k] = static_cast<T>(k < count ? (k == label ? x - row.hard : x) : S(0));
  }
  return result;
}

// One block per row, of fewer than 2^31 columns. The first |kept| vectors of the row stay in the block's memory between
// the two passes; the rest is read again, from the cache.
template <class T, int N, bool kSmooth>
__global__ void __launch_bounds__(kRowBlock, 1)
    loss_and_grad(VocabRows shape, int kept, T* logits, const int64_t* labels, LossNumbers numbers, SumOf<T>* loss) {
  using S = SumOf<T>;
  using Vec = Vector<T, N>;
  extern __shared__ __align__(16) unsigned char memory[];
  __shared__ S shared[kRowBlock / 32];
  auto* const own = reinterpret_cast<Vec*>(memory);
  const int64_t row = blockIdx.x;
  auto* const at = reinterpret_cast<Vec*>(logits + row * shape.width);
  const int vectors = static_cast<int>(shape.width / N), used = static_cast<int>(shape.used), whole = used / N;
  const bool counts = labels[row] != numbers.ignore_index;
  const int label = labels[row] >= 0 && labels[row] < used ? static_cast<int>(labels[row]) : -1;
  // Read before any thread writes over it.
  const S at_label = label >= 0 ? static_cast<S>(logits[row * shape.width + label]) : S(0);
  Softmax<S> mine{-static_cast<S>(INFINITY), S(0)};
  S total = 0;
#pragma unroll 4
  for (int i = static_cast<int>(threadIdx.x); i < whole; i += kRowBlock) {
    const Vec v = at[i];
    if (i < kept) own[i] = v;
    see<T, N, kSmooth>(v, N, &mine, &total);
  }
  if (used % N != 0 && threadIdx.x == 0) see<T, N, kSmooth>(at[whole], used % N, &mine, &total);
  mine = over_row_block(mine);
  const S log_sum = mine.largest + log(mine.sum);
  if constexpr (kSmooth) total = over_row<kRowBlock>(total, shared, Plus());
  const S s = static_cast<S>(numbers.label_smoothing), z = static_cast<S>(numbers.z_loss);
  const S all = static_cast<S>(shape.used);
  if (threadIdx.x == 0) {
    const S value = log_sum - (S(1) - s) * at_label - s / all * total + z * log_sum * log_sum;
    loss[row] = counts ? value : S(0);
  }
  const S grad = static_cast<S>(numbers.grad);
  const RowGrad<S> by{log_sum, grad * (S(1) + S(2) * z * log_sum), grad * (S(1) - s), grad * s / all};
  const int label_vector = label / N;
#pragma unroll 4
  for (int i = static_cast<int>(threadIdx.x); i < vectors; i += kRowBlock) {
    if (!counts) {
      at[i] = Vec{};
    } else if (i < whole && (i != label_vector || label < 0)) {
      at[i] = grad_of<T, N>(i < kept ? own[i] : at[i], by, -1, N);
    } else {
      at[i] = grad_of<T, N>(at[i], by, label - i * N, used - i * N);
    }
  }
}

template <class T, int N>
__global__ void rescale_row(Rows shape, T* x, const SumOf<T>* grad, SumOf<T> expected) {
  if (grad[blockIdx.x] == expected) return;
  const SumOf<T> by = grad[blockIdx.x] / expected;
  auto* const at = reinterpret_cast<Vector<T, N>*>(x + blockIdx.x * shape.width);
  for (int64_t i = threadIdx.x; i < shape.width / N; i += kBlock) {
    Vector<T, N> v = at[i];
    for (int k = 0; k < N; ++k) v.at[k] = static_cast<T>(static_cast<SumOf<T>>(v.at[k]) * by);
    at[i] = v;
  }
}

// [the row fits]
const Choice kRowKept[2] = {{"cross_entropy_with_grad: a part of the row is read twice", kAllTypes},
                            {"cross_entropy_with_grad: the row stays in the block", kAllTypes}};

int64_t most_memory() {
  int device = 0, bytes = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
  return bytes - 2048;  // the kernel's own arrays
}

template <class Kernel>
void allow_memory(Kernel kernel, int64_t bytes) {
  cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes));
}

}  // namespace

void cross_entropy_with_grad(Where where, const VocabRows& shape, void* logits, const int64_t* labels,
                             const LossNumbers& numbers, void* loss) {
  if (shape.rows == 0) return;
  visit(where.type, [&]<class T>(T) {
    visit_wide<T>(goes_wide<T>(shape.width, {logits}), [&](auto n) {
      const int64_t vector = static_cast<int64_t>(sizeof(T)) * n.value;
      const int64_t kept = std::min(shape.width / n.value, most_memory() / vector);  // vectors
      kRowKept[kept * n.value == shape.width].take(where.type);
      const auto launch = [&](auto smooth) {
        const auto kernel = loss_and_grad<T, n.value, smooth.value>;
        allow_memory(kernel, kept * vector);
        kernel<<<static_cast<unsigned>(shape.rows), kRowBlock, static_cast<size_t>(kept * vector), where.stream>>>(
            shape, static_cast<int>(kept), static_cast<T*>(logits), labels, numbers, static_cast<SumOf<T>*>(loss));
      };
      if (numbers.label_smoothing > 0) {
        launch(std::true_type{});
      } else {
        launch(std::false_type{});
      }
    });
  });
  check_launch("cross_entropy_with_grad");
}

void cross_entropy_rescale(Where where, Rows shape, void* x, const void* grad, double expected) {
  if (shape.rows * shape.width == 0) return;
  visit(where.type, [&]<class T>(T) {
    visit_wide<T>(goes_wide<T>(shape.width, {x}), [&](auto n) {
      using S = SumOf<T>;
      rescale_row<T, n.value><<<static_cast<unsigned>(shape.rows), kBlock, 0, where.stream>>>(
          shape, static_cast<T*>(x), static_cast<const S*>(grad), static_cast<S>(expected));
    });
  });
  check_launch("cross_entropy_rescale");
}

void cross_entropy_parts(Where where, const VocabRows& shape, const void* logits, const int64_t* labels, bool with_sum,
                         void* parts) {
  if (shape.rows == 0) return;
  visit(where.type, [&]<class T>(T) {
    visit_wide<T>(goes_wide<T>(shape.width, {logits}), [&](auto n) {
      const auto launch = [&](auto sums) {
        parts_of_row<T, n.value, sums.value><<<static_cast<unsigned>(shape.rows), kBlock, 0, where.stream>>>(
            shape, static_cast<const T*>(logits), labels, static_cast<SumOf<T>*>(parts));
      };
      if (with_sum) {
        launch(std::true_type{});
      } else {
        launch(std::false_type{});
      }
    });
  });
  check_launch("cross_entropy_parts");
}

void cross_entropy_grad(Where where, const VocabRows& shape, void* logits, const int64_t* labels, const void* log_sum,
                        const void* soft, const void* hard, const void* level) {
  if (shape.rows * shape.width == 0) return;
  constexpr int64_t kMaxRows = 65535;  // limit of the second dim of a grid
  visit(where.type, [&]<class T>(T) {
    using S = SumOf<T>;
    visit_wide<T>(goes_wide<T>(shape.width, {logits}), [&](auto n) {
      for (int64_t row = 0; row < shape.rows; row += kMaxRows) {
        const auto rows = static_cast<unsigned>(std::min(kMaxRows, shape.rows - row));
        grad_of_row<T, n.value><<<dim3(grid(shape.width, kBlock * n.value), rows), kBlock, 0, where.stream>>>(
            shape, static_cast<T*>(logits) + row * shape.width, labels + row, static_cast<const S*>(log_sum) + row,
            static_cast<const S*>(soft) + row, static_cast<const S*>(hard) + row, static_cast<const S*>(level) + row);
      }
    });
  });
  check_launch("cross_entropy_grad");
}

}  // namespace concord::cuda::torch_side
