#include "core/safetensors/index.h"

#include <gmock/gmock.h>

#include "core/base/config_error.h"
#include "core/safetensors/testing/files.h"
#include "core/safetensors/writer.h"

namespace concord::safetensors {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::TemporaryFolder;
using testing::write_file;

std::string index_words(std::string_view json) {
  return testing::message_of<ConfigError>([&] { (void)parse_index(json, "i.json"); });
}

std::string folder_words(const std::string& path) {
  return testing::message_of<ConfigError>([&] { Weights weights(path); });
}

// A file whose tensors have one byte each.
void make_file(const std::string& path, const std::vector<std::string>& names) {
  std::vector<TensorShape> tensors;
  for (const std::string& name : names) tensors.push_back({name, DType::kU8, {1}});
  Writer writer(path, tensors);
  for (const std::string& name : names) writer.write(name, 0, std::as_bytes(std::span("x", 1)));
  writer.finish();
}

TEST(SafetensorsIndex, SaysWhichFileATensorIsIn) {
  const auto files = parse_index(R"({"metadata":{"total_size":12,"more":[{"a":1.5}],"x":null},)"
                                 R"("weight_map":{"a":"1.safetensors","b":"2.safetensors"}})",
                                 "i");
  EXPECT_EQ(files, (std::map<std::string, std::string>{{"a", "1.safetensors"}, {"b", "2.safetensors"}}));
  EXPECT_EQ(parse_index(index_json(files, 12), "i"), files);
}

TEST(SafetensorsIndex, RefusesWhatIsNoIndex) {
  EXPECT_THAT(index_words(""), HasSubstr("i.json: is not JSON"));
  EXPECT_THAT(index_words("[]"), HasSubstr("expected {\"weight_map\": {tensor: file}}, got a list"));
  EXPECT_THAT(index_words("7"), HasSubstr("got the number 7"));
  EXPECT_THAT(index_words("{}"), HasSubstr("has no weight_map"));
  EXPECT_THAT(index_words(R"({"weight_map":[]})"), HasSubstr("got a list"));
  EXPECT_THAT(index_words(R"({"weight_map":{"a":7}})"), HasSubstr("has the number 7 as the file of tensor 'a'"));
  EXPECT_THAT(index_words(R"({"weight_map":{"a":{}}})"), HasSubstr("has an object as the file of tensor 'a'"));
  EXPECT_THAT(index_words(R"({"weight_map":{"a":null}})"), HasSubstr("has null as the file of tensor 'a'"));
  EXPECT_THAT(index_words(R"({"weight_map":{"a":"f","a":"g"}})"), HasSubstr("duplicate tensor 'a'"));
  EXPECT_THAT(index_words(R"({"weight_map":{},"weight_map":{}})"), HasSubstr("duplicate key 'weight_map'"));
  EXPECT_THAT(index_words(std::string(R"({"weight_map":{}})") + '\0' + "x"), HasSubstr("byte 17 is 0"));
  EXPECT_THAT(index_words(R"({"a":)" + std::string(100'000, '[')), HasSubstr("nested deeper than 16"));
}

TEST(SafetensorsIndex, RefusesFilesOutsideTheFolder) {
  for (const char* name : {"../a.safetensors", "/etc/passwd", "sub/../../a", "sub/a", "..", ".", "", "a\\u0000b"}) {
    const std::string words = index_words(R"({"weight_map":{"w":")" + std::string(name) + R"("}})");
    EXPECT_THAT(words,
                AllOf(HasSubstr("tensor 'w' has the file name '"), HasSubstr("must be a file in the same folder")));
  }
}

TEST(SafetensorsWeights, OfOneFileGoBeforeAnIndex) {
  const TemporaryFolder folder;
  make_file(folder / "model.safetensors", {"a"});
  write_file(folder / "model.safetensors.index.json", "broken");
  const Weights weights(folder.path());
  ASSERT_EQ(weights.tensors().size(), 1u);
  EXPECT_EQ(weights.find("a")->file->path(), folder / "model.safetensors");
  EXPECT_EQ(weights.find("b"), nullptr);
  EXPECT_EQ(Weights(folder / "model.safetensors").tensors().size(), 1u);
}

TEST(SafetensorsWeights, OfSeveralFilesAreFoundByTheIndex) {
  const TemporaryFolder folder;
  make_file(folder / "1.safetensors", {"a", "c"});
  make_file(folder / "2.safetensors", {"b"});
  write_file(folder / kIndexFile,
             index_json({{"a", "1.safetensors"}, {"b", "2.safetensors"}, {"c", "1.safetensors"}}, 3));
  const Weights weights(folder.path());
  EXPECT_EQ(weights.tensors().size(), 3u);
  EXPECT_EQ(weights.files().size(), 2u);
  EXPECT_EQ(weights.find("b")->file->path(), folder / "2.safetensors");
}

TEST(SafetensorsWeights, MayBeLinksAsInTheCacheOfTheHub) {
  const TemporaryFolder folder, blobs;
  make_file(blobs / "4711", {"a"});
  std::filesystem::create_symlink(blobs / "4711", folder / "model.safetensors");
  EXPECT_NE(Weights(folder.path()).find("a"), nullptr);
}

TEST(SafetensorsWeights, AreRefusedWhereIndexAndFilesDisagree) {
  const TemporaryFolder folder;
  make_file(folder / "1.safetensors", {"a", "c"});
  const auto with = [&](const std::map<std::string, std::string>& files) {
    write_file(folder / kIndexFile, index_json(files, 3));
    return folder_words(folder.path());
  };
  EXPECT_THAT(with({{"a", "1.safetensors"}, {"b", "9.safetensors"}, {"c", "1.safetensors"}}),
              AllOf(HasSubstr("refers to the file '9.safetensors', which is not in"), HasSubstr(kIndexFile)));
  EXPECT_THAT(with({{"a", "1.safetensors"}, {"b", "1.safetensors"}, {"c", "1.safetensors"}}),
              HasSubstr("says that tensor 'b' is in '1.safetensors', but it is not"));
  EXPECT_THAT(with({{"a", "1.safetensors"}}),
              HasSubstr("says that tensor 'c' is in no file, but it is in '1.safetensors'"));
  make_file(folder / "2.safetensors", {"b", "c"});
  EXPECT_THAT(with({{"a", "1.safetensors"}, {"b", "2.safetensors"}, {"c", "1.safetensors"}}),
              HasSubstr("says that tensor 'c' is in '1.safetensors', but it is in '2.safetensors'"));
}

TEST(SafetensorsWeights, AsPickleAreRefusedWithTheWayOut) {
  const TemporaryFolder folder;
  EXPECT_THAT(folder_words(folder.path()), HasSubstr("has no weights: neither model.safetensors nor"));
  write_file(folder / "pytorch_model.bin", "x");
  EXPECT_THAT(folder_words(folder.path()),
              AllOf(HasSubstr("as pickle (pytorch_model.bin)"), HasSubstr("save_pretrained")));
  write_file(folder / "adapter.safetensors", "x");
  EXPECT_THAT(folder_words(folder.path()), HasSubstr("has adapter.safetensors, but neither"));
  EXPECT_THAT(folder_words(folder / "nothing"), HasSubstr("cannot be opened: No such file"));
}

}  // namespace
}  // namespace concord::safetensors
