// FP8 matrices, row-wise and transposed, in one pass over the input: a block reads 128 x 128 elements, writes their
// rows immediately, and their columns from its shared memory.
#include <cuda_fp8.h>

#include "backends/cuda/torch/ops/device_math.cuh"
#include "backends/cuda/torch/ops/fp8/fp8.cuh"
#include "backends/cuda/torch/ops/fp8/fp8_kernels.h"

namespace concord::cuda::torch_side {
namespace {

// Over the block, into |most|, which holds the bits of a float that is not negative.
__device__ void add_most(unsigned value, float* most) {
  value = __reduce_max_sync(~0U, value);
  __shared__ unsigned of_warps[kThreads / 32];
  if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = value;
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (const unsigned each : of_warps) value = max(value, each);
  atomicMax(reinterpret_cast<unsigned*>(most), value);
}

// To a few units in the last place: what comes of it is rounded to 16 bits.
__device__ float sigmoid(float x) { return __fdividef(1.0F, 1.0F + __expf(-x)); }

// The input of a matrix: kVector elements of row |row|, starting at column |column|, in each of kParts adjacent
// matrices of |width| columns. Fetching is separate from computing, so that a thread has many reads in flight.
template <class T>
struct Plain {
  static constexpr int kParts = 1;
  static constexpr int kBlocks = 4;  // resident blocks per multiprocessor: bounds the registers
  using Raw = uint4;
  const T* x;
  int64_t width;
  __device__ Raw at(int64_t row, int64_t column) const { return fetch(x + row * width + column); }
  __device__ static void compute(const Raw& raw, float (&to)[1][kVector]) { unpack<T>(raw, to[0]); }
};

// Rounds to T in between, as if the tensor were stored.
template <class T>
struct Swiglu {
  static constexpr int kParts = 1;
  static constexpr int kBlocks = 3;  // resident blocks per multiprocessor: bounds the registers
  struct Raw {
    uint4 gate, up;
  };
  const T* gate_up;
  int64_t width;
  __device__ Raw at(int64_t row, int64_t column) const {
    const T* const from = gate_up + row * 2 * width + column;
    return {fetch(from), fetch(from + width)};
  }
  __device__ static void compute(const Raw& raw, float (&to)[1][kVector]) {
    float gate[kVector], up[kVector];
    unpack<T>(raw.gate, gate);
    unpack<T>(raw.up, up);
    for (int k = 0; k < kVector; ++k) {
      to[0][k] = static_cast<float>(static_cast<T>(gate[k] * sigmoid(gate[k]) * up[k]));
    }
  }
};

template <class T>
struct SwigluBackward {
  static constexpr int kParts = 2;
  static constexpr int kBlocks = 2;  // resident blocks per multiprocessor: bounds the registers
  struct Raw {
    uint4 gate, up, grad;
  };
  const T *grad, *gate_up;
  int64_t width;
  __device__ Raw at(int64_t row, int64_t column) const {
    const T* const from = gate_up + row * 2 * width + column;
    return {fetch(from), fetch(from + width), fetch(grad + row * width + column)};
  }
  __device__ static void compute(const Raw& raw, float (&to)[2][kVector]) {
    float gate[kVector], up[kVector], grad[kVector];
    unpack<T>(raw.gate, gate);
    unpack<T>(raw.up, up);
    unpack<T>(raw.grad, grad);
    for (int k = 0; k < kVector; ++k) {
      const float g = gate[k], d = grad[k], s = sigmoid(g);
      to[0][k] = static_cast<float>(static_cast<T>(d * up[k] * (s + g * s * (1.0F - s))));
      to[1][k] = static_cast<float>(static_cast<T>(d * g * s));
    }
  }
};

template <class Source>
__global__ void __launch_bounds__(kThreads, Source::kBlocks)
    quantise(Rows shape, Source source, __nv_fp8_interpretation_t format, float largest, Fp8Arrays to) {
  constexpr int kParts = Source::kParts;
  __shared__ uint32_t tile[kParts][kTile * kWords];
  const float scale = scale_for(*to.amax, largest);
  if (blockIdx.x == 0 && blockIdx.y == 0 && threadIdx.x == 0) *to.inverse = 1.0F / scale;
  const int64_t first_row = static_cast<int64_t>(blockIdx.y) * kTile;
  const int64_t first_column = static_cast<int64_t>(blockIdx.x) * kTile;
  const int columns = static_cast<int>(threadIdx.x) % (kTile / kVector) * kVector;
  const int64_t column = first_column + columns, stride = shape.width * kParts;
  unsigned most = 0;
  for (int lines = static_cast<int>(threadIdx.x) / (kTile / kVector); lines < kWords;
       lines += kThreads / (kTile / kVector)) {
    const int64_t row = first_row + lines * kLines;
    const bool is_inside = row < shape.rows && column < shape.width;  // sizes are multiples of 16
    typename Source::Raw raw[kLines];
    if (is_inside) {
#pragma unroll
      for (int line = 0; line < kLines; ++line) raw[line] = source.at(row + line, column);
    }
    uint32_t words[kParts][2][kLines] = {};  // [half of the columns]
    if (is_inside) {
#pragma unroll
      for (int line = 0; line < kLines; ++line) {
        float values[kParts][kVector];
        Source::compute(raw[line], values);
#pragma unroll
        for (int part = 0; part < kParts; ++part) {
          const auto& value = values[part];
          for (const float each : value) most = max(most, bits_of_size(each));
          for (int half = 0; half < 2; ++half) {
            const float* const four = value + 4 * half;
            words[part][half][line] = narrowed_by(four, scale, format);
          }
          auto* const out = static_cast<uint8_t*>(to.rows) + (row + line) * stride + part * shape.width + column;
          *reinterpret_cast<Vector<uint32_t, 2>*>(out) = {words[part][0][line], words[part][1][line]};
        }
      }
    }
#pragma unroll
    for (int part = 0; part < kParts; ++part) keep_columns(words[part], columns, lines, tile[part]);
  }
  __syncthreads();
  for (int part = 0; part < kParts; ++part) {
    auto* const out = static_cast<uint8_t*>(to.columns) + part * shape.width * shape.rows;
    write_columns(shape, first_row, first_column, tile[part], out);
  }
  if (to.seen != nullptr) add_most(most, to.seen);
}

template <class T>
__global__ void __launch_bounds__(kThreads) amax_of(int64_t vectors, const T* x, float* amax) {
  unsigned most = 0;
  const int64_t step = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < vectors; i += step) {
    float values[kVector];
    unpack<T>(fetch(x + i * kVector), values);
    for (const float value : values) most = max(most, bits_of_size(value));
  }
  add_most(most, amax);
}

template <class Source>
void launch(Where where, Rows shape, const Source& source, Narrow format, const Fp8Arrays& to) {
  const bool is_long = format == Narrow::e4m3;
  const dim3 blocks(grid(shape.width, kTile), grid(shape.rows, kTile));
  quantise<<<blocks, kThreads, 0, where.stream>>>(shape, source, is_long ? __NV_E4M3 : __NV_E5M2,
                                                  is_long ? 448.0F : 57344.0F, to);
  check_launch("fp8_quantise");
}

}  // namespace

bool fp8_fits(Rows shape, Type type, std::initializer_list<const void*> pointers) {
  return (type == Type::bf16 || type == Type::f16) && shape.rows > 0 && shape.width > 0 && shape.rows % 16 == 0 &&
         shape.width % 16 == 0 && std::all_of(pointers.begin(), pointers.end(), is_aligned);
}

void fp8_amax(Where where, int64_t count, const void* x, float* amax) {
  constexpr int64_t kMaxBlocks = 132 * 8;
  visit_short(where.type, [&]<class T>(T) {
    amax_of<<<grid(count / kVector, kThreads, kMaxBlocks), kThreads, 0, where.stream>>>(count / kVector,
                                                                                        static_cast<const T*>(x), amax);
  });
  check_launch("fp8_amax");
}

void fp8_quantise(Where where, Rows shape, const void* x, Narrow format, const Fp8Arrays& to) {
  visit_short(where.type,
              [&]<class T>(T) { launch(where, shape, Plain<T>{static_cast<const T*>(x), shape.width}, format, to); });
}

void fp8_swiglu(Where where, Rows shape, const void* gate_up, Narrow format, const Fp8Arrays& to) {
  visit_short(where.type, [&]<class T>(T) {
    launch(where, shape, Swiglu<T>{static_cast<const T*>(gate_up), shape.width}, format, to);
  });
}

void fp8_swiglu_backward(Where where, Rows shape, const void* grad, const void* gate_up, Narrow format,
                         const Fp8Arrays& to) {
  visit_short(where.type, [&]<class T>(T) {
    launch(where, shape, SwigluBackward<T>{static_cast<const T*>(grad), static_cast<const T*>(gate_up), shape.width},
           format, to);
  });
}

}  // namespace concord::cuda::torch_side
