#include "backends/net/slice_sum.h"

#include <cstring>

#include "backends/shm/halves.h"
#include "backends/shm/reduce.h"
#include "platform/sdk/dtypes.hpp"

namespace concord::net {
namespace {

bool is_half(concord_dtype dtype) { return dtype == CONCORD_DTYPE_BF16 || dtype == CONCORD_DTYPE_F16; }
bool is_real(concord_dtype dtype) { return is_half(dtype) || dtype == CONCORD_DTYPE_F32 || dtype == CONCORD_DTYPE_F64; }

template <class Real>
void divide(void* values, int64_t elements, int32_t by) {
  auto* each = static_cast<Real*>(values);
  for (int64_t i = 0; i < elements; ++i) each[i] = each[i] / static_cast<Real>(by);
}

}  // namespace

SliceSum::SliceSum(concord_dtype dtype, concord_reduce_op op, int32_t world)
    : dtype_(dtype),
      wide_(is_half(dtype) ? CONCORD_DTYPE_F32 : dtype),
      op_(op == CONCORD_REDUCE_AVG ? CONCORD_REDUCE_SUM : op),
      average_(op == CONCORD_REDUCE_AVG),
      world_(world) {}

bool SliceSum::works(concord_dtype dtype, concord_reduce_op op) { return op != CONCORD_REDUCE_AVG || is_real(dtype); }

int64_t SliceSum::travel_bytes(int64_t elements) const { return elements * sdk::dtype_size(wide_); }

void SliceSum::widen(void* out, const void* in, int64_t elements) const {
  if (dtype_ == CONCORD_DTYPE_F16) {
    shm::halves_to_floats(static_cast<float*>(out), static_cast<const uint16_t*>(in), elements);
  } else if (dtype_ == CONCORD_DTYPE_BF16) {
    for (int64_t i = 0; i < elements; ++i) {
      static_cast<float*>(out)[i] = sdk::bf16_to_float(static_cast<const uint16_t*>(in)[i]);
    }
  } else if (elements > 0) {
    std::memcpy(out, in, static_cast<size_t>(travel_bytes(elements)));
  }
}

void SliceSum::add(void* out, const void* const* sources, int32_t source_count, int64_t elements) const {
  if (source_count > 1) return shm::find_reduction(wide_, op_)(out, sources, source_count, elements);
  if (out != sources[0] && elements > 0) std::memcpy(out, sources[0], static_cast<size_t>(travel_bytes(elements)));
}

void SliceSum::finish(void* out, void* sum, int64_t elements) const {
  if (average_)
    wide_ == CONCORD_DTYPE_F64 ? divide<double>(sum, elements, world_) : divide<float>(sum, elements, world_);
  if (dtype_ == CONCORD_DTYPE_F16) {
    shm::floats_to_halves(static_cast<uint16_t*>(out), static_cast<const float*>(sum), elements);
  } else if (dtype_ == CONCORD_DTYPE_BF16) {
    for (int64_t i = 0; i < elements; ++i) {
      static_cast<uint16_t*>(out)[i] = sdk::float_to_bf16(static_cast<const float*>(sum)[i]);
    }
  } else if (out != sum && elements > 0) {
    std::memcpy(out, sum, static_cast<size_t>(travel_bytes(elements)));
  }
}

}  // namespace concord::net
