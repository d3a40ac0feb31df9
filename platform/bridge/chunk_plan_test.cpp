#include "platform/bridge/chunk_plan.h"

#include <gtest/gtest.h>

namespace concord::bridge {
namespace {

TEST(ChunkPlan, WhatFitsIsOneChunkWithOnePieceOnEachSide) {
  EXPECT_EQ(plan_chunks(10, 4, {}), (std::vector<Chunk>{{10, {{0, 0, 40}}, {{0, 0, 40}}}}));
  EXPECT_EQ(plan_chunks(3, 2, {.recv_parts = 4}), (std::vector<Chunk>{{3, {{0, 0, 6}}, {{0, 0, 24}}}}));
}

TEST(ChunkPlan, APartOfEveryRankIsInEachChunk) {
  const std::vector<Chunk> expected = {{2, {{0, 0, 8}}, {{0, 0, 8}, {20, 8, 8}}},
                                       {2, {{8, 0, 8}}, {{8, 0, 8}, {28, 8, 8}}},
                                       {1, {{16, 0, 4}}, {{16, 0, 4}, {36, 4, 4}}}};
  const std::vector<Chunk> chunks = plan_chunks(5, 4, {.recv_parts = 2}, 16);
  EXPECT_EQ(chunks, expected);
  EXPECT_EQ(to_string(chunks[2]), "1 elements: down 16>0+4, up 16<0+4 36<4+4");
}

TEST(ChunkPlan, RanksThatCopyNothingMakeTheSameCalls) {
  const std::vector<Chunk> root = plan_chunks(9, 4, {.sends = true}, 16);
  const std::vector<Chunk> other = plan_chunks(9, 4, {.sends = false}, 16);
  ASSERT_EQ(root.size(), 3U);
  ASSERT_EQ(other.size(), root.size());
  for (size_t i = 0; i < root.size(); ++i) {
    EXPECT_EQ(root[i].count, other[i].count);
    EXPECT_EQ(root[i].up, other[i].up);
    EXPECT_TRUE(other[i].down.empty());
  }
}

TEST(ChunkPlan, NoElementsAreOneCall) { EXPECT_EQ(plan_chunks(0, 4, {}), (std::vector<Chunk>{{0, {}, {}}})); }

TEST(ChunkPlan, AnElementLargerThanTheLimitIsStillSent) {
  EXPECT_EQ(plan_chunks(2, 8, {.recv_parts = 3}, 16).size(), 2U);
}

// A copy through the plan equals the original, for every size around the limits.
TEST(ChunkPlan, EveryByteIsCopiedExactlyOnce) {
  for (const int64_t parts : {1, 2, 3}) {
    for (int64_t count = 0; count < 40; ++count) {
      std::vector<int> copies(static_cast<size_t>(parts * count * 4), 0);
      for (const Chunk& chunk : plan_chunks(count, 4, {.send_parts = parts, .recv_parts = parts}, 48)) {
        EXPECT_LE(staged_bytes(chunk.down), 48);
        EXPECT_EQ(staged_bytes(chunk.up), chunk.count * parts * 4);
        for (const Piece& piece : chunk.down) {
          for (int64_t i = 0; i < piece.bytes; ++i) ++copies[static_cast<size_t>(piece.offset + i)];
        }
      }
      EXPECT_EQ(copies, std::vector<int>(copies.size(), 1)) << parts << " parts of " << count;
    }
  }
}

}  // namespace
}  // namespace concord::bridge
