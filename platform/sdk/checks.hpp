// The argument checks that every backend and the validate layer share. Each throws INVALID_ARGUMENT (one throws
// UNIMPLEMENTED, see check_reduction) with a sentence that has the values. Header-only; no state; any thread.
//
// A backend calls them at the top of its methods. What only a plugin can know (a handle it never gave out, memory that
// is not its own) is not here.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

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

// ------------------------------------------------------------------------------------------------- memory, stream, rng

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

inline bool rng_has(concord_rng_kind kind, concord_dtype dtype) {
  const bool integral = dtype == CONCORD_DTYPE_I32 || dtype == CONCORD_DTYPE_I64;
  const bool real = dtype == CONCORD_DTYPE_F32 || dtype == CONCORD_DTYPE_F64 || dtype == CONCORD_DTYPE_BF16 ||
                    dtype == CONCORD_DTYPE_F16;
  switch (kind) {
    case CONCORD_RNG_BITS:
    case CONCORD_RNG_INTEGER: return integral;
    case CONCORD_RNG_UNIFORM:
    case CONCORD_RNG_NORMAL: return real;
    default: return false;
  }
}

// |low| and |high| as the kind needs them. Comparisons are written so that a NaN fails.
inline void check_rng_range(const concord_rng_request& request) {
  constexpr double kFloatMax = 3.4028234663852886e38;
  const bool wide = request.dtype == CONCORD_DTYPE_F64 && request.kind == CONCORD_RNG_UNIFORM;
  const double limit = wide ? 1.7976931348623157e308 : kFloatMax;
  const bool finite = request.low >= -limit && request.low <= limit && request.high >= -limit && request.high <= limit;
  const double low = finite && !wide ? static_cast<double>(static_cast<float>(request.low)) : request.low;
  const double high = finite && !wide ? static_cast<double>(static_cast<float>(request.high)) : request.high;
  if (request.kind == CONCORD_RNG_UNIFORM && !(finite && low <= high && high - low <= limit)) {
    invalid(text("a uniform fill of %s from %g to %g: low, high and high - low must be finite, and low <= high",
                 dtype_name(request.dtype), request.low, request.high));
  }
  if (request.kind == CONCORD_RNG_NORMAL && !(finite && request.high >= 0)) {
    invalid(text("a normal fill with mean %g and standard deviation %g: both must be finite floats, the second >= 0",
                 request.low, request.high));
  }
  if (request.kind != CONCORD_RNG_INTEGER) return;
  const bool fits = request.dtype == CONCORD_DTYPE_I64 ||
                    (request.integer_low >= INT32_MIN && request.integer_high <= int64_t{INT32_MAX} + 1);
  if (request.integer_low >= request.integer_high || !fits) {
    invalid(text("an integer fill of %s with %lld <= x < %lld: integer_low must be below integer_high, and x must fit",
                 dtype_name(request.dtype), static_cast<long long>(request.integer_low),
                 static_cast<long long>(request.integer_high)));
  }
}

// The bytes of a request that every version has.
inline constexpr uint32_t kRngRequestBytes = offsetof(concord_rng_request, run_length);

inline void check_rng_runs(const concord_rng_request& request) {
  if (request.run_length == 0 && request.run_stride == 0) return;
  if (request.run_length <= 0 || request.run_stride < 0) {
    invalid(text("runs of length %lld with stride %lld: the length must be >= 1 (or both 0), the stride >= 0",
                 static_cast<long long>(request.run_length), static_cast<long long>(request.run_stride)));
  }
}

// A request of rng.fill as this version knows it, checked. UINT64_MAX positions exist; a request may wrap past the end
// to 0.
inline concord_rng_request read_rng_request(const concord_rng_request* request) {
  check_not_null(request, "request");
  const uint32_t size = request->struct_size;
  if (size < kRngRequestBytes) {
    invalid(text("struct_size of the request is %u; version 1.0 has %u bytes", size, kRngRequestBytes));
  }
  concord_rng_request known{};
  std::memcpy(&known, request, size < sizeof known ? size : sizeof known);
  if (!rng_has(known.kind, known.dtype)) {
    invalid(
        text("no random numbers of kind %d and dtype %s (%d); there are bits (1) and integer (4) of i32, i64, uniform "
             "(2) and normal (3) of f32, f64, bf16, f16",
             known.kind, dtype_name(known.dtype), known.dtype));
  }
  if (known.reserved != 0) invalid(text("reserved of the request is %d; it must be 0", known.reserved));
  check_elements(known.destination, known.count, known.dtype, "destination");
  check_rng_range(known);
  check_rng_runs(known);
  return known;
}

// ------------------------------------------------------------------------------------------------------- communicators

struct CommConfig {
  std::string name = "comm";
  int64_t timeout_ms = 30 * 60 * 1000;
};

// The settings of |config|, with the defaults for what is null, 0 or beyond its struct_size.
inline CommConfig read_comm_config(const concord_comm_config* config) {
  CommConfig result;
  if (config == nullptr) return result;
  concord_comm_config known{};
  const uint32_t size = config->struct_size;
  if (size < sizeof(uint32_t)) invalid(text("struct_size of the config is %u; set it to the size of the struct", size));
  std::memcpy(&known, config, size < sizeof known ? size : sizeof known);
  if (known.reserved != 0) invalid(text("reserved of the config is %u; it must be 0", known.reserved));
  if (known.timeout_ms < 0) {
    invalid(text("timeout_ms is %lld; it must be >= 0 (0: 30 minutes)", static_cast<long long>(known.timeout_ms)));
  }
  if (known.name != nullptr) result.name = known.name;
  if (known.timeout_ms > 0) result.timeout_ms = known.timeout_ms;
  return result;
}

inline void check_unique_id(const void* id, int64_t bytes, int64_t expected_bytes) {
  check_not_null(id, "the unique id");
  if (bytes != expected_bytes) {
    invalid(text("a unique id of %lld bytes was given; unique_id_size is %lld", static_cast<long long>(bytes),
                 static_cast<long long>(expected_bytes)));
  }
}

inline void check_init(int32_t world, int32_t rank, const void* id, int64_t id_bytes, int64_t expected_bytes) {
  if (world < 1) invalid(text("world is %d; a communicator has at least 1 rank", world));
  check_rank(rank, world);
  check_unique_id(id, id_bytes, expected_bytes);
}

// The list of a split: distinct ranks of the parent, the caller among them. Empty: the caller is not a member.
inline void check_split(const int32_t* ranks, int32_t count, int32_t parent_rank, int32_t parent_size) {
  if (count < 0 || count > parent_size) {
    invalid(text("a split into %d ranks; the parent has %d", count, parent_size));
  }
  if (count == 0) return;
  check_not_null(ranks, "ranks");
  std::vector<bool> seen(static_cast<size_t>(parent_size), false);
  for (int32_t i = 0; i < count; ++i) {
    check_rank(ranks[i], parent_size, "a rank of the split");
    if (seen[static_cast<size_t>(ranks[i])]) invalid(text("rank %d appears twice in the list of the split", ranks[i]));
    seen[static_cast<size_t>(ranks[i])] = true;
  }
  if (!seen[static_cast<size_t>(parent_rank)]) {
    invalid(text(
        "the list of the split has %d ranks, but not the caller's own, %d; ranks that are not members pass count 0",
        count, parent_rank));
  }
}

// --------------------------------------------------------------------------------------------------------- collectives

// send and recv of a collective: each valid for its count, and apart unless they are |in_place| as comm.h describes it.
inline void check_transfer(const void* send, int64_t send_count, const void* recv, int64_t recv_count,
                           concord_dtype dtype, bool in_place) {
  check_elements(send, send_count, dtype, "send");
  check_elements(recv, recv_count, dtype, "recv");
  if (!in_place) {
    check_apart(send, element_bytes(send_count, dtype), "send", recv, element_bytes(recv_count, dtype), "recv");
  }
}

inline const char* offset_address(const void* base, int64_t elements, concord_dtype dtype) {
  return reinterpret_cast<const char*>(reinterpret_cast<uintptr_t>(base) +
                                       static_cast<uintptr_t>(elements * dtype_size(dtype)));
}

inline void check_all_reduce(const void* send, const void* recv, int64_t count, concord_dtype dtype,
                             concord_reduce_op reduce) {
  check_reduction(dtype, reduce);
  check_transfer(send, count, recv, count, dtype, send == recv);
}

inline void check_reduce(const void* send, const void* recv, int64_t count, concord_dtype dtype,
                         concord_reduce_op reduce, int32_t root, int32_t rank, int32_t size) {
  check_reduction(dtype, reduce);
  check_count(count);
  check_rank(root, size, "root");
  check_transfer(send, count, recv, rank == root ? count : 0, dtype, send == recv);
}

inline void check_broadcast(const void* send, const void* recv, int64_t count, concord_dtype dtype, int32_t root,
                            int32_t rank, int32_t size) {
  check_dtype(dtype);
  check_count(count);
  check_rank(root, size, "root");
  check_transfer(send, rank == root ? count : 0, recv, count, dtype, send == recv);
}

inline void check_all_gather(const void* send, const void* recv, int64_t count, concord_dtype dtype, int32_t rank,
                             int32_t size) {
  element_bytes(count, dtype);
  const int64_t total = checked_product(count, size, "an all_gather");
  element_bytes(total, dtype);
  check_transfer(send, count, recv, total, dtype, send == offset_address(recv, rank * count, dtype));
}

inline void check_reduce_scatter(const void* send, const void* recv, int64_t count, concord_dtype dtype,
                                 concord_reduce_op reduce, int32_t rank, int32_t size) {
  check_reduction(dtype, reduce);
  element_bytes(count, dtype);
  const int64_t total = checked_product(count, size, "a reduce_scatter");
  element_bytes(total, dtype);
  check_transfer(send, total, recv, count, dtype, recv == offset_address(send, rank * count, dtype));
}

inline void check_all_to_all(const void* send, const void* recv, int64_t count, concord_dtype dtype, int32_t size) {
  element_bytes(count, dtype);
  const int64_t total = checked_product(count, size, "an all_to_all");
  check_transfer(send, total, recv, total, dtype, false);
}

// One side of an all_to_all_v; returns the elements from the buffer's start to the end of the farthest piece.
inline int64_t check_pieces(const void* buffer, const int64_t* counts, const int64_t* offsets, concord_dtype dtype,
                            int32_t size, const char* what) {
  if (counts == nullptr || offsets == nullptr) {
    invalid(text("%s_%s is null; it must have one entry per rank", what, counts == nullptr ? "counts" : "offsets"));
  }
  int64_t extent = 0;
  for (int32_t r = 0; r < size; ++r) {
    int64_t end = 0;
    if (counts[r] < 0 || offsets[r] < 0 || __builtin_add_overflow(counts[r], offsets[r], &end)) {
      invalid(
          text("%s_counts[%d] is %lld and %s_offsets[%d] is %lld; both must be >= 0, and their sum must not overflow",
               what, r, static_cast<long long>(counts[r]), what, r, static_cast<long long>(offsets[r])));
    }
    if (counts[r] > 0 && end > extent) extent = end;
  }
  check_elements(buffer, extent, dtype, what);
  return extent;
}

inline void check_all_to_all_v(const void* send, const int64_t* send_counts, const int64_t* send_offsets,
                               const void* recv, const int64_t* recv_counts, const int64_t* recv_offsets,
                               concord_dtype dtype, int32_t size) {
  check_dtype(dtype);
  const int64_t send_extent = check_pieces(send, send_counts, send_offsets, dtype, size, "send");
  const int64_t recv_extent = check_pieces(recv, recv_counts, recv_offsets, dtype, size, "recv");
  if (!ranges_overlap(send, element_bytes(send_extent, dtype), recv, element_bytes(recv_extent, dtype))) return;
  for (int32_t s = 0; s < size; ++s) {  // pieces, not whole extents: two views of one buffer may interleave
    for (int32_t r = 0; r < size; ++r) {
      check_apart(offset_address(send, send_offsets[s], dtype), element_bytes(send_counts[s], dtype), "a piece of send",
                  offset_address(recv, recv_offsets[r], dtype), element_bytes(recv_counts[r], dtype),
                  "a piece of recv");
    }
  }
}

// A batch. Sends to oneself have to meet their receives within it: nothing else could ever complete them.
inline void check_batch_p2p(const concord_p2p_item* items, int64_t count, int32_t rank, int32_t size) {
  check_count(count);
  if (count > 0) check_not_null(items, "items");
  int64_t to_self = 0;
  for (int64_t i = 0; i < count; ++i) {
    const concord_p2p_item& item = items[i];
    if (item.kind != CONCORD_P2P_SEND && item.kind != CONCORD_P2P_RECV) {
      invalid(text("items[%lld].kind is %d; it must be CONCORD_P2P_SEND (1) or CONCORD_P2P_RECV (2)",
                   static_cast<long long>(i), item.kind));
    }
    if (item.reserved != 0) {
      invalid(text("items[%lld].reserved is %d; it must be 0", static_cast<long long>(i), item.reserved));
    }
    check_rank(item.peer, size, "a peer of the batch");
    check_elements(item.buffer, item.count, item.dtype, "a buffer of the batch");
    if (item.peer == rank) to_self += item.kind == CONCORD_P2P_SEND ? 1 : -1;
  }
  if (to_self != 0) {
    invalid(
        text("rank %d sends to itself %lld times more than it receives from itself in this batch; the numbers must "
             "be equal",
             rank, static_cast<long long>(to_self)));
  }
}

}  // namespace concord::sdk
