#include "platform/conformance/json.h"

#include <gtest/gtest.h>

#include <stdexcept>

namespace concord::conformance {
namespace {

TEST(Json, WritesWhatItReads) {
  const std::string text = R"({"a": [1, -2.5, true, null, "x\"\\\n"], "b": {}, "c": []})";
  EXPECT_EQ(Json::parse(text).write(), text);
  EXPECT_EQ(Json::parse(Json::parse(text).write(2)).write(), text);
}

TEST(Json, FindsMembersAndGivesNullForOthers) {
  const Json json = Json::parse(R"({"name": "cpu", "world": 8})");
  EXPECT_EQ(json["name"].text(), "cpu");
  EXPECT_EQ(json["world"].number(), 8);
  EXPECT_TRUE(json["nothing"].is(Json::Kind::kNull));
}

TEST(Json, DecodesEscapes) { EXPECT_EQ(Json::parse(R"("\u00e9\u20ac\t")").text(), "\xc3\xa9\xe2\x82\xac\t"); }

TEST(Json, SaysTheLineOfAMistake) {
  for (const char* wrong : {"", "{", "[1,", "{\"a\" 1}", "[1] 2", "tru", "\"open", "\"\\q\"", "{1: 2}", "nan"}) {
    EXPECT_THROW(Json::parse(wrong), std::runtime_error) << wrong;
  }
  try {
    Json::parse("[\n1,\n!]");
    FAIL();
  } catch (const std::runtime_error& error) {
    EXPECT_NE(std::string(error.what()).find("line 3"), std::string::npos) << error.what();
  }
}

TEST(Json, RefusesDocumentsThatAreTooDeep) { EXPECT_THROW(Json::parse(std::string(100000, '[')), std::runtime_error); }

}  // namespace
}  // namespace concord::conformance
