#include "platform/conformance/numerics/philox.h"

#include <gtest/gtest.h>

namespace concord::conformance {
namespace {

// From the published test set of Random123 (kat_vectors, philox4x32 with 10 rounds).
TEST(PhiloxReference, GivesThePublishedVectors) {
  EXPECT_EQ(philox({0, 0, 0, 0}, 0, 0), (PhiloxWords{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, 0xffffffff, 0xffffffff),
            (PhiloxWords{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, 0xa4093822, 0x299f31d0),
            (PhiloxWords{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(PhiloxReference, PutsPositionsIntoBlocks) {
  const PhiloxWords second = philox_block(3, 5, 1);
  EXPECT_EQ(philox_word(3, 5, 6), second[2]);
  EXPECT_EQ(philox_word_pair(3, 5, 3), second[2] | (uint64_t{second[3]} << 32));
}

}  // namespace
}  // namespace concord::conformance
