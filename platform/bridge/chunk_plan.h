// How an operation of the bridge is divided: what is copied to host memory, which calls are made there, and what is
// copied back. Pure functions; the result is a value.
//
// Ranks on different platforms make the same host calls only if they divide an operation identically, so a division
// depends on nothing but the arguments that all ranks share: count, type and number of ranks. kWireFormat (bridge.h)
// changes with it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace concord::bridge {

inline constexpr int64_t kChunkBytes = int64_t{4} << 20;  // host memory of the larger side of a chunk

// A copy between the caller's buffer and the staging buffer.
struct Piece {
  int64_t offset;  // in the caller's buffer, bytes
  int64_t staged;  // in the staging buffer, bytes
  int64_t bytes;
  bool operator==(const Piece&) const = default;
};

// One host call on |count| elements (of each part), with the copies before and after it.
struct Chunk {
  int64_t count;
  std::vector<Piece> down;
  std::vector<Piece> up;
  bool operator==(const Chunk&) const = default;
};

// Number of parts of |count| elements that the buffers of an operation have on any rank (all_gather: 1 and the number
// of ranks), and whether this rank copies them: only the root of a broadcast sends.
struct Sides {
  int64_t send_parts = 1;
  int64_t recv_parts = 1;
  bool sends = true;
  bool receives = true;
};

// Every chunk takes at most |limit| bytes on either side, or one element of each part. There is always one: ranks also
// meet in operations of no elements.
std::vector<Chunk> plan_chunks(int64_t count, int64_t element, const Sides& sides, int64_t limit = kChunkBytes);

int64_t staged_bytes(const std::vector<Piece>& pieces);  // the end of the last piece
std::string to_string(const Chunk& chunk);               // "2 elements: down 0>0+8, up 8<0+8 24<8+8"

}  // namespace concord::bridge
