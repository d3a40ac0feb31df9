// The weight gradients of experts: for each group of rows a product over them, added in fp32. libtorch's grouped GEMM
// would round it to 16 bits first. Tiles of 256 x 128 by eight warps of 64 x 64, with tensor cores; rows arrive 32 at a
// time, four such stages ahead (cp.async).
#include "backends/cuda/torch/ops/device_math.cuh"
#include "backends/cuda/torch/ops/moe/moe_kernels.h"

namespace concord::cuda::torch_side {
namespace {

constexpr int kTileRows = 256, kTileColumns = 128, kDepth = 32, kStages = 4, kThreads = 256;
constexpr int kChunk = 8;  // elements in the 16 bytes that are copied at once
constexpr int kLeftBytes = kDepth * kTileRows * 2, kStageBytes = kLeftBytes + kDepth * kTileColumns * 2;
constexpr int kSharedBytes = kStages * kStageBytes;  // 96 KiB
constexpr int kWarpTile = 64, kMmaRows = 16, kMmaColumns = 8, kMmaDepth = 16;

// Where chunk |chunk| of row |row| is in an operand's tile, in bytes: turned by the row, so that the eight rows of a
// matrix, which are read at once, are in different banks.
template <int kTile>
__device__ unsigned place_of(int row, int chunk) {
  return static_cast<unsigned>(row * (kTile / kChunk) + (chunk ^ (row % 8))) * 16;
}

__device__ unsigned shared_address(const void* pointer) {
  return static_cast<unsigned>(__cvta_generic_to_shared(pointer));
}

// 16 bytes; zeros where |is_there| is false.
__device__ void copy_async(unsigned to, const void* from, bool is_there) {
  const int bytes = is_there ? 16 : 0;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(to), "l"(from), "r"(bytes));
}

// Four 8 x 8 matrices, transposed: what is stored as [depth, columns] becomes a fragment along the depth.
__device__ void load_transposed(unsigned address, unsigned (&to)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];\n"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(address));
}

__device__ void multiply_add(__nv_bfloat16, float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};\n"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
__device__ void multiply_add(__half, float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};\n"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// An operand as a block sees it: rows [begin, end) of |width| elements, columns starting at |first|.
template <class T, int kTile>
struct Operand {
  const T* rows;
  int64_t width, first;

  // The block's threads together: rows [row, row + kDepth) before |end| into the tile at |to|.
  __device__ void fetch(int64_t row, int64_t end, unsigned to) const {
#pragma unroll
    for (int n = 0; n < kDepth * kTile / kChunk / kThreads; ++n) {
      const int i = n * kThreads + static_cast<int>(threadIdx.x);
      const int line = i / (kTile / kChunk), chunk = i % (kTile / kChunk);
      const int64_t column = first + chunk * kChunk;
      const bool is_there = row + line < end && column < width;
      copy_async(to + place_of<kTile>(line, chunk), is_there ? rows + (row + line) * width + column : rows, is_there);
    }
  }
};

using Sums = float[kWarpTile / kMmaRows][kWarpTile / kMmaColumns][4];

// What a warp multiplies at once: rows and columns of its 64 x 64, kMmaDepth deep.
struct Fragments {
  unsigned left[kWarpTile / kMmaRows][4], right[kWarpTile / 16][4];

  // From depth |k| of the stage at |at|; |row| and |column|: where the warp's part of the result begins.
  __device__ void load(unsigned at, int k, int row, int column) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
    for (int i = 0; i < kWarpTile / kMmaRows; ++i) {
      const int line = k + lane % 8 + lane / 16 * 8, chunk = (row + i * kMmaRows) / kChunk + lane / 8 % 2;
      load_transposed(at + place_of<kTileRows>(line, chunk), left[i]);
    }
#pragma unroll
    for (int j = 0; j < kWarpTile / 16; ++j) {
      const int line = k + lane % 8 + lane / 8 % 2 * 8, chunk = (column + j * 16) / kChunk + lane / 16;
      load_transposed(at + kLeftBytes + place_of<kTileColumns>(line, chunk), right[j]);
    }
  }

  template <class T>
  __device__ void multiply(Sums& sums) const {
#pragma unroll
    for (int i = 0; i < kWarpTile / kMmaRows; ++i) {
#pragma unroll
      for (int j = 0; j < kWarpTile / kMmaColumns; ++j) {
        multiply_add(T{}, sums[i][j], left[i], right[j / 2][j % 2 * 2], right[j / 2][j % 2 * 2 + 1]);
      }
    }
  }
};

// The sum over rows [begin, end). Stages are on their way while others are multiplied, and so are fragments: those that
// come next are loaded before the tensor cores have done with the present ones.
template <class T>
__device__ void multiply_rows(const Operand<T, kTileRows>& left, const Operand<T, kTileColumns>& right, int64_t begin,
                              int64_t end, unsigned memory, int row, int column, Sums& sums) {
  const auto stages = static_cast<int>((end - begin + kDepth - 1) / kDepth);
  const auto place = [&](int stage) { return memory + static_cast<unsigned>(stage % kStages * kStageBytes); };
  const auto fetch = [&](int stage) {
    if (stage < stages) {
      left.fetch(begin + static_cast<int64_t>(stage) * kDepth, end, place(stage));
      right.fetch(begin + static_cast<int64_t>(stage) * kDepth, end, place(stage) + kLeftBytes);
    }
    asm volatile("cp.async.commit_group;\n");  // empty ones count too
  };
  // Waits until the oldest fetched stage has arrived for all threads, and no thread reads the one before it.
  const auto wait = [] {
    asm volatile("cp.async.wait_group %0;\n" ::"n"(kStages - 2));
    __syncthreads();
  };
  if (stages == 0) return;
  for (int stage = 0; stage < kStages - 1; ++stage) fetch(stage);
  wait();
  Fragments even, odd;  // the two depths of a stage
  static_assert(kDepth == 2 * kMmaDepth);
  even.load(place(0), 0, row, column);
  for (int stage = 0; stage < stages; ++stage) {
    odd.load(place(stage), kMmaDepth, row, column);
    fetch(stage + kStages - 1);
    even.multiply<T>(sums);
    wait();
    even.load(place(stage + 1), 0, row, column);  // after the last stage: old numbers, which are not multiplied
    odd.multiply<T>(sums);
  }
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    weight_grad(GroupedRows shape, const T* grad, const T* x, const int64_t* ends, float* main) {
  extern __shared__ uint4 memory[];
  const int64_t group = blockIdx.z, begin = group == 0 ? 0 : ends[group - 1], end = ends[group];
  if (shape.adds && begin == end) return;
  const int64_t first_row = static_cast<int64_t>(blockIdx.y) * kTileRows;
  const int64_t first_column = static_cast<int64_t>(blockIdx.x) * kTileColumns;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int row = warp / 2 * kWarpTile, column = warp % 2 * kWarpTile;
  Sums sums = {};
  multiply_rows<T>({grad, shape.out, first_row}, {x, shape.in, first_column}, begin, end, shared_address(memory), row,
                   column, sums);
  float* const own = main + group * shape.out * shape.in;
#pragma unroll
  for (int i = 0; i < kWarpTile / kMmaRows; ++i) {
#pragma unroll
    for (int j = 0; j < kWarpTile / kMmaColumns; ++j) {
      const int64_t c = first_column + column + j * kMmaColumns + lane % 4 * 2;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int64_t r = first_row + row + i * kMmaRows + lane / 4 + half * 8;
        if (r >= shape.out || c >= shape.in) continue;
        auto* const to = reinterpret_cast<float2*>(own + r * shape.in + c);
        float2 value = {sums[i][j][2 * half], sums[i][j][2 * half + 1]};
        if (shape.adds) {
          const float2 before = *to;
          value = {before.x + value.x, before.y + value.y};
        }
        *to = value;
      }
    }
  }
}

template <class T>
void launch(cudaStream_t stream, const GroupedRows& shape, const void* grad, const void* x, const int64_t* ends,
            float* main) {
  const cudaError_t allowed =
      cudaFuncSetAttribute(weight_grad<T>, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes);
  if (allowed != cudaSuccess) {
    throw std::runtime_error(std::string("grouped_weight_grad: ") + cudaGetErrorString(allowed));
  }
  const dim3 blocks(grid(shape.in, kTileColumns), grid(shape.out, kTileRows), static_cast<unsigned>(shape.groups));
  weight_grad<T><<<blocks, kThreads, kSharedBytes, stream>>>(shape, static_cast<const T*>(grad),
                                                             static_cast<const T*>(x), ends, main);
  check_launch("grouped_weight_grad");
}

}  // namespace

void grouped_weight_grad(Where where, const GroupedRows& shape, const void* grad, const void* x, const int64_t* ends,
                         float* main) {
  if (shape.groups * shape.out * shape.in == 0) return;
  if (where.type == Type::bf16) return launch<__nv_bfloat16>(where.stream, shape, grad, x, ends, main);
  launch<__half>(where.stream, shape, grad, x, ends, main);
}

}  // namespace concord::cuda::torch_side
