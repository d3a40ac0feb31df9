#include "backends/cuda/torch/ops/choices.h"
#include "backends/cuda/torch/ops/device_math.cuh"
#include "backends/cuda/torch/ops/moe/moe_kernels.h"

namespace concord::cuda::torch_side {
namespace {

constexpr int kWarps = 8;  // warps per block; a warp processes a token

// [1, 2, 4, 8 or 16 experts for a thread]
const Choice kForth[5] = {{"moe_route: up to 32 experts", kAllTypes},
                          {"moe_route: up to 64 experts", kAllTypes},
                          {"moe_route: up to 128 experts", kAllTypes},
                          {"moe_route: up to 256 experts", kAllTypes},
                          {"moe_route: up to 512 experts", kAllTypes}};
const Choice kBack[5] = {{"moe_route_backward: up to 32 experts", kAllTypes},
                         {"moe_route_backward: up to 64 experts", kAllTypes},
                         {"moe_route_backward: up to 128 experts", kAllTypes},
                         {"moe_route_backward: up to 256 experts", kAllTypes},
                         {"moe_route_backward: up to 512 experts", kAllTypes}};

struct Larger {
  template <class S>
  __device__ S operator()(S a, S b) const {
    return a != a || a > b ? a : b;  // NaN stays
  }
};

template <class S, class Combine>
__device__ S over_warp(S value, const Combine& combine) {
  return over_row<32>(value, static_cast<S*>(nullptr), combine);
}

// Keys that are in the order of numbers, with NaN as the largest and both zeros the same; 0 is below all of them.
__device__ unsigned key_of(float x) {
  const unsigned bits = __float_as_uint(x + 0.0f);
  return x != x ? ~0u : bits >> 31 ? ~bits : bits | 0x80000000u;
}
__device__ unsigned long long key_of(double x) {
  const auto bits = static_cast<unsigned long long>(__double_as_longlong(x + 0.0));
  return x != x ? ~0ull : bits >> 63 ? ~bits : bits | 0x8000000000000000ull;
}

// The logits of a token: expert 32 i + lane is the thread's i-th; -inf if there is none.
template <class T, int kPer>
struct Logits {
  using S = SumOf<T>;
  S at[kPer];

  __device__ Logits(const RoutedTokens& shape, const T* logits, int64_t token) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
    for (int i = 0; i < kPer; ++i) {
      const int expert = 32 * i + lane;
      at[i] = expert < shape.experts ? static_cast<S>(logits[token * shape.experts + expert]) : S(-INFINITY);
    }
  }
};

// Finds the k largest logits in order; ties are broken by the lower expert. The thread of lane j keeps the j-th.
template <class T, int kPer>
__global__ void forward(RoutedTokens shape, const T* logits, SumOf<T>* weights, int64_t* experts) {
  using S = SumOf<T>;
  using Key = decltype(key_of(S()));
  const int64_t token = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32;
  if (token >= shape.tokens) return;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const Logits<T, kPer> own(shape, logits, token);
  Key keys[kPer];
#pragma unroll
  for (int i = 0; i < kPer; ++i) keys[i] = 32 * i + lane < shape.experts ? key_of(own.at[i]) : Key(0);
  S value = S(-INFINITY), largest = 0;
  int chosen = 0;
  for (int j = 0; j < shape.k; ++j) {
    Key best = 0;
    int expert = 0;
    S logit = 0;
#pragma unroll
    for (int i = 0; i < kPer; ++i) {
      if (keys[i] > best) best = keys[i], expert = 32 * i + lane, logit = own.at[i];
    }
#pragma unroll
    for (int step = 16; step > 0; step /= 2) {
      const Key other = __shfl_xor_sync(~0u, best, step);
      const int other_expert = __shfl_xor_sync(~0u, expert, step);
      const S other_logit = __shfl_xor_sync(~0u, logit, step);
      if (other > best || (other == best && other_expert < expert)) {
        best = other, expert = other_expert, logit = other_logit;
      }
    }
#pragma unroll
    for (int i = 0; i < kPer; ++i) {
      if (expert == 32 * i + lane) keys[i] = 0;
    }
    if (j == 0) largest = logit;
    if (j == lane) value = logit, chosen = expert;
  }
  const S term = lane < shape.k ? exp(value - largest) : S(0);
  S terms = term;
  if (!shape.over_chosen) {
    terms = 0;
#pragma unroll
    for (int i = 0; i < kPer; ++i) terms += exp(own.at[i] - largest);
  }
  const S sum = over_warp(terms, Plus());
  if (lane >= shape.k) return;
  weights[token * shape.k + lane] = term / sum * static_cast<S>(shape.scale);
  experts[token * shape.k + lane] = chosen;
}

// With p the softmax over what it is taken over: p (g - sum(g p)), where g is 0 for experts that were not chosen.
template <class T, int kPer>
__global__ void backward(RoutedTokens shape, const SumOf<T>* grad, const T* logits, const int64_t* experts, T* result) {
  using S = SumOf<T>;
  const int64_t token = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32;
  if (token >= shape.tokens) return;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const Logits<T, kPer> own(shape, logits, token);
  const int64_t choice = token * shape.k + lane;
  const int chosen = lane < shape.k ? static_cast<int>(experts[choice]) : -1;
  const S of_chosen = lane < shape.k ? grad[choice] * static_cast<S>(shape.scale) : S(0);
  S g[kPer] = {};
  bool counts[kPer];
#pragma unroll
  for (int i = 0; i < kPer; ++i) counts[i] = !shape.over_chosen && 32 * i + lane < shape.experts;
  for (int j = 0; j < shape.k; ++j) {
    const int expert = __shfl_sync(~0u, chosen, j);
    const S of_expert = __shfl_sync(~0u, of_chosen, j);
#pragma unroll
    for (int i = 0; i < kPer; ++i) {
      if (expert == 32 * i + lane) g[i] = of_expert, counts[i] = true;
    }
  }
  S largest = S(-INFINITY), sum = 0, product = 0, p[kPer];
#pragma unroll
  for (int i = 0; i < kPer; ++i) largest = counts[i] ? Larger()(own.at[i], largest) : largest;
  largest = over_warp(largest, Larger());
#pragma unroll
  for (int i = 0; i < kPer; ++i) {
    p[i] = counts[i] ? exp(own.at[i] - largest) : S(0);
    sum += p[i];
    product += p[i] * g[i];
  }
  sum = over_warp(sum, Plus());
  product = over_warp(product, Plus()) / sum;
#pragma unroll
  for (int i = 0; i < kPer; ++i) {
    const int expert = 32 * i + lane;
    if (expert < shape.experts) result[token * shape.experts + expert] = static_cast<T>(p[i] / sum * (g[i] - product));
  }
}

template <class Body>
void visit_experts(int64_t experts, const Body& body) {
  if (experts <= 32) return body(std::integral_constant<int, 1>{}, 0);
  if (experts <= 64) return body(std::integral_constant<int, 2>{}, 1);
  if (experts <= 128) return body(std::integral_constant<int, 4>{}, 2);
  if (experts <= 256) return body(std::integral_constant<int, 8>{}, 3);
  body(std::integral_constant<int, 16>{}, 4);
}

}  // namespace

bool moe_route_fits(const RoutedTokens& shape) {
  return shape.tokens > 0 && shape.experts <= 512 && shape.k <= std::min<int64_t>(32, shape.experts);
}

void moe_route(Where where, const RoutedTokens& shape, const void* logits, void* weights, int64_t* experts) {
  visit(where.type, [&]<class T>(T) {
    visit_experts(shape.experts, [&](auto per, int number) {
      kForth[number].take(where.type);
      forward<T, per.value><<<grid(shape.tokens, kWarps), 32 * kWarps, 0, where.stream>>>(
          shape, static_cast<const T*>(logits), static_cast<SumOf<T>*>(weights), experts);
    });
  });
  check_launch("moe_route");
}

void moe_route_backward(Where where, const RoutedTokens& shape, const void* grad, const void* logits,
                        const int64_t* experts, void* result) {
  visit(where.type, [&]<class T>(T) {
    visit_experts(shape.experts, [&](auto per, int number) {
      kBack[number].take(where.type);
      backward<T, per.value><<<grid(shape.tokens, kWarps), 32 * kWarps, 0, where.stream>>>(
          shape, static_cast<const SumOf<T>*>(grad), static_cast<const T*>(logits), experts, static_cast<T*>(result));
    });
  });
  check_launch("moe_route_backward");
}

}  // namespace concord::cuda::torch_side
