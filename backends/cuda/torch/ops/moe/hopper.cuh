// Wrappers of Hopper's instructions (compute capability 9.0, built as sm_90a): bulk copies of tiles by the tensor
// memory accelerator (TMA), barriers in shared memory that count their bytes, clusters of blocks that share copied
// tiles, and matrix products by a warpgroup (128 threads) with operands in shared memory (wgmma). Addresses are of
// shared memory.
#pragma once

#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

namespace concord::cuda::torch_side::hopper {

constexpr int kWarpgroup = 128;  // threads
constexpr int kPanel = 64;       // 16-bit elements in a swizzled line of 128 bytes
constexpr int kLineBytes = 128, kAtomBytes = 8 * kLineBytes;

inline __device__ unsigned address_of(const void* shared) {
  return static_cast<unsigned>(__cvta_generic_to_shared(shared));
}

// [barriers] A barrier's phase ends when |arrivals| threads have arrived and all expected bytes have arrived.

inline __device__ void init_barrier(unsigned barrier, unsigned arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;\n" ::"r"(barrier), "r"(arrivals));
}
// Makes initialised barriers visible to the other blocks of the cluster and to bulk copies.
inline __device__ void publish_barriers() { asm volatile("fence.mbarrier_init.release.cluster;\n" ::: "memory"); }

inline __device__ void arrive_expecting(unsigned barrier, unsigned bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;\n" ::"r"(barrier), "r"(bytes) : "memory");
}
// Arrives at the barrier with the same address in block |block| of the cluster.
inline __device__ void arrive_at(unsigned barrier, unsigned block) {
  asm volatile(
      "{\n.reg .b32 there;\n"
      "mapa.shared::cluster.u32 there, %0, %1;\n"
      "mbarrier.arrive.shared::cluster.b64 _, [there];\n}\n" ::"r"(barrier),
      "r"(block)
      : "memory");
}
// Waits until the phase with parity |parity| has completed.
inline __device__ void wait(unsigned barrier, unsigned parity) {
  unsigned ended = 0;
  while (ended == 0) {
    asm volatile(
        "{\n.reg .pred ended;\n"
        "mbarrier.try_wait.parity.shared::cta.b64 ended, [%1], %2;\n"
        "selp.b32 %0, 1, 0, ended;\n}\n"
        : "=r"(ended)
        : "r"(barrier), "r"(parity)
        : "memory");
  }
}

// Synchronizes the threads of a warpgroup; |id| >= 1, one per warpgroup.
inline __device__ void sync_warpgroup(int id) {
  asm volatile("bar.sync %0, %1;\n" ::"r"(id), "n"(kWarpgroup) : "memory");
}

inline __device__ unsigned block_in_cluster() {
  unsigned rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;\n" : "=r"(rank));
  return rank;
}
inline __device__ void sync_cluster() {
  asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;\n" ::: "memory");
}

// [copies]

// Copies a box of the map's size at (column, row) to |to|, with zeros beyond the matrix. |barrier| counts its bytes.
inline __device__ void copy_box(unsigned to, const CUtensorMap& map, int column, int row, unsigned barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];\n" ::"r"(
          to),
      "l"(&map), "r"(column), "r"(row), "r"(barrier)
      : "memory");
}
// Like copy_box, but to the same address in all blocks of |blocks| (one bit each); the barrier of each counts.
inline __device__ void copy_box_to(uint16_t blocks, unsigned to, const CUtensorMap& map, int column, int row,
                                   unsigned barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], "
      "[%1, {%2, %3}], [%4], %5;\n" ::"r"(to),
      "l"(&map), "r"(column), "r"(row), "r"(barrier), "h"(blocks)
      : "memory");
}
// Writes a box of a stack of matrices from shared memory; elements beyond a matrix are not written.
inline __device__ void store_box(const CUtensorMap& map, int column, int row, int matrix, unsigned from) {
  asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.bulk_group [%0, {%1, %2, %3}], [%4];\n" ::"l"(&map),
               "r"(column), "r"(row), "r"(matrix), "r"(from)
               : "memory");
}
inline __device__ void add_box(const CUtensorMap& map, int column, int row, int matrix, unsigned from) {
  asm volatile(
      "cp.reduce.async.bulk.tensor.3d.global.shared::cta.add.tile.bulk_group [%0, {%1, %2, %3}], [%4];\n" ::"l"(&map),
      "r"(column), "r"(row), "r"(matrix), "r"(from)
      : "memory");
}
inline __device__ void commit_stores() { asm volatile("cp.async.bulk.commit_group;\n" ::: "memory"); }
// Waits until all but the last |kOpen| groups of stores have read shared memory.
template <int kOpen>
__device__ void wait_for_stores() {
  asm volatile("cp.async.bulk.wait_group.read %0;\n" ::"n"(kOpen) : "memory");
}
// Makes a thread's ordinary writes to shared memory visible to bulk copies and tensor cores. Each writing thread calls
// it.
inline __device__ void publish_writes() { asm volatile("fence.proxy.async.shared::cta;\n" ::: "memory"); }

// [products]

// Returns the descriptor of an operand whose depth is its slow dimension: panels of 64 columns, |panel_bytes| apart,
// with a line of 128 bytes for each depth, in which chunks of 16 bytes are swizzled like those of the copies.
inline __device__ uint64_t describe(unsigned address, unsigned panel_bytes) {
  constexpr uint64_t kSwizzle128 = 1;
  return (address & 0x3ffff) >> 4 | static_cast<uint64_t>(panel_bytes >> 4) << 16 |
         static_cast<uint64_t>(kAtomBytes >> 4) << 32 | kSwizzle128 << 62;
}

using Sums = float[128];  // a thread's part of 64 x 256 sums

#define CONCORD_SUMS_4(i) "+f"(sums[i]), "+f"(sums[i + 1]), "+f"(sums[i + 2]), "+f"(sums[i + 3])
#define CONCORD_SUMS_16(i) CONCORD_SUMS_4(i), CONCORD_SUMS_4(i + 4), CONCORD_SUMS_4(i + 8), CONCORD_SUMS_4(i + 12)
#define CONCORD_WGMMA_256(TYPE)                                                                                 \
  asm volatile(                                                                                                 \
      "{\n.reg .pred adds;\nsetp.ne.b32 adds, %130, 0;\n"                                                       \
      "wgmma.mma_async.sync.aligned.m64n256k16.f32." TYPE "." TYPE                                              \
      " {"                                                                                                      \
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "                                  \
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "                        \
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "                        \
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "                        \
      "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "                        \
      "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "                        \
      "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, "            \
      "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"          \
      "}, %128, %129, adds, 1, 1, 1, 1;\n}\n"                                                                   \
      : CONCORD_SUMS_16(0), CONCORD_SUMS_16(16), CONCORD_SUMS_16(32), CONCORD_SUMS_16(48), CONCORD_SUMS_16(64), \
        CONCORD_SUMS_16(80), CONCORD_SUMS_16(96), CONCORD_SUMS_16(112)                                          \
      : "l"(left), "l"(right), "r"(static_cast<int>(adds)))

// sums (+)= left^T right, 16 deep; |left| is 64 wide, |right| 256. Without |adds| they are overwritten.
inline __device__ void multiply(__nv_bfloat16, Sums& sums, uint64_t left, uint64_t right, bool adds) {
  CONCORD_WGMMA_256("bf16");
}
inline __device__ void multiply(__half, Sums& sums, uint64_t left, uint64_t right, bool adds) {
  CONCORD_WGMMA_256("f16");
}
#undef CONCORD_WGMMA_256
#undef CONCORD_SUMS_16
#undef CONCORD_SUMS_4

// Products run asynchronously: call begin, multiply (repeatedly) and commit, and wait before reading the sums.
inline __device__ void begin_products() { asm volatile("wgmma.fence.sync.aligned;\n" ::: "memory"); }
inline __device__ void commit_products() { asm volatile("wgmma.commit_group.sync.aligned;\n" ::: "memory"); }
template <int kOpen>
__device__ void wait_for_products() {
  asm volatile("wgmma.wait_group.sync.aligned %0;\n" ::"n"(kOpen) : "memory");
}
// Prevents the compiler from moving accesses to |sums| across this point.
inline __device__ void pin(Sums& sums) {
#pragma unroll
  for (float& sum : sums) asm volatile("" : "+f"(sum)::"memory");
}

// [registers] A warpgroup that only copies gives registers to those that multiply.

template <int kCount>
__device__ void give_up_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;\n" ::"n"(kCount));
}
template <int kCount>
__device__ void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;\n" ::"n"(kCount));
}

}  // namespace concord::cuda::torch_side::hopper
