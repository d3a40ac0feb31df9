#include "core/safetensors/reader.h"

#include <gmock/gmock.h>
#include <sys/stat.h>

#include <cstring>

#include "core/base/config_error.h"
#include "core/safetensors/testing/files.h"

namespace concord::safetensors {
namespace {

using testing::file_of;
using ::testing::HasSubstr;
using testing::TemporaryFolder;
using testing::write_file;

constexpr const char* kTwo =
    R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"b":{"dtype":"I16","shape":[2],"data_offsets":[4,8]}})";

std::string words(const std::string& path) {
  return testing::message_of<ConfigError>([&] { Reader reader(path); });
}

TEST(SafetensorsReader, MapsTheDataOfEachTensor) {
  const TemporaryFolder folder;
  const Reader reader(write_file(folder / "a.safetensors", file_of(kTwo, "abcdefgh")));
  ASSERT_EQ(reader.tensors().size(), 2u);
  const auto text = [&](const char* name) {
    const auto data = reader.data(reader.at(name));
    return std::string(reinterpret_cast<const char*>(data.data()), data.size());
  };
  EXPECT_EQ(text("a"), "abcd");
  EXPECT_EQ(text("b"), "efgh");
  EXPECT_EQ(reader.find("c"), nullptr);
}

TEST(SafetensorsReader, CopiesPartsOfATensor) {
  const TemporaryFolder folder;
  const Reader reader(write_file(folder / "a.safetensors", file_of(kTwo, "abcdefgh")));
  char part[3] = {};
  reader.read(reader.at("b"), 1, std::as_writable_bytes(std::span(part)));
  EXPECT_EQ(std::string(part, 3), "fgh");
  EXPECT_THROW(reader.read(reader.at("b"), 2, std::as_writable_bytes(std::span(part))), std::out_of_range);
  EXPECT_THROW(reader.read(reader.at("b"), UINT64_MAX, std::as_writable_bytes(std::span(part))), std::out_of_range);
}

TEST(SafetensorsReader, GivesPrivateMemoryThatNeitherChangesTheFileNorNeedsTheReader) {
  const TemporaryFolder folder;
  const std::string path = write_file(folder / "a.safetensors", file_of(kTwo, "abcdefgh"));
  std::shared_ptr<std::byte> memory;
  {
    const Reader reader(path);
    memory = reader.map_private(reader.at("a"), 1, 5);  // extends into the next tensor
    EXPECT_THROW((void)reader.map_private(reader.at("a"), 1, 8), std::out_of_range);
    EXPECT_THROW((void)reader.map_private(reader.at("b"), 5, 1), std::out_of_range);
    EXPECT_THROW((void)reader.map_private(reader.at("b"), 1, UINT64_MAX), std::out_of_range);
  }
  char* text = reinterpret_cast<char*>(memory.get());
  EXPECT_EQ(std::string(text, 5), "bcdef");
  text[0] = 'X';
  const Reader again(path);
  EXPECT_EQ(static_cast<char>(again.data(again.at("a"))[1]), 'b');
  EXPECT_EQ(text[0], 'X');
}

TEST(SafetensorsReader, SaysWhatThereIsWhereATensorIsMissing) {
  const TemporaryFolder folder;
  const Reader reader(write_file(folder / "a.safetensors", file_of(kTwo, "abcdefgh")));
  const std::string text = testing::message_of<ConfigError>([&] { (void)reader.at("logits"); });
  EXPECT_THAT(text, HasSubstr("has no tensor 'logits'; available: 'a', 'b'"));
  EXPECT_THAT(text, HasSubstr(reader.path()));
}

TEST(SafetensorsReader, RefusesFilesThatAreCutOff) {
  const TemporaryFolder folder;
  const std::string whole = file_of(kTwo, "abcdefgh");
  for (size_t length = 0; length < whole.size(); ++length) {
    const std::string path = write_file(folder / "a.safetensors", std::string_view(whole).substr(0, length));
    EXPECT_THAT(words(path), HasSubstr(path)) << length;
  }
  EXPECT_THAT(words(write_file(folder / "a", "abc")), HasSubstr("it has 3 bytes, but the header length alone takes 8"));
  EXPECT_THAT(words(write_file(folder / "a", "")), HasSubstr("it has 0 bytes"));
}

TEST(SafetensorsReader, RefusesWhatIsNoFile) {
  const TemporaryFolder folder;
  EXPECT_THAT(words(folder / "missing"), HasSubstr("cannot be opened: No such file"));
  EXPECT_THAT(words(folder.path()), HasSubstr("is not a regular file"));
  ASSERT_EQ(mkfifo((folder / "pipe").c_str(), 0600), 0);
  EXPECT_THAT(words(folder / "pipe"), HasSubstr("is not a regular file"));
}

TEST(SafetensorsReader, NoticesAFileThatBecomesShorter) {
  const TemporaryFolder folder;
  const Reader reader(write_file(folder / "a.safetensors", file_of(kTwo, "abcdefgh")));
  std::filesystem::resize_file(reader.path(), 20);
  char part[4] = {};
  EXPECT_THAT(testing::message_of<std::runtime_error>(
                  [&] { reader.read(reader.at("b"), 0, std::as_writable_bytes(std::span(part))); }),
              HasSubstr("is now shorter"));
}

// Returns the resident pages of a mapping, as counted by the kernel.
int64_t resident_kib() {
  std::ifstream status("/proc/self/status");
  std::string line;
  while (std::getline(status, line)) {
    if (line.starts_with("RssFile:")) return std::stoll(line.substr(8));
  }
  return -1;
}

TEST(SafetensorsReader, GivesPagesBackThatAreReleased) {
  constexpr int64_t kBytes = 32 << 20;
  const TemporaryFolder folder;
  const std::string json = R"({"w":{"dtype":"U8","shape":[33554432],"data_offsets":[0,33554432]}})";
  const Reader reader(write_file(folder / "a.safetensors", file_of(json, std::string(kBytes, 'x'))));
  const std::span<const std::byte> data = reader.data(reader.at("w"));
  const int64_t before = resident_kib();
  int64_t sum = 0;
  for (size_t i = 0; i < data.size(); i += 4096) sum += std::to_integer<int64_t>(data[i]);
  EXPECT_EQ(sum, 'x' * (kBytes / 4096));
  EXPECT_GT(resident_kib(), before + kBytes / 1024 / 2);
  reader.release(data);
  EXPECT_LT(resident_kib(), before + 4096);
}

}  // namespace
}  // namespace concord::safetensors
