#include "trainer/report/tensorboard.h"
#include "tests/temporary_folder.h"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <filesystem>

#include "trainer/report/crc32c.h"

namespace concord {
namespace {

using tests::TemporaryFolder;

std::string hex(const std::string& bytes) {
  std::string text;
  for (const char byte : bytes) text += fmt::format("{:02x}", static_cast<uint8_t>(byte));
  return text;
}

// RFC 3720, B.4, and the usual check value.
TEST(Crc32c, IsTheOneOfTheStandard) {
  EXPECT_EQ(crc32c("123456789"), 0xe3069283u);
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8a9136aau);
  EXPECT_EQ(crc32c(std::string(32, '\xff')), 0x62a8ab43u);
  EXPECT_EQ(crc32c(""), 0u);
}

// The bytes are those of tensorboard 2.21.0: Event(...).SerializeToString() through its RecordWriter.
TEST(EventFile, RecordsAreByteForByteTensorBoards) {
  EXPECT_EQ(hex(tf_record(version_event(1763197200.25))),
            "1800000000000000a37f4b2209000010441046da411a0d627261696e2e4576656e743a325a16282c");
  EXPECT_EQ(
      hex(tf_record(scalars_event(1763197201.5, 300, {{"train/loss", 2.5}, {"train/learning_rate", 3e-4}}))),
      "3d000000000000006049f1ec09000060441046da4110ac022a2f0a110a0a747261696e2f6c6f737315000020400a1a0a13747261696e2f6c"
      "6561726e696e675f726174651552499d393de05da8");
  EXPECT_EQ(hex(tf_record(restart_event(1763197202.0, 41))),
            "0f000000000000006d532b0909000080441046da4110293a0208014223ae38");
}

std::vector<std::string> names_in(const std::string& folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) names.push_back(entry.path().filename());
  return names;
}

TEST(EventFile, BeginsWithItsVersionAndGrowsByWholeRecords) {
  const TemporaryFolder folder;
  EventFile file(folder / "runs", 0, 100);
  file.add(101, 1, {{"train/loss", 2.5}});
  EXPECT_THAT(names_in(folder / "runs"), testing::ElementsAre(testing::StartsWith("events.out.tfevents.0000000100.")));
  EXPECT_EQ(read_if_there(file.path()),
            tf_record(version_event(100)) + tf_record(scalars_event(101, 1, {{"train/loss", 2.5}})));
}

TEST(EventFile, AResumedRunAddsAFileThatSaysWhereItStarts) {
  const TemporaryFolder folder;
  const EventFile first(folder.path(), 0, 100);
  const EventFile resumed(folder.path(), 40, 200);
  EXPECT_EQ(names_in(folder.path()).size(), 2u);
  EXPECT_EQ(read_if_there(resumed.path()), tf_record(version_event(200)) + tf_record(restart_event(200, 41)));
}

TEST(EventFile, ARunFromTheStartRemovesTheEventsOfOthersAndNothingElse) {
  const TemporaryFolder folder;
  const EventFile first(folder.path(), 0, 100);
  replace_file(folder / "notes.txt", "mine");
  const EventFile second(folder.path(), 0, 200);
  EXPECT_THAT(names_in(folder.path()),
              testing::UnorderedElementsAre("notes.txt", testing::StartsWith("events.out.tfevents.0000000200.")));
}

}  // namespace
}  // namespace concord
