#include "core/checkpoint/write/replicated_save.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <span>

#include "core/checkpoint/crc32.h"
#include "tests/temporary_folder.h"

namespace concord {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

TEST(WholeSave, IsTheOneOfWhichAllPartsAreThere) {
  const FolderListing first = {{"id-a", 0}, {"part-0-of-3", 9}, {"part-2-of-3", 9}};
  const FolderListing second = {{"id-a", 0}, {"part-1-of-3", 9}, {"part-0-of-3", 9}};
  const FolderListing other = {{"id-b", 0}, {"part-1-of-3", 9}};
  EXPECT_EQ(find_complete_save(std::vector{first, second}), "id-a");
  EXPECT_EQ(find_complete_save(std::vector{first, other}), std::nullopt);  // a part of another save does not count
  EXPECT_EQ(find_complete_save(std::vector<FolderListing>{{}, {}}), std::nullopt);
}

class APart : public ::testing::Test {
 protected:
  APart() { write(target() + "/file", std::string(16, '.')); }

  std::string target() { return folder_ / "target"; }
  static void write(const std::string& path, const std::string& text) {
    std::filesystem::create_directories(std::filesystem::path(path).parent_path());
    std::ofstream(path, std::ios::binary) << text;
  }
  std::string read() {
    std::ifstream file(target() + "/file", std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }

  // A part of one chunk "abcdef" of elements of 2 bytes, with a run of these numbers: see ShardRun.
  void apply(const json& run, uint32_t damage = 0) {
    const std::vector<uint8_t> packed =
        json::to_cbor(json::array({{{"bytes", 6}, {"element", 2}, {"runs", json::array({run})}}}));
    const uint64_t size = packed.size();
    std::string text(reinterpret_cast<const char*>(&size), sizeof size);
    text.append(packed.begin(), packed.end()).append("abcdef");
    const uint32_t sum = crc32(std::as_bytes(std::span(text))) + damage;
    text.append(reinterpret_cast<const char*>(&sum), sizeof sum);
    write(folder_ / "part", text);
    apply_part(folder_ / "part", target());
  }

  void expect_refused(const json& run, uint32_t damage, const std::string& why) {
    EXPECT_THAT([&] { apply(run, damage); }, ThrowsMessage<std::runtime_error>(HasSubstr(why))) << run;
  }

 private:
  tests::TemporaryFolder folder_;
};

TEST_F(APart, IsWrittenWhereItBelongs) {
  // File offset 1; 3 elements starting at the first one, to element 1; rows of 2, 4 apart.
  apply({"file", 1, 0, 3, 1, 2, 4});
  EXPECT_EQ(read(), "...abcd....ef...");
}

TEST_F(APart, IsRefusedWhereItDoesNotFit) {
  const uint64_t huge = uint64_t{1} << 63;
  for (const json& run :
       {json{"file", 1, 0, 4, 1, 2, 4}, json{"file", 1, 1, 3, 1, 2, 4}, json{"file", 1, 0, 3, 1, 0, 4},
        json{"file", 1, 0, 3, 4, 2, 4}, json{"file", 1, 0, 3, 1, 2, 6}, json{"file", 17, 0, 1, 0, 1, 1},
        json{"file", 1, huge, 3, 1, 2, 4}, json{"file", 1, 0, huge, 1, 2, 4}, json{"file", 1, 0, 3, huge, 2, 4},
        json{"file", 1, 0, 3, 1, 1, huge}, json{"../file", 1, 0, 3, 1, 2, 4}, json{"none", 1, 0, 3, 1, 2, 4}}) {
    expect_refused(run, 0, "that does not fit");
  }
  EXPECT_EQ(read(), std::string(16, '.'));
}

TEST_F(APart, IsRefusedWithAnotherChecksum) { expect_refused({"file", 1, 0, 3, 1, 2, 4}, 1, "its checksum is wrong"); }

}  // namespace
}  // namespace concord
