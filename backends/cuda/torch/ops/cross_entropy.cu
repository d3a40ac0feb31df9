#include <cmath>

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

}  // namespace

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
  constexpr int64_t kMostRows = 65535;  // of a grid in its second dim
  visit(where.type, [&]<class T>(T) {
    using S = SumOf<T>;
    visit_wide<T>(goes_wide<T>(shape.width, {logits}), [&](auto n) {
      for (int64_t row = 0; row < shape.rows; row += kMostRows) {
        const auto rows = static_cast<unsigned>(std::min(kMostRows, shape.rows - row));
        grad_of_row<T, n.value><<<dim3(grid(shape.width, kBlock * n.value), rows), kBlock, 0, where.stream>>>(
            shape, static_cast<T*>(logits) + row * shape.width, labels + row, static_cast<const S*>(log_sum) + row,
            static_cast<const S*>(soft) + row, static_cast<const S*>(hard) + row, static_cast<const S*>(level) + row);
      }
    });
  });
  check_launch("cross_entropy_grad");
}

}  // namespace concord::cuda::torch_side
