#include "core/safetensors/header.h"

#include <gmock/gmock.h>

#include "core/base/config_error.h"
#include "core/safetensors/testing/files.h"

namespace concord::safetensors {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Returns the error of parse_header for |json| followed by |data_bytes|.
std::string words(std::string_view json, uint64_t data_bytes) {
  return testing::message_of<ConfigError>([&] { parse_header(json, data_bytes, "a.safetensors"); });
}

std::string tensor(std::string_view shape, std::string_view offsets, std::string_view dtype = "F32") {
  return R"({"w":{"dtype":")" + std::string(dtype) + R"(","shape":)" + std::string(shape) + R"(,"data_offsets":)" +
         std::string(offsets) + "}}";
}

TEST(SafetensorsHeader, HasItsTensorsInTheOrderOfTheirData) {
  const Header header =
      parse_header(R"({"__metadata__":{"format":"pt"},"b":{"dtype":"BF16","shape":[2,3],"data_offsets":[4,16]},)"
                   R"("none":{"dtype":"F32","shape":[0,7],"data_offsets":[4,4]},)"
                   R"("scalar":{"data_offsets":[0,4],"dtype":"F32","shape":[]}}   )",
                   16, "a");
  ASSERT_EQ(header.tensors.size(), 3u);
  EXPECT_EQ(header.tensors[0].name, "scalar");
  EXPECT_EQ(header.tensors[0].elements(), 1);
  EXPECT_EQ(header.tensors[1].name, "none");
  EXPECT_EQ(header.tensors[2].name, "b");
  EXPECT_EQ(header.tensors[2].dtype, DType::kBF16);
  EXPECT_THAT(header.tensors[2].shape, ElementsAre(2, 3));
  EXPECT_EQ(header.tensors[2].begin, 4u);
  EXPECT_EQ(header.tensors[2].bytes(), 12u);
  EXPECT_EQ(header.metadata.at("format"), "pt");
}

TEST(SafetensorsHeader, MayHaveNoTensors) { EXPECT_EQ(words("{}", 0), "accepted"); }

TEST(SafetensorsHeader, KnowsEveryTypeByItsNameAndSize) {
  for (const char* name : {"BOOL", "U8", "I8", "F8_E5M2", "F8_E4M3", "F8_E8M0", "I16", "U16", "F16", "BF16", "I32",
                           "U32", "F32", "I64", "U64", "F64", "C64"}) {
    ASSERT_TRUE(parse_dtype(name).has_value()) << name;
    EXPECT_STREQ(to_string(*parse_dtype(name)), name);
    const auto size = static_cast<uint64_t>(size_of(*parse_dtype(name)));
    EXPECT_EQ(words(tensor("[3]", "[0," + std::to_string(3 * size) + "]", name), 3 * size), "accepted") << name;
  }
  EXPECT_EQ(size_of(DType::kBF16), 2);
  EXPECT_EQ(size_of(DType::kI64), 8);
}

TEST(SafetensorsHeader, RefusesWhatIsNotJson) {
  EXPECT_THAT(words("", 0), HasSubstr("a.safetensors: its header is not JSON"));
  EXPECT_THAT(words("{\"w\":", 0), HasSubstr("not JSON: at byte"));
  EXPECT_THAT(words("{} x", 0), HasSubstr("not JSON"));
  EXPECT_THAT(words(std::string("{}\0", 3), 0), HasSubstr("not JSON"));
  EXPECT_THAT(words("{\"\xff\":{}}", 0), HasSubstr("not JSON"));
}

TEST(SafetensorsHeader, RefusesValuesThatTheFormatDoesNotHave) {
  EXPECT_THAT(words("[]", 0), HasSubstr("a list at the top level"));
  EXPECT_THAT(words(R"({"w":7})", 0), HasSubstr("the number 7 instead of tensor 'w'"));
  EXPECT_THAT(words(R"({"w":{"shape":[[1]]}})", 0), HasSubstr("a list as shape of tensor 'w'"));
  EXPECT_THAT(words(tensor("[-1]", "[0,4]"), 4), HasSubstr("the number -1 as shape of tensor 'w'"));
  EXPECT_THAT(words(tensor("[1.5]", "[0,4]"), 4), HasSubstr("the number '1.5' as shape"));
  EXPECT_THAT(words(tensor("[18446744073709551616]", "[0,4]"), 4), HasSubstr("18446744073709551616"));
  EXPECT_THAT(words(tensor("[18446744073709551615]", "[0,4]"), 4), HasSubstr("18446744073709551615"));
  EXPECT_THAT(words(tensor("3", "[0,4]"), 4), HasSubstr("the number 3 as shape"));
  EXPECT_THAT(words(tensor("[1]", "[0]"), 4), HasSubstr("tensor 'w' has 1 data_offsets; expected 2"));
  EXPECT_THAT(words(tensor("[1]", "[0,4,4]"), 4), HasSubstr("more than 2 data_offsets"));
  EXPECT_THAT(words(tensor("[1]", "null"), 4), HasSubstr("null as data_offsets"));
  EXPECT_THAT(words(R"({"__metadata__":{"a":1}})", 0), HasSubstr("the number 1 in __metadata__"));
  EXPECT_THAT(words(R"({"__metadata__":"a"})", 0), HasSubstr("the string 'a' in __metadata__"));
  EXPECT_THAT(words(R"({"__metadata__":{"a":{}}})", 0), HasSubstr("an object in __metadata__"));
  EXPECT_THAT(words(R"({"w":{"dtype":["F32"]}})", 0), HasSubstr("a list as dtype"));
}

TEST(SafetensorsHeader, RefusesNestingAtOnce) {
  EXPECT_THAT(words(std::string(1'000'000, '['), 0), HasSubstr("a list at the top level"));
  std::string deep = R"({"w":)";
  for (int i = 0; i < 100'000; ++i) deep += R"({"dtype":)";
  EXPECT_THAT(words(deep, 0), HasSubstr("an object as dtype of tensor 'w'"));
}

TEST(SafetensorsHeader, RefusesUnknownTypesAndFields) {
  EXPECT_THAT(words(tensor("[2]", "[0,1]", "F4"), 1), AllOf(HasSubstr("tensor 'w' has dtype 'F4'"), HasSubstr("BF16")));
  EXPECT_THAT(words(R"({"w":{"dtypes":"F32"}})", 0), HasSubstr("tensor 'w' has 'dtypes'; allowed are"));
  EXPECT_THAT(words(R"({"w":{"dtype":"F32","shape":[1]}})", 4), HasSubstr("tensor 'w' has no data_offsets"));
  EXPECT_THAT(words(R"({"w":{"shape":[1],"data_offsets":[0,4]}})", 4), HasSubstr("tensor 'w' has no dtype"));
  EXPECT_THAT(words(R"({"w":{"dtype":"F32","data_offsets":[0,4]}})", 4), HasSubstr("tensor 'w' has no shape"));
}

TEST(SafetensorsHeader, RefusesNamesThatStandTwice) {
  EXPECT_THAT(words(R"({"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},)"
                    R"("w":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})",
                    8),
              HasSubstr("duplicate name 'w'"));
  EXPECT_THAT(words(R"({"w":{"dtype":"F32","shape":[1],"shape":[1]}})", 8), HasSubstr("tensor 'w' has shape twice"));
  EXPECT_THAT(words(R"({"__metadata__":{"a":"b","a":"c"}})", 0), HasSubstr("__metadata__ has 'a' twice"));
}

TEST(SafetensorsHeader, RefusesOffsetsOutsideTheData) {
  EXPECT_THAT(words(tensor("[2]", "[0,8]"), 4),
              HasSubstr("tensor 'w' has data_offsets [0, 8], but the file has 4 bytes of data"));
  EXPECT_THAT(words(tensor("[2]", "[8,0]"), 8), HasSubstr("data_offsets [8, 0]"));
  EXPECT_THAT(words(tensor("[2]", "[18446744073709551608,0]"), 8), HasSubstr("[18446744073709551608, 0]"));
}

TEST(SafetensorsHeader, RefusesOffsetsThatDoNotFitTheShape) {
  EXPECT_THAT(words(tensor("[2,3]", "[0,20]"), 20),
              HasSubstr("tensor 'w' of [2, 3] in F32 takes 24 bytes, but its data_offsets [0, 20] are 20"));
}

TEST(SafetensorsHeader, RefusesSizesThatOverflow) {
  // Each product is 0 modulo 2^64.
  EXPECT_THAT(words(tensor("[4294967296,4294967296]", "[0,0]"), 0), HasSubstr("overflows 63 bits"));
  EXPECT_THAT(words(tensor("[4611686018427387904]", "[0,0]"), 0), HasSubstr("overflows 63 bits"));
  std::string many = "[1";
  for (int i = 0; i < 100; ++i) many += ",1";
  EXPECT_THAT(words(tensor(many + "]", "[0,4]"), 4), HasSubstr("more than 64 dimensions"));
}

std::string two(std::string_view first, std::string_view second) {
  return R"({"a":{"dtype":"U8","shape":[4],"data_offsets":)" + std::string(first) +
         R"(},"b":{"dtype":"U8","shape":[4],"data_offsets":)" + std::string(second) + "}}";
}

TEST(SafetensorsHeader, RefusesOverlapsAndHoles) {
  EXPECT_EQ(words(two("[4,8]", "[0,4]"), 8), "accepted");
  EXPECT_THAT(words(two("[0,4]", "[3,7]"), 7),
              HasSubstr("tensor 'b' begins at byte 3 of the data, but tensor 'a' ends at 4: they overlap"));
  EXPECT_THAT(words(two("[0,4]", "[0,4]"), 4), HasSubstr("they overlap"));
  EXPECT_THAT(words(two("[0,4]", "[5,9]"), 9),
              HasSubstr("tensor 'b' begins at byte 5 of the data, but tensor 'a' ends at 4: there is a gap"));
  EXPECT_THAT(words(two("[1,5]", "[5,9]"), 9), HasSubstr("tensor 'a' begins at byte 1"));
  EXPECT_THAT(words(two("[0,4]", "[4,8]"), 10), HasSubstr("has 10 bytes of data, but its last tensor 'b' ends at 8"));
  EXPECT_THAT(words("{}", 1), HasSubstr("has 1 bytes of data, but its last tensor ends at 0"));
}

TEST(SafetensorsHeader, RefusesLengthsBeyondTheFileOrTheLimit) {
  const auto length = [](uint64_t value, uint64_t file) {
    return testing::message_of<ConfigError>([&] { (void)header_length(testing::length_bytes(value), file, "a"); });
  };
  EXPECT_EQ(length(100, 108), "accepted");
  EXPECT_THAT(length(101, 108), HasSubstr("a: its header length is 101 bytes, but the file has only 108"));
  EXPECT_THAT(length(UINT64_MAX, 108), HasSubstr("18446744073709551615 bytes; must be <= 100000000"));
  EXPECT_THAT(length(100'000'001, 200'000'000), HasSubstr("100000001 bytes; must be <= 100000000"));
  EXPECT_EQ(length(100'000'000, 200'000'000), "accepted");
}

TEST(SafetensorsHeader, ShowsHostileNamesInAHarmlessWay) {
  EXPECT_LT(words("{\"" + std::string(1'000'000, 'x') + "\":7}", 0).size(), 600u);
  EXPECT_LT(words("{" + std::string(1'000'000, '7'), 0).size(), 600u);
}

}  // namespace
}  // namespace concord::safetensors
