#include "core/checkpoint/crc32.h"

#include <fmt/core.h>
#include <zlib.h>
#ifdef CONCORD_WITH_LIBDEFLATE
#include <libdeflate.h>
#endif

#include <limits>
#include <stdexcept>

namespace concord {
namespace {

constexpr uint32_t kAllOnes = 0xffffffff;

// CRC-32 is polynomial division over GF(2), but starts with a register of ones and inverts the result. Started with its
// inverse (a register of zeros) and not inverted, it is linear: that of an exclusive or is the exclusive or of both,
// leading zeros do not matter, and each zero byte at the end multiplies by x^8.
uint32_t linear_part(std::span<const std::byte> bytes) { return crc32(kAllOnes, bytes) ^ kAllOnes; }

uint32_t shift_operator(uint64_t zeros) {
  return static_cast<uint32_t>(::crc32_combine_gen(static_cast<z_off_t>(zeros)));
}
uint32_t shifted(uint32_t linear, uint32_t shift) {
  return static_cast<uint32_t>(::crc32_combine_op(linear, 0, shift));
}
uint32_t shifted_by(uint32_t linear, uint64_t zeros) {
  return zeros == 0 || linear == 0 ? linear : shifted(linear, shift_operator(zeros));
}

void check_within(uint64_t offset, uint64_t bytes, uint64_t size) {
  if (offset > size || bytes > size - offset || size > uint64_t{std::numeric_limits<z_off_t>::max()}) {
    throw std::out_of_range(fmt::format("checksum of {} bytes at offset {} of {}", bytes, offset, size));
  }
}

}  // namespace

uint32_t crc32(uint32_t before, std::span<const std::byte> bytes) {
  // Both libraries return the initial value for a null pointer.
  if (bytes.empty()) return before;
#ifdef CONCORD_WITH_LIBDEFLATE
  return libdeflate_crc32(before, bytes.data(), bytes.size());
#else
  return static_cast<uint32_t>(::crc32_z(before, reinterpret_cast<const Bytef*>(bytes.data()), bytes.size()));
#endif
}

uint32_t crc32(std::span<const std::byte> bytes) { return crc32(0, bytes); }

uint32_t crc32_of_zeros(uint64_t size) {
  check_within(0, 0, size);
  return shifted_by(kAllOnes, size) ^ kAllOnes;
}

uint32_t crc32_share(std::span<const std::byte> piece, uint64_t offset, uint64_t size) {
  check_within(offset, piece.size(), size);
  return shifted_by(linear_part(piece), size - offset - piece.size());
}

void Crc32Pieces::add(uint64_t offset, std::span<const std::byte> piece) {
  check_within(offset, piece.size(), size_);
  const uint64_t end = offset + piece.size();
  if (end < end_) {
    earlier_ = share();
    run_ = 0;
  } else if (run_ != 0 && end != end_) {
    if (end - end_ != distance_) {
      distance_ = end - end_;
      operator_ = shift_operator(distance_);
    }
    run_ = shifted(run_, operator_);
  }
  run_ ^= linear_part(piece);
  end_ = end;
}

uint32_t Crc32Pieces::share() const { return earlier_ ^ shifted_by(run_, size_ - end_); }

}  // namespace concord
