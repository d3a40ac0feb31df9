#include "core/checkpoint/crc32.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <span>
#include <string>
#include <vector>

namespace concord {
namespace {

// Computes the checksum bit by bit, by the standard's definition.
uint32_t by_definition(std::span<const std::byte> bytes) {
  uint32_t state = 0xffffffff;
  for (const std::byte each : bytes) {
    state ^= static_cast<uint32_t>(each);
    for (int bit = 0; bit < 8; ++bit) state = (state >> 1) ^ ((state & 1) != 0 ? 0xedb88320 : 0);
  }
  return ~state;
}

std::vector<std::byte> random_bytes(size_t size, std::mt19937& random) {
  std::vector<std::byte> bytes(size);
  for (std::byte& each : bytes) each = static_cast<std::byte>(random());
  return bytes;
}

struct Piece {
  size_t offset, size;
};

std::vector<Piece> random_partition(size_t size, std::mt19937& random) {
  std::vector<size_t> cuts = {0, size};
  for (size_t i = random() % 12; i > 0; --i) cuts.push_back(random() % (size + 1));  // some pieces are empty
  std::sort(cuts.begin(), cuts.end());
  std::vector<Piece> pieces;
  for (size_t i = 1; i < cuts.size(); ++i) pieces.push_back({cuts[i - 1], cuts[i] - cuts[i - 1]});
  return pieces;
}

TEST(Crc32, IsThatOfTheStandard) {
  const std::string check = "123456789";
  EXPECT_EQ(crc32(std::as_bytes(std::span(check))), 0xcbf43926u);  // the check value of the catalogue of CRCs
  EXPECT_EQ(crc32({}), 0u);
  std::mt19937 random(1);
  for (const size_t size : {1, 7, 8, 63, 64, 65, 1000, 100'003}) {
    const auto bytes = random_bytes(size, random);
    EXPECT_EQ(crc32(bytes), by_definition(bytes)) << size;
    const size_t cut = random() % (size + 1);
    EXPECT_EQ(crc32(crc32(std::span(bytes).first(cut)), std::span(bytes).subspan(cut)), by_definition(bytes)) << size;
  }
}

TEST(Crc32, OfZerosNeedsNoZeros) {
  for (const size_t size : {0, 1, 3, 4, 4096, 70'001}) {
    EXPECT_EQ(crc32_of_zeros(size), by_definition(std::vector<std::byte>(size))) << size;
  }
  for (const uint64_t many : {uint64_t{1} << 32, (uint64_t{1} << 40) + 5}) {
    EXPECT_EQ(crc32_of_zeros(many + 1000), crc32(crc32_of_zeros(many), std::vector<std::byte>(1000))) << many;
  }
}

TEST(Crc32, SharesOfAnyPartitionInAnyOrderGiveTheChecksumOfTheWhole) {
  std::mt19937 random(2);
  for (int round = 0; round < 200; ++round) {
    const auto bytes = random_bytes(random() % 5000, random);
    auto pieces = random_partition(bytes.size(), random);
    if (round % 2 == 1) std::shuffle(pieces.begin(), pieces.end(), random);
    uint32_t sum = crc32_of_zeros(bytes.size());
    Crc32Pieces all(bytes.size());
    for (const Piece& piece : pieces) {
      const auto part = std::span(bytes).subspan(piece.offset, piece.size);
      sum ^= crc32_share(part, piece.offset, bytes.size());
      all.add(piece.offset, part);
      ASSERT_EQ(crc32_of_zeros(bytes.size()) ^ all.share(), sum) << "round " << round << ", offset " << piece.offset;
    }
    ASSERT_EQ(sum, by_definition(bytes)) << "round " << round;
  }
}

// A rank of four holds columns of a matrix, another one the rest: runs of equal rows.
TEST(Crc32, RowsOfSeveralRanksGiveTheChecksumOfTheMatrix) {
  std::mt19937 random(3);
  constexpr size_t kRows = 50, kColumns = 96;
  auto bytes = random_bytes(kRows * kColumns, random);
  std::memset(bytes.data() + 10 * kColumns, 0, 5 * kColumns);  // a share of 0 in the middle
  uint32_t sum = crc32_of_zeros(bytes.size());
  for (size_t rank = 0; rank < 4; ++rank) {
    Crc32Pieces pieces(bytes.size());
    for (size_t row = 0; row < kRows; ++row) {
      const size_t offset = row * kColumns + rank * kColumns / 4;
      pieces.add(offset, std::span(bytes).subspan(offset, kColumns / 4));
    }
    sum ^= pieces.share();
  }
  EXPECT_EQ(sum, by_definition(bytes));
}

TEST(Crc32, RefusesAPieceThatDoesNotLieWithin) {
  const std::vector<std::byte> piece(4);
  EXPECT_THROW(crc32_share(piece, 7, 10), std::out_of_range);
  EXPECT_THROW(crc32_share(piece, 11, 10), std::out_of_range);
  EXPECT_THROW(crc32_share(piece, UINT64_MAX - 1, 10), std::out_of_range);
  EXPECT_THROW(Crc32Pieces(10).add(7, piece), std::out_of_range);
  EXPECT_THROW(crc32_of_zeros(UINT64_MAX), std::out_of_range);
  EXPECT_EQ(crc32_share(piece, 6, 10), 0u);
}

}  // namespace
}  // namespace concord
