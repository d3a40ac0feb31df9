#include "core/checkpoint/verify.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "core/base/config_error.h"
#include "core/checkpoint/testing/manifest_of.h"
#include "core/safetensors/writer.h"
#include "tests/temporary_folder.h"

namespace concord {
namespace {

namespace fs = std::filesystem;
using safetensors::testing::read_file;
using safetensors::testing::write_file;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr int64_t kLarge = 1'500'000;  // elements: two pieces

// A checkpoint of two safetensors files and a plain one.
class Verify : public ::testing::Test {
 protected:
  Verify() {
    write_weights("model.safetensors", {{"a", 5}, {"large", kLarge}, {"none", 0}, {"z", 7}});
    write_weights("optimizer.safetensors", {{"exp_avg.a", 5}, {"exp_avg.z", 7}});
    write_file(path("config.json"), "{\"hidden_size\": 8}\n");
    testing::write_manifest(folder_.path());
  }

  std::string path(const std::string& name) const { return folder_ / name; }

  void write_weights(const std::string& name, const std::vector<std::pair<std::string, int64_t>>& tensors) {
    std::vector<safetensors::TensorShape> shapes;
    for (const auto& [tensor, size] : tensors) shapes.push_back({tensor, safetensors::DType::kF32, {size}});
    safetensors::Writer writer(path(name), shapes);
    for (const auto& [tensor, size] : tensors) {
      std::vector<float> values(static_cast<size_t>(size));
      for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i) * 0.5F + static_cast<float>(size);
      writer.write(tensor, 0, std::as_bytes(std::span(values)));
    }
    writer.finish();
  }

  // Returns the position of byte |offset| of a tensor in its file.
  uint64_t place(const std::string& file, const std::string& tensor, uint64_t offset) const {
    const safetensors::Reader reader(path(file));
    uint64_t data = 0;
    for (const auto& each : reader.tensors()) data += each.bytes();
    return fs::file_size(path(file)) - data + reader.at(tensor).begin + offset;
  }

  void flip(const std::string& file, uint64_t place) const {
    std::fstream stream(path(file), std::ios::in | std::ios::out | std::ios::binary);
    stream.seekg(static_cast<std::streamoff>(place));
    const char old = static_cast<char>(stream.get());
    stream.seekp(static_cast<std::streamoff>(place));
    stream.put(static_cast<char>(old ^ 0x10));
  }

  // Returns the damages found, which must be the same for one process and for the parts of several.
  std::vector<std::string> damages() const {
    std::vector<std::string> alone, together;
    for (const Damage& damage : verify_checkpoint(folder_.path())) alone.push_back(to_string(damage));
    for (const int64_t parts : {2, 3, 7}) {
      together.clear();
      for (int64_t part = 0; part < parts; ++part) {
        for (const Damage& damage : verify_checkpoint(folder_.path(), {.part = part, .parts = parts, .threads = 2}))
          together.push_back(to_string(damage));
      }
      EXPECT_THAT(together, ::testing::UnorderedElementsAreArray(alone)) << parts << " parts";
    }
    return alone;
  }

  tests::TemporaryFolder folder_;
};

TEST_F(Verify, FindsNothingInAnIntactCheckpoint) {
  EXPECT_THAT(damages(), IsEmpty());
  write_file(path("notes.txt"), "added later");
  EXPECT_THAT(damages(), IsEmpty());
  EXPECT_THAT(files_without_checksum(folder_.path(), read_manifest(folder_.path())), ElementsAre("notes.txt"));
}

TEST_F(Verify, NamesTheTensorOfAnyChangedByteWithBothChecksums) {
  const Manifest manifest = read_manifest(folder_.path());
  for (const auto& [tensor, offset] : std::vector<std::pair<std::string, uint64_t>>{{"a", 0},
                                                                                    {"a", 19},
                                                                                    {"large", 0},
                                                                                    {"large", (4 << 20) - 1},
                                                                                    {"large", 4 << 20},
                                                                                    {"large", kLarge * 4 - 1}}) {
    const uint64_t at = place("model.safetensors", tensor, offset);
    flip("model.safetensors", at);
    const std::vector<Damage> found = verify_checkpoint(folder_.path());
    ASSERT_EQ(found.size(), 1U) << tensor << " " << offset;
    const uint32_t now = testing::manifest_of(folder_.path()).files.at("model.safetensors").tensors.at(tensor);
    EXPECT_EQ(found[0], (Damage{.kind = Damage::Kind::checksum,
                                .file = "model.safetensors",
                                .tensor = tensor,
                                .expected = checksum_text(manifest.files.at("model.safetensors").tensors.at(tensor)),
                                .found = checksum_text(now)}));
    flip("model.safetensors", at);
  }
  EXPECT_THAT(damages(), IsEmpty());
}

TEST_F(Verify, NamesEverythingThatIsDamagedOverAllParts) {
  flip("config.json", 3);
  flip("model.safetensors", place("model.safetensors", "z", 1));
  flip("model.safetensors", place("model.safetensors", "large", 5'000'000));
  flip("optimizer.safetensors", place("optimizer.safetensors", "exp_avg.a", 0));
  EXPECT_THAT(damages(),
              ElementsAre(HasSubstr("config.json: has the checksum "), HasSubstr("tensor 'large' has the checksum"),
                          HasSubstr("tensor 'z' has the checksum"), HasSubstr("tensor 'exp_avg.a' has")));
}

TEST_F(Verify, NamesTheTensorsThatACutOffFileHasLost) {
  fs::resize_file(path("model.safetensors"), place("model.safetensors", "large", 1000));
  fs::resize_file(path("config.json"), 4);
  EXPECT_THAT(damages(),
              ElementsAre("config.json: has 4 bytes, but the manifest has 19", HasSubstr("model.safetensors: has "),
                          HasSubstr("tensor 'large' lies beyond the end"),
                          HasSubstr("tensor 'none' lies beyond the end"), HasSubstr("tensor 'z' lies beyond the end")));
  fs::resize_file(path("model.safetensors"), 3);
  EXPECT_THAT(damages(), ElementsAre(HasSubstr("config.json"), HasSubstr("model.safetensors: has 3 bytes"),
                                     HasSubstr("model.safetensors: its header cannot be read")));
  EXPECT_EQ(compare_sizes(folder_.path(), read_manifest(folder_.path())).size(), 2U);
}

TEST_F(Verify, NamesMissingAndUnreadableFiles) {
  fs::remove(path("model.safetensors"));
  fs::remove(path("config.json"));
  fs::create_directory(path("config.json"));
  EXPECT_THAT(damages(), ElementsAre(HasSubstr("config.json: cannot be read: "), "model.safetensors: is missing"));
}

TEST_F(Verify, NamesADamagedHeader) {
  flip("optimizer.safetensors", 7);  // the length
  EXPECT_THAT(damages(), ElementsAre(HasSubstr("optimizer.safetensors: its header cannot be read")));
  flip("optimizer.safetensors", 7);
  flip("optimizer.safetensors", 8);  // the JSON
  EXPECT_THAT(damages(), ElementsAre(::testing::AllOf(HasSubstr("optimizer.safetensors: its header has the checksum"),
                                                      HasSubstr("is not JSON"))));
  flip("optimizer.safetensors", 8);
  std::string text = read_file(path("optimizer.safetensors"));
  text.replace(text.find("exp_avg.a"), 9, "exp_avg.b");  // a different name; everything else is unchanged
  write_file(path("optimizer.safetensors"), text);
  EXPECT_THAT(damages(), ElementsAre(HasSubstr("its header has the checksum")));
}

TEST_F(Verify, NamesTensorsThatManifestAndFileDoNotBothHave) {
  Manifest manifest = read_manifest(folder_.path());
  auto& tensors = manifest.files.at("model.safetensors").tensors;
  tensors.erase("a");
  tensors["b"] = 0;
  write_file(path(kManifestFile), to_json(manifest));
  EXPECT_THAT(damages(), ElementsAre(HasSubstr("tensor 'a' is in the file, but not in the manifest"),
                                     HasSubstr("tensor 'b' is in the manifest, but not in the file")));
}

TEST_F(Verify, ADamagedManifestIsDamageAndAMissingOneAnError) {
  write_file(path(kManifestFile), "{");
  EXPECT_THAT(damages(), ElementsAre(HasSubstr("manifest.json: is not JSON")));
  fs::remove(path(kManifestFile));
  EXPECT_THROW(verify_checkpoint(folder_.path()), ConfigError);
}

TEST_F(Verify, PartsShareTheBytesAndReportAllOfThem) {
  write_weights("model.safetensors", {{"a", 100'000}, {"b", 100'000}, {"c", 100'000}, {"d", 100'000}});
  testing::write_manifest(folder_.path());
  uint64_t sum = 0;
  for (int64_t part = 0; part < 4; ++part) {
    uint64_t last = 0, bytes = 0;
    verify_checkpoint(folder_.path(), {.part = part, .parts = 4}, [&](uint64_t done, uint64_t all) {
      EXPECT_GT(done, last);
      last = done;
      bytes = all;
    });
    EXPECT_EQ(last, bytes);
    EXPECT_NEAR(static_cast<double>(bytes), 400'000, 1000) << part;
    sum += bytes;
  }
  EXPECT_EQ(sum, 4 * 400'000U + 12 * 4U + 19U);  // bytes of all tensors, and config.json
  EXPECT_THROW(verify_checkpoint(folder_.path(), {.part = 4, .parts = 4}), std::out_of_range);
}

}  // namespace
}  // namespace concord
