#include "backends/cuda/torch/ops/choices.h"
#include "backends/cuda/torch/ops/device_math.cuh"

namespace concord::cuda::torch_side {
namespace {

// Threads to a block, and to a row: a warp for short rows (then a block has several), else the whole block.
constexpr int kBlock = 256;
constexpr int64_t kShort = 1024;
constexpr int64_t kMostBlocks = 264;  // of the derivative: two for each of an H200's processors

// [for short rows][several elements at once]
const Choice kForth[2][2] = {
    {{"rms_norm: a block for a row", kAllTypes}, {"rms_norm: a block for a row, vectors", kAllTypes}},
    {{"rms_norm: a warp for a row", kAllTypes}, {"rms_norm: a warp for a row, vectors", kAllTypes}}};
const Choice kBack[2][2] = {
    {{"rms_norm_backward: a block for a row", kAllTypes}, {"rms_norm_backward: a block for a row, vectors", kAllTypes}},
    {{"rms_norm_backward: a warp for a row", kAllTypes}, {"rms_norm_backward: a warp for a row, vectors", kAllTypes}}};
const Choice kMoreMemory("rms_norm_backward: more memory for sums than a block has unasked", kAllTypes);
const Choice kMoreRows("rms_norm_backward: several rows for a block", kAllTypes);

template <class T, int N, int kThreads>
__global__ void forward(Rows shape, const T* x, const T* weight, double eps, T* y, SumOf<T>* rstd) {
  using S = SumOf<T>;
  __shared__ S shared[kBlock / 32];
  constexpr int kRows = kBlock / kThreads;
  const int64_t row = static_cast<int64_t>(blockIdx.x) * kRows + threadIdx.x / kThreads;
  if (row >= shape.rows) return;  // for a whole warp, or none of it
  const int64_t vectors = shape.width / N;
  const auto* const in = reinterpret_cast<const Vector<T, N>*>(x + row * shape.width);
  const auto* const scale = reinterpret_cast<const Vector<T, N>*>(weight);
  auto* const out = reinterpret_cast<Vector<T, N>*>(y + row * shape.width);
  S squares = 0;
  for (int64_t i = threadIdx.x % kThreads; i < vectors; i += kThreads) {
    const Vector<T, N> v = in[i];
    for (int k = 0; k < N; ++k) squares += static_cast<S>(v.at[k]) * static_cast<S>(v.at[k]);
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

// A block takes every gridDim-th group of rows and keeps the sums for dweight of its rows in its own memory, where each
// thread has columns of its own; at the end it writes them to its row of |scratch|.
template <class T, int N, int kThreads>
__global__ void backward(Rows shape, const T* grad, const T* x, const T* weight, const SumOf<T>* rstd, T* dx,
                         SumOf<T>* scratch) {
  using S = SumOf<T>;
  extern __shared__ __align__(16) unsigned char memory[];
  __shared__ S shared[kBlock / 32];
  constexpr int kRows = kBlock / kThreads;
  const int group = static_cast<int>(threadIdx.x) / kThreads, lane = static_cast<int>(threadIdx.x) % kThreads;
  S* const sums = reinterpret_cast<S*>(memory) + group * shape.width;
  for (int64_t i = lane; i < shape.width; i += kThreads) sums[i] = 0;
  if constexpr (kThreads == 32) __syncwarp();
  if constexpr (kThreads != 32) __syncthreads();
  const int64_t vectors = shape.width / N;
  const auto* const scale = reinterpret_cast<const Vector<T, N>*>(weight);
  for (int64_t row = static_cast<int64_t>(blockIdx.x) * kRows + group; row < shape.rows;
       row += static_cast<int64_t>(gridDim.x) * kRows) {
    const auto* const g = reinterpret_cast<const Vector<T, N>*>(grad + row * shape.width);
    const auto* const in = reinterpret_cast<const Vector<T, N>*>(x + row * shape.width);
    auto* const out = reinterpret_cast<Vector<T, N>*>(dx + row * shape.width);
    const S r = rstd[row];
    S product = 0;
    for (int64_t i = lane; i < vectors; i += kThreads) {
      const Vector<T, N> gi = g[i], xi = in[i], wi = scale[i];
      for (int k = 0; k < N; ++k) {
        const S h = static_cast<S>(xi.at[k]) * r;
        product += static_cast<S>(gi.at[k]) * static_cast<S>(wi.at[k]) * h;
        sums[i * N + k] += static_cast<S>(gi.at[k]) * h;
      }
    }
    const S mean = over_row<kThreads>(product, shared, Plus()) / static_cast<S>(shape.width);
    for (int64_t i = lane; i < vectors; i += kThreads) {
      const Vector<T, N> gi = g[i], xi = in[i], wi = scale[i];
      Vector<T, N> result;
      for (int k = 0; k < N; ++k) {
        const S h = static_cast<S>(xi.at[k]) * r;
        result.at[k] = static_cast<T>(r * (static_cast<S>(gi.at[k]) * static_cast<S>(wi.at[k]) - h * mean));
      }
      out[i] = result;
    }
  }
  __syncthreads();
  const S* const all = reinterpret_cast<const S*>(memory);
  for (int64_t i = threadIdx.x; i < shape.width; i += kBlock) {
    S sum = 0;
    for (int k = 0; k < kRows; ++k) sum += all[k * shape.width + i];
    scratch[blockIdx.x * shape.width + i] = sum;
  }
}

// A block adds up 32 neighbouring columns of |scratch|: a warp reads them together, and each of the block's warps takes
// a share of the lines.
constexpr int kColumns = 32, kLines = 8;
template <class T>
__global__ void add_up(int64_t lines, int64_t width, const SumOf<T>* scratch, T* dweight) {
  using S = SumOf<T>;
  __shared__ S shared[kLines][kColumns];
  const int64_t column = static_cast<int64_t>(blockIdx.x) * kColumns + threadIdx.x;
  S sum = 0;
  if (column < width) {
    for (int64_t line = threadIdx.y; line < lines; line += kLines) sum += scratch[line * width + column];
  }
  shared[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y != 0 || column >= width) return;
  for (int i = 1; i < kLines; ++i) sum += shared[i][threadIdx.x];
  dweight[column] = static_cast<T>(sum);
}

int64_t groups(Rows shape) { return shape.width <= kShort ? kBlock / 32 : 1; }

size_t sums_bytes(Rows shape, size_t element) { return static_cast<size_t>(groups(shape) * shape.width) * element; }

template <class T, int N, int kThreads>
void launch_backward(Where where, Rows shape, const void* grad, const void* x, const void* weight, const void* rstd,
                     void* dx, void* scratch) {
  using S = SumOf<T>;
  const size_t bytes = sums_bytes(shape, sizeof(S));
  constexpr size_t kUnasked = (48 << 10) - kBlock / 32 * sizeof(S);  // the kernel also has its own array
  kBack[kThreads == 32][N > 1].take(where.type);
  if (rms_norm_blocks(shape) * groups(shape) < shape.rows) kMoreRows.take(where.type);
  if (bytes > kUnasked) {
    kMoreMemory.take(where.type);
    cudaFuncSetAttribute(backward<T, N, kThreads>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                         static_cast<int>(bytes));
  }
  backward<T, N, kThreads><<<static_cast<unsigned>(rms_norm_blocks(shape)), kBlock, bytes, where.stream>>>(
      shape, static_cast<const T*>(grad), static_cast<const T*>(x), static_cast<const T*>(weight),
      static_cast<const S*>(rstd), static_cast<T*>(dx), static_cast<S*>(scratch));
}

}  // namespace

void rms_norm(Where where, Rows shape, const void* x, const void* weight, double eps, void* y, void* rstd) {
  if (shape.rows == 0) return;
  visit(where.type, [&]<class T>(T) {
    visit_wide<T>(goes_wide<T>(shape.width, {x, weight, y}), [&](auto n) {
      const auto launch = [&](auto threads) {
        kForth[threads.value == 32][n.value > 1].take(where.type);
        forward<T, n.value, threads.value><<<grid(shape.rows, kBlock / threads.value), kBlock, 0, where.stream>>>(
            shape, static_cast<const T*>(x), static_cast<const T*>(weight), eps, static_cast<T*>(y),
            static_cast<SumOf<T>*>(rstd));
      };
      if (shape.width <= kShort) {
        launch(std::integral_constant<int, 32>{});
      } else {
        launch(std::integral_constant<int, kBlock>{});
      }
    });
  });
  check_launch("rms_norm");
}

int64_t rms_norm_blocks(Rows shape) {
  const int64_t side_by_side = groups(shape);
  return std::min((shape.rows + side_by_side - 1) / side_by_side, kMostBlocks);
}

bool rms_norm_fits(Rows shape, Type type) {
  constexpr size_t kMost = 96 << 10;  // so that two blocks fit on a processor of an H200, and one on an A100's
  return sums_bytes(shape, type == Type::f64 ? 8 : 4) <= kMost;
}

void rms_norm_backward(Where where, Rows shape, const void* grad, const void* x, const void* weight, const void* rstd,
                       void* dx, void* scratch, void* dweight) {
  const int64_t blocks = rms_norm_blocks(shape);
  visit(where.type, [&]<class T>(T) {
    visit_wide<T>(goes_wide<T>(shape.width, {grad, x, weight, dx}), [&](auto n) {
      if (blocks == 0) return;
      if (shape.width <= kShort) {
        launch_backward<T, n.value, 32>(where, shape, grad, x, weight, rstd, dx, scratch);
      } else {
        launch_backward<T, n.value, kBlock>(where, shape, grad, x, weight, rstd, dx, scratch);
      }
    });
    add_up<T><<<grid(shape.width, kColumns), dim3(kColumns, kLines), 0, where.stream>>>(
        blocks, shape.width, static_cast<const SumOf<T>*>(scratch), static_cast<T*>(dweight));
  });
  check_launch("rms_norm_backward");
}

}  // namespace concord::cuda::torch_side
