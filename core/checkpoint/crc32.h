// CRC-32, the checksum of zlib, gzip and zip files, of bytes that come in pieces.
//
// The checksum of a sequence is the exclusive or of one number for each piece of it, which depends on nothing but the
// piece and its place. So every rank computes the shares of what it writes, and they are combined afterwards, in any
// order, without anybody having all of the bytes:
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
// The checksum of what |before| is the checksum of, followed by |bytes|; that of nothing is 0.
uint32_t crc32(uint32_t before, std::span<const std::byte> bytes);

// The checksum of |size| zero bytes.
uint32_t crc32_of_zeros(uint64_t size);

// What |piece| at |offset| of |size| bytes adds to their checksum. A piece of zero bytes adds 0. Throws
// std::out_of_range where it does not lie within them.
uint32_t crc32_share(std::span<const std::byte> piece, uint64_t offset, uint64_t size);

// The shares of many pieces of one sequence. Pieces at rising offsets are cheap: a run of rows that are equally long
// and equally far from each other costs one multiplication for each row, whatever the size is.
class Crc32Pieces {
 public:
  explicit Crc32Pieces(uint64_t size) : size_(size) {}

  void add(uint64_t offset, std::span<const std::byte> piece);
  uint32_t share() const;  // of all pieces so far

 private:
  uint64_t size_;
  uint32_t earlier_ = 0;   // the shares of pieces before the rising run that is being added to
  uint32_t run_ = 0;       // of that run, as if the sequence ended with its last piece
  uint64_t end_ = 0;       // of that piece
  uint64_t distance_ = 0;  // from the end of the piece before it
  uint32_t operator_ = 0;  // of |distance_|, where that is not 0
};

}  // namespace concord
