// The weight gradients of experts on Hopper: for each group of rows a product over them, added in fp32. Tiles of
// 128 x 256: one warpgroup has the rows of both operands copied (TMA), 64 at a time and several such stages ahead, two
// others multiply them (wgmma), 64 x 256 each. Two blocks, of tiles one below the other, share the columns of the right
// operand: each copies half of them for both, since it is L2 that would hold them up. Compiled for sm_90a alone.
#include <cudaTypedefs.h>

#include "backends/cuda/torch/ops/device_math.cuh"
#include "backends/cuda/torch/ops/moe/hopper.cuh"
#include "backends/cuda/torch/ops/moe/moe_kernels.h"

namespace concord::cuda::torch_side {
namespace {

using namespace hopper;

constexpr int kTileRows = 128, kTileColumns = 256, kDepth = 64, kStep = 16;  // a wgmma is kStep deep
constexpr int kConsumers = 2, kThreads = (1 + kConsumers) * kWarpgroup;
constexpr int kPanelBytes = kDepth * kLineBytes;
constexpr int kLeftPanels = kTileRows / kPanel, kRightPanels = kTileColumns / kPanel;
constexpr int kStageBytes = (kLeftPanels + kRightPanels) * kPanelBytes;  // 48 KiB
constexpr int kBoxColumns = 32, kBoxRows = 64, kBoxBytes = kBoxColumns * kBoxRows * 4;
constexpr int kCluster = 2;  // blocks that share the right operand
constexpr int kStages = 4;   // stages of rows that have arrived or are in flight
constexpr int kBoxes = 2;    // buffers of a warpgroup's results in flight to memory

// Shared memory: the stages, the boxes, and for each stage two barriers.
constexpr int kBoxesAt = kStages * kStageBytes;
constexpr int kBarriersAt = kBoxesAt + kConsumers * kBoxes * kBoxBytes;
constexpr int kSharedBytes = kAtomBytes + kBarriersAt + 2 * kStages * 8;  // the start is aligned by hand
static_assert(kSharedBytes <= 227 * 1024 && kRightPanels % kCluster == 0);

// Stages are used in turn. A stage is full when its bytes have arrived, empty when all its readers have.
struct Ring {
  unsigned memory;
  int stage = 0;
  unsigned parity = 0;

  __device__ void next() {
    if (++stage < kStages) return;
    stage = 0;
    parity ^= 1;
  }
  __device__ unsigned left() const { return memory + static_cast<unsigned>(stage * kStageBytes); }
  __device__ unsigned right() const { return left() + kLeftPanels * kPanelBytes; }
  __device__ unsigned full() const { return memory + static_cast<unsigned>(kBarriersAt + stage * 8); }
  __device__ unsigned empty() const { return full() + kStages * 8; }
};

struct Tile {
  int group, row, column;
  int64_t begin, end;  // rows to accumulate
};

// The tiles of all groups, assigned to the clusters round robin; a cluster has one tile for each of its blocks.
struct Tiles {
  GroupedRows shape;
  const int64_t* ends;

  static __host__ __device__ int ceil(int64_t a, int b) { return static_cast<int>((a + b - 1) / b); }
  __host__ __device__ int down() const { return ceil(shape.out, kCluster * kTileRows); }
  __host__ __device__ int count() const {
    return static_cast<int>(shape.groups) * down() * ceil(shape.in, kTileColumns);
  }
  template <class Body>
  __device__ void each(const Body& body) const {
    const int per_group = down() * ceil(shape.in, kTileColumns);
    const int clusters = static_cast<int>(gridDim.x) / kCluster;
    for (int i = static_cast<int>(blockIdx.x) / kCluster; i < count(); i += clusters) {
      const int group = i / per_group, place = i % per_group;
      const int row = place % down() * kCluster + static_cast<int>(blockIdx.x) % kCluster;
      const Tile tile = {group, row * kTileRows, place / down() * kTileColumns,
                         group == 0 ? 0 : __ldg(ends + group - 1), __ldg(ends + group)};
      if (tile.begin < tile.end || !shape.adds) body(tile);
    }
  }
};

// One thread's work: the stages of all tiles, as they become empty.
__device__ void copy_tiles(const Tiles& tiles, const CUtensorMap& left, const CUtensorMap& right, Ring ring) {
  constexpr int kShare = kRightPanels / kCluster;
  constexpr uint16_t kAllBlocks = (1 << kCluster) - 1;
  const int first = static_cast<int>(block_in_cluster()) * kShare;
  tiles.each([&](const Tile& tile) {
    for (int64_t begin = tile.begin; begin < tile.end; begin += kDepth, ring.next()) {
      const int row = static_cast<int>(begin);
      wait(ring.empty(), ring.parity ^ 1);
      arrive_expecting(ring.full(), kStageBytes);
      for (int i = 0; i < kLeftPanels; ++i) {
        copy_box(ring.left() + i * kPanelBytes, left, tile.row + i * kPanel, row, ring.full());
      }
      for (int i = first; i < first + kShare; ++i) {
        copy_box_to(kAllBlocks, ring.right() + i * kPanelBytes, right, tile.column + i * kPanel, row, ring.full());
      }
    }
  });
}

// Lines [first, kDepth) of |panels| panels become zeros, for the tensor cores: they are of the next group, and even
// zero times them could be NaN. The warpgroup's threads together.
__device__ void clear_lines(unsigned panel, int panels, int first) {
  constexpr int kChunks = kLineBytes / 16;
  const int count = (kDepth - first) * kChunks;
  for (int i = static_cast<int>(threadIdx.x) % kWarpgroup; i < panels * count; i += kWarpgroup) {
    const unsigned to = panel + static_cast<unsigned>(i / count * kPanelBytes + first * kLineBytes + i % count * 16);
    asm volatile("st.shared.v4.b32 [%0], {%1, %1, %1, %1};\n" ::"r"(to), "r"(0) : "memory");
  }
}

// What a warpgroup that multiplies knows of itself.
struct Consumer {
  int number = static_cast<int>(threadIdx.x) / kWarpgroup - 1;
  int warp = static_cast<int>(threadIdx.x) % kWarpgroup / 32, lane = static_cast<int>(threadIdx.x) % 32;

  __device__ bool is_first_thread() const { return warp == 0 && lane == 0; }
  __device__ void sync() const { sync_warpgroup(1 + number); }
};

// Arrives at the barrier by which all warps of all blocks that received a stage report that they have read it.
__device__ void release(const Consumer& self, unsigned empty) {
  if (self.lane < kCluster) arrive_at(empty, static_cast<unsigned>(self.lane));
}

// Adds the product of a stage to the sums, or begins them with it.
template <class T>
__device__ void multiply_stage(unsigned left, unsigned right, bool adds, Sums& sums) {
  begin_products();
#pragma unroll
  for (int k = 0; k < kDepth; k += kStep) {
    multiply(T{}, sums, describe(left + k * kLineBytes, kPanelBytes), describe(right + k * kLineBytes, kPanelBytes),
             adds || k > 0);
  }
  commit_products();
}

// Sums over the tile's rows. A stage's products run while the next stage is awaited.
template <class T>
__device__ void multiply_rows(const Consumer& self, const Tile& tile, Ring& ring, Sums& sums) {
  unsigned before = 0;  // the barrier of the stage before this one, which is still being read
  const auto release_before = [&] {
    if (before != 0) release(self, before);
  };
  for (int64_t begin = tile.begin; begin < tile.end; begin += kDepth, ring.next()) {
    const unsigned left = ring.left() + static_cast<unsigned>(self.number * kPanelBytes), right = ring.right();
    wait(ring.full(), ring.parity);
    if (tile.end - begin < kDepth) {
      const int rows = static_cast<int>(tile.end - begin);
      clear_lines(left, 1, rows);
      clear_lines(right, kRightPanels, rows);  // so does the other warpgroup: zeros over zeros
      publish_writes();
      self.sync();
    }
    multiply_stage<T>(left, right, before != 0, sums);
    wait_for_products<1>();
    release_before();
    before = ring.empty();
  }
  wait_for_products<0>();
  pin(sums);
  release_before();
  if (tile.begin < tile.end) return;
#pragma unroll
  for (float& sum : sums) sum = 0;
}

// Writes a thread's part of sums [64, kBoxColumns], starting at column |first|, in the swizzled layout of the copies.
__device__ void fill_box(const Consumer& self, unsigned at, const Sums& sums, int first) {
#pragma unroll
  for (int j = 0; j < kBoxColumns / 8; ++j) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int line = self.warp * 16 + self.lane / 4 + half * 8, chunk = (j * 2 + self.lane % 4 / 2) ^ line % 8;
      const unsigned to = at + static_cast<unsigned>(line * kLineBytes + chunk * 16 + self.lane % 2 * 8);
      const int i = (first / 8 + j) * 4 + 2 * half;
      asm volatile("st.shared.v2.f32 [%0], {%1, %2};\n" ::"r"(to), "f"(sums[i]), "f"(sums[i + 1]) : "memory");
    }
  }
}

// Through shared memory, a box at a time, from where they are stored or added while the next tile begins.
__device__ void store_sums(const Consumer& self, const Tile& tile, const CUtensorMap& main, bool adds, unsigned memory,
                           const Sums& sums) {
#pragma unroll
  for (int box = 0; box < kTileColumns / kBoxColumns; ++box) {
    const unsigned at = memory + static_cast<unsigned>(kBoxesAt + (self.number * kBoxes + box % kBoxes) * kBoxBytes);
    if (self.is_first_thread()) wait_for_stores<kBoxes - 1>();
    self.sync();
    fill_box(self, at, sums, box * kBoxColumns);
    publish_writes();
    self.sync();
    if (!self.is_first_thread()) continue;
    const int row = tile.row + self.number * kBoxRows, column = tile.column + box * kBoxColumns;
    if (adds) {
      add_box(main, column, row, tile.group, at);  // nothing else adds to it, so the result is the same each time
    } else {
      store_box(main, column, row, tile.group, at);
    }
    commit_stores();
  }
}

struct Maps {
  CUtensorMap left, right, main;
};

template <class T>
__global__ void __cluster_dims__(kCluster, 1, 1) __launch_bounds__(kThreads, 1)
    weight_grad(const __grid_constant__ Maps maps, Tiles tiles) {
  extern __shared__ uint4 unaligned[];
  const unsigned memory = (address_of(unaligned) + kAtomBytes - 1) / kAtomBytes * kAtomBytes;
  Ring ring{memory};
  if (threadIdx.x == 0) {
    for (Ring each = ring; each.parity == 0; each.next()) {
      init_barrier(each.full(), 1);
      init_barrier(each.empty(), kCluster * kConsumers * kWarpgroup / 32);
    }
    publish_barriers();
  }
  sync_cluster();
  if (threadIdx.x < kWarpgroup) {
    give_up_registers<40>();
    if (threadIdx.x == 0) copy_tiles(tiles, maps.left, maps.right, ring);
    __syncwarp();
  } else {
    take_registers<232>();
    const Consumer self;
    Sums sums;
    tiles.each([&](const Tile& tile) {
      multiply_rows<T>(self, tile, ring, sums);
      store_sums(self, tile, maps.main, tiles.shape.adds, memory, sums);
    });
    if (self.is_first_thread()) wait_for_stores<0>();
    __syncwarp();
  }
  sync_cluster();  // the other block may still be telling this one what it has read
}

[[noreturn]] void fail(const std::string& what) { throw std::runtime_error("grouped_weight_grad_hopper: " + what); }
void check(cudaError_t code, const char* call) {
  if (code != cudaSuccess) fail(std::string(call) + " failed: " + cudaGetErrorString(code));
}

int attribute_of_device(cudaDeviceAttr attribute) {
  int device = 0, value = 0;
  check(cudaGetDevice(&device), "cudaGetDevice");
  check(cudaDeviceGetAttribute(&value, attribute, device), "cudaDeviceGetAttribute");
  return value;
}

// The driver's function, looked up since nothing links the driver.
PFN_cuTensorMapEncodeTiled_v12000 encode_function() {
  static const auto function = [] {
    void* found = nullptr;
    cudaDriverEntryPointQueryResult result{};
#if CUDART_VERSION >= 12050
    const auto code =
        cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000, cudaEnableDefault, &result);
#else
    const auto code = cudaGetDriverEntryPoint("cuTensorMapEncodeTiled", &found, cudaEnableDefault, &result);
#endif
    check(code, "looking up cuTensorMapEncodeTiled");
    if (result != cudaDriverEntryPointSuccess || found == nullptr) fail("the driver has no cuTensorMapEncodeTiled");
    return reinterpret_cast<PFN_cuTensorMapEncodeTiled_v12000>(found);
  }();
  return function;
}

// A dense array with |sizes|, fastest first, of which boxes are copied, swizzled in lines of 128 bytes.
template <size_t kRank>
CUtensorMap encode(CUtensorMapDataType type, int bytes, const void* array, const cuuint64_t (&sizes)[kRank],
                   const cuuint32_t (&box)[kRank]) {
  cuuint64_t strides[kRank - 1];
  cuuint32_t steps[kRank];
  for (size_t i = 0; i < kRank; ++i) {
    if (i > 0) strides[i - 1] = (i == 1 ? static_cast<cuuint64_t>(bytes) : strides[i - 2]) * sizes[i - 1];
    steps[i] = 1;
  }
  CUtensorMap map;
  const CUresult code = encode_function()(&map, type, kRank, const_cast<void*>(array), sizes, strides, box, steps,
                                          CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                                          CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (code == CUDA_SUCCESS) return map;
  fail("cuTensorMapEncodeTiled returned " + std::to_string(code) + " for rows of " + std::to_string(sizes[0]) +
       " elements");
}

// Made for each call, since arrays move; it takes about a microsecond. They travel as arguments of the kernel, so a
// captured graph keeps them.
template <class T>
Maps maps_of(const GroupedRows& shape, const void* grad, const void* x, float* main) {
  const auto type = std::is_same_v<T, __half> ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
  const auto size = [](int64_t n) { return static_cast<cuuint64_t>(n); };
  return {encode<2>(type, 2, grad, {size(shape.out), size(shape.rows)}, {kPanel, kDepth}),
          encode<2>(type, 2, x, {size(shape.in), size(shape.rows)}, {kPanel, kDepth}),
          encode<3>(CU_TENSOR_MAP_DATA_TYPE_FLOAT32, 4, main, {size(shape.in), size(shape.out), size(shape.groups)},
                    {kBoxColumns, kBoxRows, 1})};
}

template <class T>
void launch(cudaStream_t stream, const GroupedRows& shape, const void* grad, const void* x, const int64_t* ends,
            float* main) {
  check(cudaFuncSetAttribute(weight_grad<T>, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes),
        "asking for shared memory");
  const Tiles tiles{shape, ends};
  const int clusters = std::min(attribute_of_device(cudaDevAttrMultiProcessorCount) / kCluster, tiles.count());
  weight_grad<T><<<static_cast<unsigned>(clusters * kCluster), kThreads, kSharedBytes, stream>>>(
      maps_of<T>(shape, grad, x, main), tiles);
  check_launch("grouped_weight_grad_hopper");
}

}  // namespace

bool is_hopper() {
  return attribute_of_device(cudaDevAttrComputeCapabilityMajor) == 9 &&
         attribute_of_device(cudaDevAttrComputeCapabilityMinor) == 0;
}

void grouped_weight_grad_hopper(Where where, const GroupedRows& shape, const void* grad, const void* x,
                                const int64_t* ends, float* main) {
  const int64_t size = shape.groups * shape.out * shape.in;
  if (size == 0) return;
  if (shape.rows == 0) {  // a map of nothing cannot be made
    if (!shape.adds) check(cudaMemsetAsync(main, 0, static_cast<size_t>(size) * 4, where.stream), "cudaMemsetAsync");
    return;
  }
  if (where.type == Type::bf16) return launch<__nv_bfloat16>(where.stream, shape, grad, x, ends, main);
  launch<__half>(where.stream, shape, grad, x, ends, main);
}

}  // namespace concord::cuda::torch_side
