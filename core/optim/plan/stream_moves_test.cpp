#include "core/optim/plan/stream_moves.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gmock/gmock.h>

#include <map>

namespace concord {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::string text_of_moves(int64_t chunks) {
  std::vector<std::string> words;
  for (const StreamMove& move : stream_moves(chunks)) words.push_back(text_of(move));
  return fmt::format("{}", fmt::join(words, ", "));
}

TEST(StreamMoves, OneChunkEntersWhileOneIsUpdatedAndOneLeaves) {
  EXPECT_EQ(text_of_moves(0), "");
  EXPECT_EQ(text_of_moves(1), "in 0 > 0, update 0, out 0");
  EXPECT_EQ(text_of_moves(5),
            "in 0 > 0, in 1 > 1, in 2 > 2, update 0, out 0, in 3 > 0, update 1, out 1, in 4 > 1, "
            "update 2, out 2, update 3, out 3, update 4, out 4");
}

// If every move is enqueued after those that it waits for, no stream waits for itself and no chunk is overwritten.
TEST(StreamMoves, EveryChunkPassesOnceThroughABufferOfItsOwn) {
  for (int64_t chunks = 1; chunks < 9; ++chunks) {
    std::map<int64_t, int64_t> held;  // chunk by buffer
    std::vector<int64_t> updated, left;
    for (const StreamMove& move : stream_moves(chunks)) {
      switch (move.kind) {
        case StreamMove::Kind::in:
          EXPECT_FALSE(held.contains(move.buffer)) << chunks;
          EXPECT_LT(move.buffer, kStreamBuffers);
          held[move.buffer] = move.chunk;
          break;
        case StreamMove::Kind::update:
          EXPECT_EQ(held.at(move.buffer), move.chunk);
          updated.push_back(move.chunk);
          break;
        case StreamMove::Kind::out:
          EXPECT_EQ(updated.back(), move.chunk);
          EXPECT_EQ(held.at(move.buffer), move.chunk);
          held.erase(move.buffer);
          left.push_back(move.chunk);
          break;
      }
    }
    EXPECT_THAT(held, IsEmpty());
    EXPECT_EQ(left, updated);
    EXPECT_EQ(static_cast<int64_t>(left.size()), chunks);
  }
}

TEST(StreamMoves, ChunksHaveWholeSegmentsUpToALimit) {
  const std::vector<StreamPart> parts = {{10, 100}, {10, 100}, {5, 50}, {40, 400}, {1, 10}, {1, 20}};
  EXPECT_THAT(pack_chunks(parts, 20), ElementsAre(StreamChunk{0, 2, 0, 200}, StreamChunk{2, 3, 200, 50},
                                                  StreamChunk{3, 4, 250, 400}, StreamChunk{4, 6, 650, 30}));
  EXPECT_EQ(host_bytes(pack_chunks(parts, 20)), 680);
  EXPECT_EQ(stream_buffer_bytes(pack_chunks(parts, 20)), 3 * 400);
  EXPECT_EQ(stream_buffer_bytes(pack_chunks(parts, 1000)), 680);
  EXPECT_EQ(stream_buffer_bytes({}), 0);
}

TEST(StreamMoves, TensorsOfAChunkAreAligned) {
  OptimizerOptions options{.precision = {StateType::block8, StateType::block8, MainParamsType::remainder}};
  // Codes, their scales, and remainders.
  EXPECT_EQ(streamed_bytes(plan_state(options, true), 256), 2 * (256 + 64) + 512);
  options.precision = {.exp_avg_dtype = StateType::bf16};
  EXPECT_EQ(streamed_bytes(plan_state(options, true), 65), 192 + 320 + 320);
  options.precision = {.main_params_dtype = MainParamsType::bf16_stochastic_round};
  EXPECT_EQ(streamed_bytes(plan_state(options, true), 16), 64 + 64);
}

}  // namespace
}  // namespace concord
