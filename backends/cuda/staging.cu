#include "backends/cuda/kernels.h"
#include "backends/cuda/launch.cuh"
#include "backends/cuda/staging.hpp"

namespace concord::cuda {
namespace {

template <class Codec>
__global__ void encode(typename Codec::Staged* staged, const typename Codec::Value* values, uint64_t count) {
  for (uint64_t i = global_index(); i < count; i += global_size()) staged[i] = Codec::encode(values[i]);
}

template <class Codec>
__global__ void decode(typename Codec::Value* values, const typename Codec::Staged* staged, uint64_t count) {
  for (uint64_t i = global_index(); i < count; i += global_size()) values[i] = Codec::decode(staged[i]);
}

}  // namespace

cudaError_t launch_encode(void* staged, const void* values, int64_t count, concord_dtype dtype,
                          concord_reduce_op reduce, cudaStream_t stream) {
  return visit_codec(dtype, reduce, [&]<class Codec>(Codec) {
    return launch(&encode<Codec>, static_cast<uint64_t>(count), stream, static_cast<typename Codec::Staged*>(staged),
                  static_cast<const typename Codec::Value*>(values), static_cast<uint64_t>(count));
  });
}

cudaError_t launch_decode(void* values, const void* staged, int64_t count, concord_dtype dtype,
                          concord_reduce_op reduce, cudaStream_t stream) {
  return visit_codec(dtype, reduce, [&]<class Codec>(Codec) {
    return launch(&decode<Codec>, static_cast<uint64_t>(count), stream, static_cast<typename Codec::Value*>(values),
                  static_cast<const typename Codec::Staged*>(staged), static_cast<uint64_t>(count));
  });
}

}  // namespace concord::cuda
