#include "core/checkpoint/manifest.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "core/base/config_error.h"
#include "core/checkpoint/crc32.h"
#include "tests/temporary_folder.h"

namespace concord {
namespace {

using ::testing::HasSubstr;

Manifest example() {
  Manifest manifest;
  manifest.files["config.json"] = {.bytes = 600, .crc32 = 0x0a1b2c3d};
  manifest.files["empty.safetensors"] = {.bytes = 10, .by_tensor = true, .crc32 = 5};
  manifest.files["model.safetensors"] = {.bytes = uint64_t{1} << 53,
                                         .by_tensor = true,
                                         .crc32 = 0xffffffff,
                                         .tensors = {{"a\"b\\c\n\u00e9", 1}, {"lm_head.weight", 0x8899aabb}}};
  return manifest;
}

std::string refusal(std::string_view json) {
  try {
    parse_manifest(json, "folder/manifest.json");
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "accepted";
}

std::string refusal_of_file(const std::string& name, const std::string& file) {
  return refusal(R"({"format":1,"checksum":"crc32","files":{")" + name + "\":" + file + "}}");
}

TEST(Manifest, IsReadAsItWasWritten) {
  const std::string text = to_json(example());
  EXPECT_EQ(parse_manifest(text, "x"), example());
  EXPECT_EQ(to_json(parse_manifest(text, "x")), text);
  EXPECT_EQ(parse_manifest(to_json({}), "x"), Manifest{});
}

// Compared with the JSON library: keys, digits, and names that need escapes.
TEST(Manifest, IsJsonWithALineForEachFileAndTensor) {
  const std::string text = to_json(example());
  const auto json = nlohmann::json::parse(text);
  EXPECT_EQ(json["format"], 1);
  EXPECT_EQ(json["checksum"], "crc32");
  EXPECT_EQ(json["files"]["config.json"], nlohmann::json::parse(R"({"bytes": 600, "crc32": "0a1b2c3d"})"));
  EXPECT_EQ(json["files"]["model.safetensors"]["tensors"]["a\"b\\c\n\u00e9"], "00000001");
  EXPECT_EQ(json["files"]["model.safetensors"]["header"], "ffffffff");
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 6);
  EXPECT_EQ(parse_manifest(json.dump(2), "x"), example()) << "other white space, another order of keys";
}

TEST(Manifest, RefusesWhatItDoesNotWrite) {
  const std::string good = R"({"bytes":1,"crc32":"00000000"})";
  EXPECT_EQ(refusal_of_file("a", good), "accepted");
  EXPECT_THAT(refusal(""), HasSubstr("folder/manifest.json: is not JSON"));
  EXPECT_THAT(refusal("[]"), HasSubstr("has a list instead of an object"));
  EXPECT_THAT(refusal("{}"), HasSubstr("needs format, checksum and files"));
  EXPECT_THAT(refusal(R"({"format":2,"checksum":"crc32","files":{}})"),
              HasSubstr("format 2; this version reads format 1"));
  EXPECT_THAT(refusal(R"({"format":1,"checksum":"md5","files":{}})"), HasSubstr("'md5'"));
  EXPECT_THAT(refusal(R"({"format":1,"format":1,"checksum":"crc32","files":{}})"), HasSubstr("'format' twice"));
  EXPECT_THAT(refusal(R"({"format":1,"checksum":"crc32","files":{},"extra":{}})"), HasSubstr("an object as 'extra'"));
  for (const char* name : {"", ".", "..", "/etc/passwd", "a/b", "manifest.json", "\\u0000"}) {
    EXPECT_THAT(refusal_of_file(name, good), HasSubstr("must be another file in the same folder")) << name;
  }
  EXPECT_THAT(refusal_of_file("a", good + ",\"a\":" + good), HasSubstr("file 'a' twice"));
  EXPECT_THAT(refusal_of_file("a", R"({"bytes":1})"), HasSubstr("needs bytes and crc32"));
  EXPECT_THAT(refusal_of_file("a", R"({"bytes":1,"header":"00000000"})"), HasSubstr("needs bytes and crc32"));
  EXPECT_THAT(refusal_of_file("a", R"({"bytes":1,"crc32":"00000000","header":"00000000"})"), HasSubstr("needs bytes"));
  EXPECT_THAT(refusal_of_file("a", R"({"bytes":-1,"crc32":"00000000"})"),
              HasSubstr("the value '-1' as 'bytes' of file 'a'"));
  EXPECT_THAT(refusal_of_file("a", R"({"bytes":1e3,"crc32":"00000000"})"), HasSubstr("the value '1e3'"));
  for (const char* checksum : {"", "0000000", "000000000", "0000000G", "0000000A", "+0000001"}) {
    EXPECT_THAT(refusal_of_file("a", R"({"bytes":1,"crc32":")" + std::string(checksum) + "\"}"),
                HasSubstr("is not a checksum of 8 hexadecimal digits"));
  }
  EXPECT_THAT(refusal_of_file("a", R"({"bytes":1,"header":"00000000","tensors":{"t":{}}})"),
              HasSubstr("an object as tensor 't' of file 'a'"));
  EXPECT_THAT(refusal_of_file("a", R"({"bytes":1,"header":"00000000","tensors":{"t":"00000000","t":"00000000"}})"),
              HasSubstr("tensor 't' of 'a' twice"));
  EXPECT_THAT(refusal(std::string(100'000, '[')), HasSubstr("a list instead of an object"));
}

// Accepts only texts that the library accepts too: with each byte of an example changed or removed.
TEST(Manifest, AcceptsNothingThatIsNotJson) {
  const std::string text = to_json(example());
  int accepted = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    for (const char with : {'"', '\\', '{', '}', ',', ':', '0', 'a', ' ', '\n', '\x7f', '\xc3', '\x01'}) {
      std::string changed = text;
      changed[i] = with;
      if (refusal(changed) != "accepted") continue;
      ++accepted;
      ASSERT_TRUE(nlohmann::json::accept(changed)) << changed;
    }
    std::string removed = text;
    removed.erase(i, 1);
    ASSERT_TRUE(refusal(removed) != "accepted" || nlohmann::json::accept(removed)) << removed;
  }
  EXPECT_GT(accepted, 100);
  EXPECT_THAT(refusal(text + "x"), HasSubstr("is not JSON"));
  EXPECT_THAT(refusal_of_file("a", R"({"bytes":01,"crc32":"00000000"})"), HasSubstr("the value '01'"));
  EXPECT_THAT(refusal_of_file("a", R"({"bytes":18446744073709551616,"crc32":"00000000"})"), HasSubstr("the value"));
  EXPECT_THAT(refusal_of_file("a", R"({"bytes":1,"crc32":"00000000",})"), HasSubstr("is not JSON"));
  EXPECT_THAT(refusal_of_file("\xff", R"({"bytes":1,"crc32":"00000000"})"), HasSubstr("is not JSON"));
}

TEST(Manifest, NamesThatAreNotUtf8AreRefusedWhenWritten) {
  Manifest manifest;
  manifest.files["\xff"] = {};
  EXPECT_THROW(to_json(manifest), ConfigError);
}

TEST(Manifest, HasADigestOfItsTensors) {
  Manifest other = example();
  other.files["config.json"].crc32 = 1;
  EXPECT_EQ(tensor_digest(example()), tensor_digest(other));
  other.files["model.safetensors"].tensors["lm_head.weight"] = 1;
  EXPECT_NE(tensor_digest(example()), tensor_digest(other));
}

TEST(Manifest, IsReadFromAFolder) {
  const tests::TemporaryFolder folder;
  EXPECT_FALSE(has_manifest(folder.path()));
  EXPECT_THROW(read_manifest(folder.path()), ConfigError);
  std::ofstream(folder / kManifestFile) << to_json(example());
  EXPECT_TRUE(has_manifest(folder.path()));
  EXPECT_EQ(read_manifest(folder.path()), example());
}

TEST(Manifest, HasTheSizeAndChecksumOfAPlainFile) {
  const tests::TemporaryFolder folder;
  for (const size_t size : {size_t{0}, size_t{5}, (size_t{3} << 20) + 7}) {
    std::string text(size, 'x');
    if (size > 0) text[size / 2] = 'y';
    std::ofstream(folder / "file") << text;
    const ManifestFile file = checksum_file(folder / "file");
    EXPECT_EQ(file.bytes, size);
    EXPECT_FALSE(file.by_tensor);
    EXPECT_EQ(file.crc32, crc32(std::as_bytes(std::span(text))));
  }
  EXPECT_THROW(checksum_file(folder / "nothing"), ConfigError);
  EXPECT_THROW(checksum_file(folder.path()), ConfigError);
}

}  // namespace
}  // namespace concord
