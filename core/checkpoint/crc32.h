// CRC-32, the checksum of zlib, gzip and zip, for data that arrives in pieces.
//
// The checksum of a sequence is the exclusive or of one number per piece, which depends only on the piece and its
// position. So every rank computes the shares of the data it writes, and these are combined afterwards, in any order,
// without any process holding all of the bytes:
//
// Example, given std::span<const std::byte> whole, size_t cut:
//   #include "core/checkpoint/crc32.h"
//   uint32_t sum = crc32_of_zeros(whole.size());
//   sum ^= crc32_share(whole.subspan(cut), cut, whole.size());
//   sum ^= crc32_share(whole.first(cut), 0, whole.size());  // sum == crc32(whole)
//
// Threads: any; one at a time per Crc32Pieces.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace concord {

uint32_t crc32(std::span<const std::byte> bytes);
// Returns the checksum of the concatenation of data with checksum |before| and |bytes|; that of no data is 0.
uint32_t crc32(uint32_t before, std::span<const std::byte> bytes);

// The checksum of |size| zero bytes.
uint32_t crc32_of_zeros(uint64_t size);

// Returns the contribution of |piece| at |offset| to the checksum of |size| bytes. A piece of zeros contributes 0.
// Throws std::out_of_range unless it is within them.
uint32_t crc32_share(std::span<const std::byte> piece, uint64_t offset, uint64_t size);

// Accumulates the shares of many pieces of one sequence. Ascending offsets are cheap: a run of equally long rows at
// equal distances costs one multiplication per row, whatever the size.
class Crc32Pieces {
 public:
  explicit Crc32Pieces(uint64_t size) : size_(size) {}

  void add(uint64_t offset, std::span<const std::byte> piece);
  uint32_t share() const;  // share of all pieces so far

 private:
  uint64_t size_;
  uint32_t earlier_ = 0;   // shares of the pieces before the current ascending run
  uint32_t run_ = 0;       // share of that run, as if the sequence ended with its last piece
  uint64_t end_ = 0;       // end of that piece
  uint64_t distance_ = 0;  // from the end of the previous piece
  uint32_t operator_ = 0;  // cached multiplier for |distance_|, if that is not 0
};

}  // namespace concord
