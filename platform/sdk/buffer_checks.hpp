// Argument checks of scalars, pointers, buffers and copies. See checks.hpp.
#pragma once

#include <cstdint>

#include "platform/sdk/dtypes.hpp"

namespace concord::sdk {

// ------------------------------------------------------------------------------------------------ scalars and pointers

inline void check_not_null(const void* pointer, const char* what) {
  if (pointer == nullptr) invalid(text("%s is null", what));
}

inline void check_bytes(int64_t bytes) {
  if (bytes < 0) invalid(text("bytes is %lld; it must be >= 0", static_cast<long long>(bytes)));
}

inline void check_count(int64_t count, const char* what = "count") {
  if (count < 0) invalid(text("%s is %lld; it must be >= 0", what, static_cast<long long>(count)));
}

inline void check_device(int32_t device, int32_t device_count) {
  if (device < 0 || device >= device_count) {
    invalid(text("device %d does not exist; there are %d, numbered from 0", device, device_count));
  }
}

// A rank, root or peer within a communicator; |what| is the word for the message.
inline void check_rank(int32_t rank, int32_t size, const char* what = "rank") {
  if (rank < 0 || rank >= size) {
    invalid(text("%s is %d; the communicator has the ranks 0 to %d", what, rank, size - 1));
  }
}

inline void check_dtype(concord_dtype dtype) { dtype_size(dtype); }

inline void check_reduce_op(concord_reduce_op reduce) {
  if (reduce < CONCORD_REDUCE_SUM || reduce > CONCORD_REDUCE_AVG) {
    invalid(text("reduction %d is unknown; it must be one of %s", reduce, kReduceNames));
  }
}

// Both are known, and types.h gives their combination a meaning: AVG of bool has none and is UNIMPLEMENTED.
inline void check_reduction(concord_dtype dtype, concord_reduce_op reduce) {
  check_dtype(dtype);
  check_reduce_op(reduce);
  if (dtype == CONCORD_DTYPE_BOOL && reduce == CONCORD_REDUCE_AVG) {
    fail(CONCORD_STATUS_UNIMPLEMENTED, "avg of bool is unsupported; use sum (or), prod (and), min (and) or max (or)");
  }
}

inline void check_copy_kind(concord_copy_kind kind) {
  if (kind < CONCORD_COPY_HOST_TO_HOST || kind > CONCORD_COPY_DEVICE_TO_DEVICE) {
    invalid(text(
        "copy kind %d is unknown; it must be host to host (1), host to device (2), device to host (3) or device to "
        "device (4)",
        kind));
  }
}

inline void check_comm_op(concord_comm_op operation) {
  if (operation < CONCORD_COMM_ALL_REDUCE || operation > CONCORD_COMM_BARRIER) {
    invalid(text("operation %d is unknown; the operations are CONCORD_COMM_ALL_REDUCE (1) to CONCORD_COMM_BARRIER (9)",
                 operation));
  }
}

// ------------------------------------------------------------------------------------------------------------- buffers

// Bytes of |count| elements; INVALID_ARGUMENT if count is negative or the product does not fit.
inline int64_t element_bytes(int64_t count, concord_dtype dtype, const char* what = "count") {
  int64_t bytes = 0;
  check_count(count, what);
  if (__builtin_mul_overflow(count, dtype_size(dtype), &bytes)) {
    invalid(text("%s is %lld elements of %s, more bytes than 2^63", what, static_cast<long long>(count),
                 dtype_name(dtype)));
  }
  return bytes;
}

inline int64_t checked_product(int64_t a, int64_t b, const char* what) {
  int64_t product = 0;
  if (__builtin_mul_overflow(a, b, &product)) {
    invalid(text("%s of %lld times %lld overflows", what, static_cast<long long>(a), static_cast<long long>(b)));
  }
  return product;
}

// A buffer that is about to be used: null only if nothing is in it, and its end is an address.
inline void check_buffer(const void* pointer, int64_t bytes, const char* what) {
  if (bytes == 0) return;
  if (pointer == nullptr)
    invalid(text("%s is null, but %lld bytes are requested", what, static_cast<long long>(bytes)));
  if (reinterpret_cast<uintptr_t>(pointer) > UINTPTR_MAX - static_cast<uintptr_t>(bytes)) {
    invalid(text("%s is %p, and %lld bytes from there exceed the address space", what, pointer,
                 static_cast<long long>(bytes)));
  }
}

// As check_buffer, for |count| elements; also aligned to the element.
inline void check_elements(const void* pointer, int64_t count, concord_dtype dtype, const char* what) {
  check_buffer(pointer, element_bytes(count, dtype), what);
  if (count > 0 && reinterpret_cast<uintptr_t>(pointer) % static_cast<uintptr_t>(dtype_size(dtype)) != 0) {
    invalid(text("%s is %p, which is not aligned to %s, %lld bytes", what, pointer, dtype_name(dtype),
                 static_cast<long long>(dtype_size(dtype))));
  }
}

inline bool ranges_overlap(const void* a, int64_t a_bytes, const void* b, int64_t b_bytes) {
  const auto first = reinterpret_cast<uintptr_t>(a);
  const auto second = reinterpret_cast<uintptr_t>(b);
  return a_bytes > 0 && b_bytes > 0 && first < second + static_cast<uintptr_t>(b_bytes) &&
         second < first + static_cast<uintptr_t>(a_bytes);
}

inline void check_apart(const void* a, int64_t a_bytes, const char* a_name, const void* b, int64_t b_bytes,
                        const char* b_name) {
  if (ranges_overlap(a, a_bytes, b, b_bytes)) {
    invalid(text("%s (%p, %lld bytes) and %s (%p, %lld bytes) overlap", a_name, a, static_cast<long long>(a_bytes),
                 b_name, b, static_cast<long long>(b_bytes)));
  }
}

// --------------------------------------------------------------------------------------------- memory, streams, events

// For copy, copy_on_stream and (with any valid kind) copy_peer_on_stream.
inline void check_copy(const void* destination, const void* source, int64_t bytes, concord_copy_kind kind) {
  check_bytes(bytes);
  check_copy_kind(kind);
  check_buffer(destination, bytes, "destination");
  check_buffer(source, bytes, "source");
  check_apart(destination, bytes, "destination", source, bytes, "source");
}

inline void check_fill(const void* destination, int64_t bytes) {
  check_bytes(bytes);
  check_buffer(destination, bytes, "destination");
}

inline void check_event_flags(uint32_t flags) {
  if ((flags & ~CONCORD_EVENT_TIMING) != 0) {
    invalid(text("event flags 0x%x are unknown; there is CONCORD_EVENT_TIMING (0x1)", flags));
  }
}

inline void check_host_function(concord_host_function function) {
  if (function == nullptr) invalid("the function to launch is null");
}

}  // namespace concord::sdk
