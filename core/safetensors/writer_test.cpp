#include "core/safetensors/writer.h"

#include <gmock/gmock.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include <csignal>

#include "core/base/config_error.h"
#include "core/safetensors/reader.h"
#include "core/safetensors/testing/files.h"

namespace concord::safetensors {
namespace {

using ::testing::HasSubstr;
using testing::message_of;
using testing::TemporaryFolder;

std::span<const std::byte> bytes_of(std::string_view text) { return std::as_bytes(std::span(text)); }

std::string text_of(const Reader& file, const char* name) {
  const auto data = file.data(file.at(name));
  return {reinterpret_cast<const char*>(data.data()), data.size()};
}

size_t files_in(const std::string& folder) {
  return static_cast<size_t>(std::distance(std::filesystem::directory_iterator(folder), {}));
}

const std::vector<TensorShape> kTensors = {{"bytes", DType::kU8, {3}},
                                           {"wide", DType::kF64, {1}},
                                           {"none", DType::kF32, {0, 4}},
                                           {"half", DType::kBF16, {2, 1}}};

TEST(SafetensorsWriter, WritesPiecesInAnyOrder) {
  const TemporaryFolder folder;
  Writer writer(folder / "a.safetensors", kTensors);
  writer.write("half", 2, bytes_of("kl"));
  writer.write("wide", 0, bytes_of("abcdefgh"));
  writer.write("bytes", 0, bytes_of("xyz"));
  writer.write("half", 0, bytes_of("ij"));
  writer.finish();
  const Reader file(folder / "a.safetensors");
  EXPECT_EQ(text_of(file, "wide"), "abcdefgh");
  EXPECT_EQ(text_of(file, "half"), "ijkl");
  EXPECT_EQ(text_of(file, "bytes"), "xyz");
  EXPECT_EQ(file.at("none").shape, (std::vector<int64_t>{0, 4}));
  EXPECT_EQ(file.metadata(), pytorch_metadata());
  EXPECT_EQ(files_in(folder.path()), 1u);
}

TEST(SafetensorsWriter, AlignsEveryTensorToItsElements) {
  const TemporaryFolder folder;
  for (const std::string name : {"a", "ab", "abc", "abcd", "abcde", "abcdef", "abcdefg", "abcdefgh"}) {
    std::vector<TensorShape> tensors = kTensors;
    tensors[0].name = name;
    const FilePlan plan = plan_file(tensors, {}, "f");
    EXPECT_EQ(plan.head.size() % 8, 0u);
    for (const TensorInfo& tensor : plan.tensors)
      EXPECT_EQ(plan.place_of(tensor) % static_cast<uint64_t>(size_of(tensor.dtype)), 0u) << tensor.name;
  }
}

TEST(SafetensorsWriter, EscapesNamesSoThatTheReaderGetsThemBack) {
  const TemporaryFolder folder;
  const std::string name = "a\"b\\c\n\xc3\xa4";
  Writer writer(folder / "a", {{name, DType::kU8, {1}}}, {{"k\"", "v\n"}});
  writer.write(name, 0, bytes_of("z"));
  writer.finish();
  const Reader file(folder / "a");
  EXPECT_EQ(file.tensors().front().name, name);
  EXPECT_EQ(file.metadata().at("k\""), "v\n");
}

TEST(SafetensorsWriter, MakesAFileWithoutTensors) {
  const TemporaryFolder folder;
  Writer(folder / "a", {}, {}).finish();
  EXPECT_TRUE(Reader(folder / "a").tensors().empty());
}

TEST(SafetensorsWriter, LeavesTheOldFileUntilItIsFinished) {
  const TemporaryFolder folder;
  testing::write_file(folder / "a", "old");
  {
    Writer writer(folder / "a", kTensors);
    writer.write("bytes", 0, bytes_of("xyz"));
    EXPECT_EQ(testing::read_file(folder / "a"), "old");
    EXPECT_EQ(files_in(folder.path()), 2u);
  }
  EXPECT_EQ(testing::read_file(folder / "a"), "old");
  EXPECT_EQ(files_in(folder.path()), 1u);
  Writer writer(folder / "a", {{"w", DType::kU8, {1}}});
  writer.write("w", 0, bytes_of("z"));
  writer.finish();
  EXPECT_EQ(text_of(Reader(folder / "a"), "w"), "z");
}

TEST(SafetensorsWriter, RefusesToFinishWhatIsNotComplete) {
  const TemporaryFolder folder;
  {
    Writer writer(folder / "a", kTensors);
    writer.write("bytes", 0, bytes_of("xyz"));
    EXPECT_THAT(message_of<std::logic_error>([&] { writer.finish(); }),
                HasSubstr("3 bytes were written, but its tensors have 15"));
  }
  EXPECT_EQ(files_in(folder.path()), 0u);
}

TEST(SafetensorsWriter, RefusesBytesOutsideATensor) {
  const TemporaryFolder folder;
  Writer writer(folder / "a", kTensors);
  EXPECT_THROW(writer.write("bytes", 1, bytes_of("xyz")), std::out_of_range);
  EXPECT_THROW(writer.write("bytes", UINT64_MAX, bytes_of("xyz")), std::out_of_range);
  EXPECT_THROW(writer.write("other", 0, bytes_of("x")), std::out_of_range);
}

TEST(SafetensorsWriter, RefusesDeclarationsThatCannotBe) {
  const auto words = [](std::vector<TensorShape> tensors) {
    return message_of<ConfigError>([&] { (void)plan_file(std::move(tensors), {}, "f"); });
  };
  EXPECT_THAT(words({{"a", DType::kU8, {1}}, {"a", DType::kU8, {1}}}), HasSubstr("f: duplicate tensor name 'a'"));
  EXPECT_THAT(words({{"__metadata__", DType::kU8, {1}}}), HasSubstr("cannot be named __metadata__"));
  EXPECT_THAT(words({{"a", DType::kF32, {-1}}}), HasSubstr("tensor 'a' of [-1]"));
  EXPECT_THAT(words({{"a", DType::kF32, {INT64_MAX / 2}}}), HasSubstr("63 bits"));
  EXPECT_THAT(words({{"a", DType::kU8, {INT64_MAX}}, {"b", DType::kU8, {1}}}), HasSubstr("63 bits"));
}

TEST(SafetensorsWriter, SaysSoWhereTheFolderIsMissing) {
  EXPECT_THAT(message_of<std::runtime_error>([] { Writer("/nonexistent/a", {}); }),
              HasSubstr("cannot be created: No such file"));
}

// Runs |body| in a child process, because the limit cannot be raised again.
int exit_code_of(const std::function<int()>& body) {
  const pid_t child = fork();
  if (child == 0) _exit(body());
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(SafetensorsWriter, LeavesNothingBehindWhereThereIsNoSpace) {
  const TemporaryFolder folder;
  EXPECT_EQ(exit_code_of([&] {
              std::signal(SIGXFSZ, SIG_IGN);
              const rlimit limit{1 << 16, 1 << 16};
              setrlimit(RLIMIT_FSIZE, &limit);
              const std::string words =
                  message_of<std::runtime_error>([&] { Writer(folder / "a", {{"w", DType::kU8, {1 << 20}}}); });
              return words.find("ulimit -f") != std::string::npos && words.find("too large") != std::string::npos ? 0
                                                                                                                  : 1;
            }),
            0);
  EXPECT_EQ(files_in(folder.path()), 0u);
}

TEST(SafetensorsWriter, SaysWhereAWriteFailed) {
  const TemporaryFolder folder;
  FilePart part(folder / "a", FilePart::Mode::create, 16);
  part.write(4, bytes_of("abcd"));
  part.sync();
  EXPECT_EQ(testing::read_file(folder / "a").substr(4, 4), "abcd");
  FilePart full("/dev/full", FilePart::Mode::share);
  EXPECT_THAT(message_of<std::runtime_error>([&] { full.write(0, bytes_of("abcd")); }),
              HasSubstr("/dev/full: cannot be written: No space left on device"));
  EXPECT_THAT(message_of<std::runtime_error>([&] { FilePart(folder / "a", FilePart::Mode::create, 1); }),
              HasSubstr("cannot be created: File exists"));
}

}  // namespace
}  // namespace concord::safetensors
