#include "core/checkpoint/write/replication.h"

#include <gmock/gmock.h>

namespace concord {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

constexpr int64_t kChunk = 6;  // bytes: 3 elements

SavePlan sample_plan() {
  return plan_save({"model"}, {{list_text({{"w", safetensors::DType::kBF16, {7}}})}}, 1 << 20, 0);
}

SaveChunk chunk_of(const ShardRun& run) { return {.set = 0, .runs = {run}, .element_size = 2, .bytes = kChunk}; }

std::vector<std::vector<SaveChunk>> sent(const SaveChunk& chunk) {
  return parse_destinations(destinations_text({{chunk}}), sample_plan(), kChunk);
}

TEST(Destinations, ArriveAsTheyWereSent) {
  const ShardRun run{.tensor = "w", .local = 0, .count = 3, .offset = 1, .run_length = 2, .run_stride = 4};
  const auto groups = sent(chunk_of(run));
  ASSERT_EQ(groups.size(), 1u);
  const std::vector<SaveChunk>& chunks = groups[0];
  ASSERT_EQ(chunks.size(), 1u);
  EXPECT_EQ(chunks[0].runs, std::vector{run});
  EXPECT_EQ(chunks[0].set, 0u);
  EXPECT_EQ(chunks[0].element_size, 2);
  EXPECT_EQ(chunks[0].bytes, kChunk);
}

TEST(Groups, HoldAsManyChunksAsAreSentAtOnce) {
  std::vector<SaveChunk> chunks(6);
  const int64_t bytes[] = {4, 2, 1, 6, 5, 1};
  for (size_t i = 0; i < chunks.size(); ++i) chunks[i].bytes = bytes[i];
  std::vector<size_t> sizes;
  for (const auto& group : in_groups(chunks, kChunk)) sizes.push_back(group.size());
  EXPECT_THAT(sizes, ::testing::ElementsAre(2, 1, 1, 2));
  EXPECT_TRUE(in_groups({}, kChunk).empty());
}

TEST(Destinations, AreRefusedWhereTheyDoNotFit) {
  constexpr int64_t kHuge = int64_t{1} << 62;
  for (const ShardRun& run : {ShardRun{"w", 0, 4, 1, 2, 4},
                              {"w", 1, 3, 1, 2, 4},
                              {"w", 0, 3, 1, 0, 4},
                              {"w", 0, 3, 4, 2, 4},
                              {"w", 0, 3, 1, 2, 6},
                              {"w", 0, 1, 7, 1, 1},
                              {"w", kHuge, 3, 1, 2, 4},
                              {"w", 0, kHuge, 1, 2, 4},
                              {"w", 0, 3, kHuge, 2, 4},
                              {"w", 0, 3, 1, 1, kHuge},
                              {"w", -1, 3, 1, 2, 4},
                              {"w", 0, 3, -1, 2, 4},
                              {"w", 0, 3, 1, 2, -1},
                              {"w", 0, 0, 1, 2, 4},
                              {"../w", 0, 3, 1, 2, 4}}) {
    EXPECT_THAT([&] { sent(chunk_of(run)); }, ThrowsMessage<std::runtime_error>(HasSubstr("that does not fit")))
        << run.tensor << " " << run.local << " " << run.count << " " << run.offset;
  }
}

TEST(Destinations, OfOtherSizesSetsAndTypesAreRefused) {
  const ShardRun run{.tensor = "w", .local = 0, .count = 1, .offset = 0, .run_length = 1, .run_stride = 1};
  SaveChunk large = chunk_of(run), negative = chunk_of(run), other_set = chunk_of(run), other_type = chunk_of(run);
  large.bytes = kChunk + 1;
  negative.bytes = -2;
  other_set.set = 1;
  other_type.element_size = 1;
  for (const SaveChunk& chunk : {large, negative, other_set}) {
    EXPECT_THAT([&] { sent(chunk); }, ThrowsMessage<std::runtime_error>(HasSubstr("another rank has a chunk of")));
  }
  EXPECT_THAT([&] { sent(other_type); }, ThrowsMessage<std::runtime_error>(HasSubstr("that does not fit")));
  const SaveChunk whole = chunk_of(run);
  EXPECT_THAT([&] { parse_destinations(destinations_text({{whole, whole}}), sample_plan(), kChunk); },
              ThrowsMessage<std::runtime_error>(HasSubstr("another rank has a chunk of")));
  EXPECT_ANY_THROW(parse_destinations("not a list", sample_plan(), kChunk));
}

}  // namespace
}  // namespace concord
