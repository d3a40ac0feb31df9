#include "trainer/report/files.h"
#include "tests/temporary_folder.h"

#include <gmock/gmock.h>
#include <sys/resource.h>

#include <csignal>
#include <filesystem>
#include <optional>
#include <vector>

namespace concord {
namespace {

using tests::TemporaryFolder;

using testing::HasSubstr;

template <typename Call>
std::string error_of(Call call) {
  try {
    call();
  } catch (const std::runtime_error& error) {
    return error.what();
  }
  return "no error";
}

TEST(Files, AFullDiskIsAnErrorThatNamesTheFile) {
  AppendFile full("/dev/full", /*truncate=*/false);
  EXPECT_THAT(error_of([&] { full.append("line\n"); }),
              testing::AllOf(HasSubstr("/dev/full: cannot be written: No space left"), HasSubstr("free some space")));
}

// A file size limit truncates a write like a full disk.
class LimitedFileSize {
 public:
  explicit LimitedFileSize(rlim_t bytes) : action_(std::signal(SIGXFSZ, SIG_IGN)) {
    ::getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit limit{bytes, before_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~LimitedFileSize() {
    ::setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, action_);
  }
  LimitedFileSize(const LimitedFileSize&) = delete;
  LimitedFileSize& operator=(const LimitedFileSize&) = delete;

 private:
  rlimit before_{};
  void (*action_)(int);
};

TEST(Files, ALineThatDoesNotFitLeavesNoPartOfIt) {
  const TemporaryFolder folder;
  AppendFile file(folder / "lines", /*truncate=*/false);
  file.append("first line\n");
  {
    const LimitedFileSize limit(16);
    EXPECT_THAT(error_of([&] { file.append("second line\n"); }), HasSubstr("lines: cannot be written"));
  }
  EXPECT_EQ(read_if_there(folder / "lines"), "first line\n");
  file.append("third line\n");
  EXPECT_EQ(read_if_there(folder / "lines"), "first line\nthird line\n");
}

TEST(Files, ADocumentThatDoesNotFitLeavesTheOldOne) {
  const TemporaryFolder folder;
  replace_file(folder / "state", "old");
  {
    const LimitedFileSize limit(4);
    EXPECT_THAT(error_of([&] { replace_file(folder / "state", "a longer text"); }),
                HasSubstr("state: cannot be written"));
  }
  EXPECT_EQ(read_if_there(folder / "state"), "old");
  const auto entries = std::filesystem::directory_iterator(folder.path());
  EXPECT_EQ(std::distance(begin(entries), end(entries)), 1) << "something was left beside it";
}

TEST(Files, AFolderThatIsNotThereOrAFileIsAnErrorWithItsName) {
  const TemporaryFolder folder;
  EXPECT_THAT(error_of([&] { AppendFile file(folder / "none/lines", false); }),
              HasSubstr("none/lines: cannot be opened"));
  EXPECT_THAT(error_of([&] { replace_file(folder / "none/state", ""); }), HasSubstr("cannot be opened"));
  replace_file(folder / "file", "");
  EXPECT_THAT(error_of([&] { make_folder(folder / "file/below"); }), HasSubstr("file/below: cannot be created"));
}

TEST(Files, NothingIsWrittenThroughALink) {
  const TemporaryFolder folder;
  replace_file(folder / "victim", "keep");
  std::filesystem::create_symlink("victim", folder / "state.new");
  replace_file(folder / "state", "text");
  std::filesystem::create_symlink("victim", folder / "lines");
  EXPECT_THAT(error_of([&] { AppendFile(folder / "lines", true).append("x"); }), HasSubstr("lines: cannot be opened"));
  EXPECT_EQ(read_if_there(folder / "victim"), "keep");
  EXPECT_EQ(read_if_there(folder / "state"), "text");
  EXPECT_THAT(error_of([&] { replace_file("/dev/null", "x"); }), HasSubstr("/dev/null: is a device"));
}

TEST(Files, AFileThatWasRemovedTakesNoMoreLines) {
  const TemporaryFolder folder;
  AppendFile file(folder / "lines", false);
  file.append("a\n");
  std::filesystem::remove(folder / "lines");
  EXPECT_THAT(error_of([&] { file.append("b\n"); }), HasSubstr("lines: was deleted while the run was writing to it"));
}

// Lines shorter and longer than the pieces in which a file is read, 64 KiB, and at their boundaries.
TEST(LineReader, GivesEachWholeLineOnce) {
  const TemporaryFolder folder;
  std::vector<std::string> expected;
  std::string text;
  for (const size_t size : {0, 3, 65'535, 65'536, 1, 200'000, 65'531, 7}) {
    expected.emplace_back(size, static_cast<char>('a' + expected.size()));
    text += expected.back() + "\n";
  }
  replace_file(folder / "lines", text + "without its end");
  LineReader reader(folder / "lines");
  std::vector<std::string> found;
  while (const std::optional<std::string_view> line = reader.next()) found.emplace_back(*line);
  EXPECT_TRUE(found == expected);
  EXPECT_EQ(reader.number(), static_cast<int64_t>(expected.size()));
  EXPECT_EQ(reader.next(), std::nullopt);
  EXPECT_EQ(LineReader(folder / "nothing").next(), std::nullopt);
}

TEST(LineReader, RefusesALineThatIsTooLong) {
  const TemporaryFolder folder;
  replace_file(folder / "lines", "a\n" + std::string(200'000, 'b') + "\n");
  LineReader reader(folder / "lines", 100'000);
  EXPECT_EQ(reader.next(), "a");
  EXPECT_THAT(error_of([&] { reader.next(); }), HasSubstr("lines:2: a line of more than 100000 bytes"));
}

TEST(Files, TruncatingEmptiesAndAppendingDoesNot) {
  const TemporaryFolder folder;
  AppendFile(folder / "lines", false).append("a\n");
  AppendFile(folder / "lines", false).append("b\n");
  EXPECT_EQ(read_if_there(folder / "lines"), "a\nb\n");
  AppendFile(folder / "lines", true).append("c\n");
  EXPECT_EQ(read_if_there(folder / "lines"), "c\n");
}

}  // namespace
}  // namespace concord
