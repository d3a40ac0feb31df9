// The kernels' work, done on the host in the stream's turn.
#include "backends/cuda/kernels.h"

#include "backends/cuda/fake/stream.h"
#include "backends/cuda/staging.hpp"
#include "platform/sdk/philox.hpp"

namespace concord::cuda {
cudaError_t launch_encode(void* staged, const void* values, int64_t count, concord_dtype dtype,
                          concord_reduce_op reduce, cudaStream_t stream) {
  return visit_codec(dtype, reduce, [&]<class Codec>(Codec) {
    auto* to = static_cast<typename Codec::Staged*>(staged);
    auto* from = static_cast<const typename Codec::Value*>(values);
    return fake::push_work(stream, [=] {
      for (int64_t i = 0; i < count; ++i) to[i] = Codec::encode(from[i]);
    });
  });
}

cudaError_t launch_decode(void* values, const void* staged, int64_t count, concord_dtype dtype,
                          concord_reduce_op reduce, cudaStream_t stream) {
  return visit_codec(dtype, reduce, [&]<class Codec>(Codec) {
    auto* to = static_cast<typename Codec::Value*>(values);
    auto* from = static_cast<const typename Codec::Staged*>(staged);
    return fake::push_work(stream, [=] {
      for (int64_t i = 0; i < count; ++i) to[i] = Codec::decode(from[i]);
    });
  });
}

cudaError_t launch_rng(const concord_rng_request& request, cudaStream_t stream) {
  cudaError_t result = cudaErrorUnknown;
  sdk::visit_rng(request, [&]<class Generator>(const Generator& generator) {
    result = fake::push_work(stream, [=] {
      auto* to = static_cast<typename Generator::Out*>(request.destination);
      for (int64_t i = 0; i < request.count; ++i) {
        to[i] = sdk::value_at(generator, request.key, request.subsequence, sdk::position_of(request, i));
      }
    });
  });
  return result;
}

}  // namespace concord::cuda
