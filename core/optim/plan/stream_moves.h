// How optimizer state in the host's memory passes through a device that updates it: in chunks, each a contiguous range
// of host memory, through a few buffers of the device. Pure values; needs no libtorch. Threads: any.
//
// The moves "in 0 > 0, in 1 > 1, in 2 > 2, update 0, out 0, in 3 > 0, update 1, ..." are enqueued in this order on
// three streams, one for each kind. A chunk enters a buffer once the chunk before it there has left, is updated once it
// has entered, and leaves once it is updated. So with three buffers one chunk enters while another is updated and a
// third leaves, and at the start of an update the first chunks are already on the device.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/optim/state_precision.h"

namespace concord {

inline constexpr int64_t kStreamBuffers = 3;
inline constexpr int64_t kStreamAlignment = 64;  // bytes, of every tensor in a chunk

// Returns |bytes| rounded up to a multiple of kStreamAlignment.
int64_t stream_aligned(int64_t bytes);
// Returns the bytes of the state of |elements| elements in a chunk: each tensor begins at a multiple of
// kStreamAlignment.
int64_t streamed_bytes(const StatePlan& plan, int64_t elements);

// The state of one segment.
struct StreamPart {
  int64_t elements = 0;
  int64_t bytes = 0;
};
struct StreamChunk {
  size_t begin = 0, end = 0;  // of its segments
  int64_t offset = 0;         // in host memory, bytes
  int64_t bytes = 0;
  bool operator==(const StreamChunk&) const = default;
};
// Joins segments, in order, while a chunk has at most |most| elements. A larger segment is its own chunk.
std::vector<StreamChunk> pack_chunks(std::span<const StreamPart> parts, int64_t most);
// Returns the host memory of all chunks.
int64_t host_bytes(std::span<const StreamChunk> chunks);
// Returns the device memory of the buffers: each can hold the largest chunk.
int64_t stream_buffer_bytes(std::span<const StreamChunk> chunks);

struct StreamMove {
  enum class Kind { in, update, out };
  Kind kind;
  int64_t chunk;
  int64_t buffer;
  bool operator==(const StreamMove&) const = default;
};
// Returns the moves of an update of |chunks| chunks, in the order in which they are enqueued. The first
// min(chunks, kStreamBuffers) need no gradients.
std::vector<StreamMove> stream_moves(int64_t chunks);

// "in 3 > 0" (chunk 3 to buffer 0), "update 3", "out 3".
std::string text_of(const StreamMove& move);

}  // namespace concord
