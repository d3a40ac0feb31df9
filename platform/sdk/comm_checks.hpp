// Argument checks of the comm table. See checks.hpp.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "platform/sdk/buffer_checks.hpp"

namespace concord::sdk {

struct CommConfig {
  std::string name = "comm";
  int64_t timeout_ms = 30 * 60 * 1000;
};

// Returns the settings of |config|, with defaults for fields that are null, 0 or beyond its struct_size.
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
