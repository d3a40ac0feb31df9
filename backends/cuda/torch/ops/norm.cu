#include "backends/cuda/torch/ops/choices.h"
#include "backends/cuda/torch/ops/device_math.cuh"

namespace concord::cuda::torch_side {
namespace {

// Threads to a row: half a warp or a warp, then a block has several rows, or the whole block.
constexpr int kForwardBlock = 256;
constexpr int64_t kForwardShort = 2048;  // up to that width a warp

// The derivative keeps a row in registers, one vector per thread where that can be: with more of them so few threads
// run at a time that the memory waits for them.
template <int kThreads>
constexpr int kBackBlock = kThreads <= 32 ? 128 : kThreads;
template <int kThreads>
constexpr int kBackRows = kBackBlock<kThreads> / kThreads;  // rows per block and iteration

// [threads to a row: a block, a warp, half a warp][several elements at once]
const Choice kForth[3][2] = {
    {{"rms_norm: a block for a row", kAllTypes}, {"rms_norm: a block for a row, vectors", kAllTypes}},
    {{"rms_norm: a warp for a row", kAllTypes}, {"rms_norm: a warp for a row, vectors", kAllTypes}},
    {{"rms_norm: half a warp for a row", kAllTypes}, {"rms_norm: half a warp for a row, vectors", kAllTypes}}};
// Not in fp64, which is for tests.
constexpr std::initializer_list<Type> kBackTypes = {Type::f32, Type::bf16, Type::f16};
const Choice kBackHalf("rms_norm_backward: half a warp for a row", kBackTypes);
const Choice kBackWarp("rms_norm_backward: a warp for a row", kBackTypes);
const Choice kBackWarps[5] = {{"rms_norm_backward: 2 warps for a row", kBackTypes},
                              {"rms_norm_backward: 3 warps for a row", kBackTypes},
                              {"rms_norm_backward: 4 warps for a row", kBackTypes},
                              {"rms_norm_backward: 6 warps for a row", kBackTypes},
                              {"rms_norm_backward: 8 warps for a row", kBackTypes}};
const Choice kBackWide[2] = {{"rms_norm_backward: 8 warps for a row, 2 vectors per thread", kBackTypes},
                             {"rms_norm_backward: 8 warps for a row, 8 vectors per thread", kBackTypes}};
const Choice kMoreRows("rms_norm_backward: several rows for a block", kBackTypes);

// With |branch| the norm is that of sum = x + multiplier * branch, rounded, which is written too.
template <class T, int N, int kThreads>
__global__ void forward(Rows shape, const T* x, const T* branch, SumOf<T> multiplier, const T* weight, double eps,
                        T* sum, T* y, SumOf<T>* rstd) {
  using S = SumOf<T>;
  __shared__ S shared[kForwardBlock / 32];
  constexpr int kRows = kForwardBlock / kThreads;
  const int64_t row = static_cast<int64_t>(blockIdx.x) * kRows + threadIdx.x / kThreads;
  if (row >= shape.rows) return;  // all threads of a row, or none of them
  const int64_t vectors = shape.width / N;
  const auto* in = reinterpret_cast<const Vector<T, N>*>(x + row * shape.width);
  const auto* const scale = reinterpret_cast<const Vector<T, N>*>(weight);
  auto* const out = reinterpret_cast<Vector<T, N>*>(y + row * shape.width);
  S squares = 0;
  if (branch == nullptr) {
    for (int64_t i = threadIdx.x % kThreads; i < vectors; i += kThreads) {
      const Vector<T, N> v = in[i];
      for (int k = 0; k < N; ++k) squares += static_cast<S>(v.at[k]) * static_cast<S>(v.at[k]);
    }
  } else {
    const auto* const more = reinterpret_cast<const Vector<T, N>*>(branch + row * shape.width);
    auto* const both = reinterpret_cast<Vector<T, N>*>(sum + row * shape.width);
    for (int64_t i = threadIdx.x % kThreads; i < vectors; i += kThreads) {
      const Vector<T, N> v = in[i], w = more[i];
      Vector<T, N> added;
      for (int k = 0; k < N; ++k) {
        added.at[k] = static_cast<T>(static_cast<S>(v.at[k]) + multiplier * static_cast<S>(w.at[k]));
        squares += static_cast<S>(added.at[k]) * static_cast<S>(added.at[k]);
      }
      both[i] = added;
    }
    in = both;  // below a thread reads only what it has written itself
  }
  squares = over_row<kThreads>(squares, shared, Plus());
  const S r = S(1) / sqrt(squares / static_cast<S>(shape.width) + static_cast<S>(eps));
  if (threadIdx.x % kThreads == 0) rstd[row] = r;
  for (int64_t i = threadIdx.x % kThreads; i < vectors; i += kThreads) {
    const Vector<T, N> v = in[i], w = scale[i];
    Vector<T, N> result;
    for (int k = 0; k < N; ++k) result.at[k] = static_cast<T>(static_cast<S>(v.at[k]) * r * static_cast<S>(w.at[k]));
    out[i] = result;
  }
}

// A block takes every gridDim-th group of rows. Each thread has columns of its own and keeps its sums for dweight in
// registers; at the end the block adds them up and writes its line of |scratch|.
template <class T, int kThreads, int V>
__global__ void __launch_bounds__(kBackBlock<kThreads>)
    backward(Rows shape, const T* grad, const T* x, const T* weight, const SumOf<T>* rstd, const T* more, T* dx,
             SumOf<T>* scratch) {
  using S = SumOf<T>;
  constexpr int N = kWide<T>;
  using Vec = Vector<T, N>;
  constexpr int kRows = kBackRows<kThreads>;
  __shared__ S shared[2][kBackBlock<kThreads> / 32];  // for every other row, so that one barrier per row is enough
  int turn_of_shared = 0;
  const int group = static_cast<int>(threadIdx.x) / kThreads, lane = static_cast<int>(threadIdx.x) % kThreads;
  const int vectors = static_cast<int>(shape.width / N);
  const auto* const scale = reinterpret_cast<const Vec*>(weight);
  S sums[V][N] = {};
  for (int64_t row = static_cast<int64_t>(blockIdx.x) * kRows + group; row < shape.rows;
       row += static_cast<int64_t>(gridDim.x) * kRows) {
    const auto* const from_grad = reinterpret_cast<const Vec*>(grad + row * shape.width);
    const auto* const from_x = reinterpret_cast<const Vec*>(x + row * shape.width);
    const S r = rstd[row];
    Vec g[V] = {}, in[V] = {}, rest[V] = {};
#pragma unroll
    for (int v = 0; v < V; ++v) {
      if (const int i = lane + v * kThreads; i < vectors) {
        g[v] = from_grad[i];
        in[v] = from_x[i];
        if (more != nullptr) rest[v] = reinterpret_cast<const Vec*>(more + row * shape.width)[i];
      }
    }
    S product = 0;
#pragma unroll
    for (int v = 0; v < V; ++v) {
      const int i = lane + v * kThreads;
      if (i >= vectors) continue;
      const Vec w = scale[i];
#pragma unroll
      for (int k = 0; k < N; ++k) {
        const S gh = static_cast<S>(g[v].at[k]) * (static_cast<S>(in[v].at[k]) * r);
        product += gh * static_cast<S>(w.at[k]);
        sums[v][k] += gh;
      }
    }
    const S mean =
        over_row<kThreads, /*kIsFree=*/true>(product, shared[turn_of_shared], Plus()) / static_cast<S>(shape.width);
    turn_of_shared ^= 1;
#pragma unroll
    for (int v = 0; v < V; ++v) {
      const int i = lane + v * kThreads;
      if (i >= vectors) continue;
      const Vec w = scale[i];
      Vec result;
#pragma unroll
      for (int k = 0; k < N; ++k) {
        const S h = static_cast<S>(in[v].at[k]) * r;
        const S own = r * (static_cast<S>(g[v].at[k]) * static_cast<S>(w.at[k]) - h * mean);
        result.at[k] = static_cast<T>(own + static_cast<S>(rest[v].at[k]));
      }
      reinterpret_cast<Vec*>(dx + row * shape.width)[i] = result;
    }
  }
  __shared__ S total[kRows > 1 ? kThreads * V * N : 1];
  for (int turn = 0; turn < kRows; ++turn) {  // the groups add theirs one after the other
    if (group == turn) {
#pragma unroll
      for (int v = 0; v < V; ++v) {
        const int i = lane + v * kThreads;
        if (i >= vectors) continue;
#pragma unroll
        for (int k = 0; k < N; ++k) {
          S sum = sums[v][k];
          if constexpr (kRows > 1) {
            if (turn > 0) sum += total[i * N + k];
            total[i * N + k] = sum;
          }
          if (turn == kRows - 1) scratch[blockIdx.x * shape.width + i * N + k] = sum;
        }
      }
    }
    if constexpr (kRows > 1) __syncthreads();
  }
}

// How the derivative of such rows is taken: by |threads| threads per row with |vectors| vectors each; none (0) where
// that many registers do not hold a row.
struct Plan {
  int threads = 0;
  int vectors = 0;
};

Plan plan_of(Rows shape, Type type) {
  const int64_t at_once = type == Type::f32 ? 4 : 8;
  if (type == Type::f64 || shape.width % at_once != 0) return {};
  const int64_t vectors = shape.width / at_once;
  for (const int threads : {16, 32, 64, 96, 128, 192, 256}) {
    if (vectors <= threads) return {threads, 1};
  }
  for (const int v : {2, 8}) {
    if (vectors <= 256 * v) return {256, v};
  }
  return {};
}

template <class Body>
void visit_plan(const Plan& plan, const Body& body) {
  using std::integral_constant;
  using One = integral_constant<int, 1>;
  if (plan.vectors == 2) return body(integral_constant<int, 256>{}, integral_constant<int, 2>{});
  if (plan.vectors == 8) return body(integral_constant<int, 256>{}, integral_constant<int, 8>{});
  switch (plan.threads) {
    case 16: return body(integral_constant<int, 16>{}, One{});
    case 32: return body(integral_constant<int, 32>{}, One{});
    case 64: return body(integral_constant<int, 64>{}, One{});
    case 96: return body(integral_constant<int, 96>{}, One{});
    case 128: return body(integral_constant<int, 128>{}, One{});
    case 192: return body(integral_constant<int, 192>{}, One{});
    default: return body(integral_constant<int, 256>{}, One{});
  }
}

const Choice& choice_of(const Plan& plan) {
  if (plan.vectors > 1) return kBackWide[plan.vectors == 8];
  switch (plan.threads) {
    case 16: return kBackHalf;
    case 32: return kBackWarp;
    case 64: return kBackWarps[0];
    case 96: return kBackWarps[1];
    case 128: return kBackWarps[2];
    case 192: return kBackWarps[3];
    default: return kBackWarps[4];
  }
}

// As many as the device runs at a time: others would begin when the first have ended, with little left to do.
template <class Kernel>
int64_t blocks_at_a_time(Kernel kernel, int threads) {
  int device = 0, processors = 0, blocks = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device);
  cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, threads, 0);
  return std::max<int64_t>(1, static_cast<int64_t>(blocks) * processors);
}

}  // namespace

void rms_norm(Where where, Rows shape, const void* x, const Branch& branch, const void* weight, double eps, void* y,
              void* rstd) {
  if (shape.rows == 0) return;
  visit(where.type, [&]<class T>(T) {
    const bool wide = goes_wide<T>(shape.width, {x, weight, y, branch.value, branch.sum});
    visit_wide<T>(wide, [&](auto n) {
      const auto launch = [&](auto threads) {
        kForth[threads.value == 16 ? 2 : threads.value == 32][n.value > 1].take(where.type);
        forward<T, n.value, threads.value>
            <<<grid(shape.rows, kForwardBlock / threads.value), kForwardBlock, 0, where.stream>>>(
                shape, static_cast<const T*>(x), static_cast<const T*>(branch.value),
                static_cast<SumOf<T>>(branch.multiplier), static_cast<const T*>(weight), eps,
                static_cast<T*>(branch.sum), static_cast<T*>(y), static_cast<SumOf<T>*>(rstd));
      };
      if (shape.width <= 16 * n.value) {
        launch(std::integral_constant<int, 16>{});
      } else if (shape.width <= kForwardShort) {
        launch(std::integral_constant<int, 32>{});
      } else {
        launch(std::integral_constant<int, kForwardBlock>{});
      }
    });
  });
  check_launch("rms_norm");
}

int64_t rms_norm_blocks(Rows shape, Type type) {
  const Plan plan = plan_of(shape, type);
  int64_t blocks = 0;
  visit(type, [&]<class T>(T) {
    if constexpr (!std::is_same_v<T, double>) {
      visit_plan(plan, [&](auto threads, auto vectors) {
        static const int64_t most =
            blocks_at_a_time(backward<T, threads.value, vectors.value>, kBackBlock<threads.value>);
        const int64_t rows = kBackRows<threads.value>;
        blocks = std::min((shape.rows + rows - 1) / rows, most);
      });
    }
  });
  return blocks;
}

bool rms_norm_fits(Rows shape, Type type, std::initializer_list<const void*> pointers) {
  return plan_of(shape, type).threads > 0 && std::all_of(pointers.begin(), pointers.end(), is_aligned);
}

void rms_norm_backward(Where where, Rows shape, const void* grad, const void* x, const void* weight, const void* rstd,
                       const void* more, void* dx, void* scratch, void* dweight) {
  const Plan plan = plan_of(shape, where.type);
  const int64_t blocks = rms_norm_blocks(shape, where.type);
  visit(where.type, [&]<class T>(T) {
    if constexpr (!std::is_same_v<T, double>) {
      visit_plan(plan, [&](auto threads, auto vectors) {
        if (blocks == 0) return;
        choice_of(plan).take(where.type);
        if (blocks * kBackRows<threads.value> < shape.rows) kMoreRows.take(where.type);
        backward<T, threads.value, vectors.value>
            <<<static_cast<unsigned>(blocks), kBackBlock<threads.value>, 0, where.stream>>>(
                shape, static_cast<const T*>(grad), static_cast<const T*>(x), static_cast<const T*>(weight),
                static_cast<const float*>(rstd), static_cast<const T*>(more), static_cast<T*>(dx),
                static_cast<float*>(scratch));
      });
      add_up_lines<T>(where.stream, blocks, shape.width, static_cast<const float*>(scratch), static_cast<T*>(dweight));
    }
  });
  check_launch("rms_norm_backward");
}

}  // namespace concord::cuda::torch_side
