#include "trainer/arguments/yaml.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "core/base/config_error.h"
#include "trainer/arguments/arguments.h"

namespace concord {
namespace {

using ::testing::HasSubstr;

std::string error_of(const std::string& yaml) {
  try {
    parse_yaml(yaml, "f.yaml");
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "no error";
}

TEST(ArgumentYaml, NamesValuesAndLines) {
  const auto entries = parse_yaml("# c\na: 1\n\nb: [x, 'y']\nc:\n  k: v\n  l: \"w\"\nd:\ne: 'true'\n", "f.yaml");
  ASSERT_EQ(entries.size(), 5u);
  EXPECT_EQ(entries[0].name, "a");
  EXPECT_EQ(entries[0].value.text, "1");
  EXPECT_EQ(entries[0].line, 2);
  EXPECT_EQ(entries[1].value.items, (std::vector<std::string>{"x", "y"}));
  EXPECT_EQ(entries[2].value.pairs, (std::vector<std::pair<std::string, std::string>>{{"k", "v"}, {"l", "w"}}));
  EXPECT_EQ(entries[2].line, 5);
  EXPECT_EQ(entries[3].value.text, "null");
  EXPECT_TRUE(entries[4].value.quoted);
  EXPECT_FALSE(entries[0].value.quoted);
}

TEST(ArgumentYaml, KeysOfInnerMappingsAreJoined) {
  const auto entries = parse_yaml("a:\n  b: {c: 1, d: {e: [x, y]}}\n  f: []\n  g: 2\nh: {i: 3}\n", "f.yaml");
  ASSERT_EQ(entries.size(), 2u);
  EXPECT_EQ(entries[0].value.pairs,
            (std::vector<std::pair<std::string, std::string>>{{"b.c", "1"}, {"b.d.e", "x,y"}, {"f", ""}, {"g", "2"}}));
  EXPECT_TRUE(entries[0].value.is_nested);
  EXPECT_FALSE(entries[1].value.is_nested);
}

TEST(ArgumentYaml, AnEmptyFileSaysNothing) {
  EXPECT_TRUE(parse_yaml("", "f").empty());
  EXPECT_TRUE(parse_yaml("# only a comment\n", "f").empty());
  EXPECT_TRUE(parse_yaml("---\n", "f").empty());
}

TEST(ArgumentYaml, ATabInFrontIsNamedWithItsLine) {
  EXPECT_THAT(error_of("a: 1\n\tb: 2\n"), HasSubstr("f.yaml:2: the line is indented with a tab"));
  EXPECT_THAT(error_of("a:\n  \tb: 2\n"), HasSubstr("f.yaml:2:"));
  EXPECT_EQ(error_of("a: 1\t# behind is fine\n"), "no error");
}

TEST(ArgumentYaml, WhatIsNotYamlIsNamedWithItsLine) {
  EXPECT_THAT(error_of("a: 1\nb: [1, 2\nc: 3\n"), HasSubstr("invalid YAML"));
  EXPECT_THAT(error_of("a: b: c\n"), HasSubstr("f.yaml:1"));
  EXPECT_THAT(error_of("just text\n"), HasSubstr("expected `name: value` lines, got 'just text'"));
  EXPECT_THAT(error_of("- a\n- b\n"), HasSubstr("got a list"));
  EXPECT_THAT(error_of(std::string("a: 1\n\0b", 7)), HasSubstr("f.yaml:2: unexpected control character (code 0)"));
}

TEST(ArgumentYaml, WhatCouldGrowIsRefused) {
  EXPECT_THAT(error_of("a: &x [1, 2]\nb: *x\n"), HasSubstr("f.yaml:1: the anchor '&x'"));
  std::string bomb = "a: &a [l, l]\n";
  for (char c = 'b'; c < 'k'; ++c) {  // each twice the one before it
    const std::string name(1, c), before(1, static_cast<char>(c - 1));
    bomb += name + ": &" + name + " [*" + before + ", *" + before + "]\n";
  }
  EXPECT_THAT(error_of(bomb), HasSubstr("anchor"));
  EXPECT_THAT(error_of("a: *nowhere\n"), HasSubstr("f.yaml:1"));
  EXPECT_THAT(error_of("a: !!binary aGk=\n"), HasSubstr("tag"));
  EXPECT_THAT(error_of("a: 1\n---\nb: 2\n"), HasSubstr("several documents"));
  EXPECT_THAT(error_of("a: [[1]]\n"), HasSubstr("nested values"));
  EXPECT_THAT(error_of("a: {b: [{c: d}]}\n"), HasSubstr("nested values"));
  EXPECT_THAT(error_of("a: {b: {c: {d: {e: {f: {g: h}}}}}}\n"), HasSubstr("nested values"));
  EXPECT_THAT(error_of("[a, b]: 1\n"), HasSubstr("expected a name"));
  EXPECT_THAT(error_of("{a: b}: 1\n"), HasSubstr("expected a name"));
}

TEST(ArgumentYaml, DeepNestingAndLengthCostNothing) {
  EXPECT_THAT(error_of("a: " + std::string(500'000, '[')), HasSubstr("f.yaml:1"));
  EXPECT_THAT(error_of("a: " + std::string(500'000, '{')), HasSubstr("f.yaml:1"));
  std::string nested;
  for (int i = 0; i < 2000; ++i) nested += std::string(static_cast<size_t>(i % 200), ' ') + "a:\n";
  EXPECT_THAT(error_of(nested), HasSubstr("f.yaml"));
  EXPECT_THAT(error_of(std::string(kMaxYaml + 1, '#')), HasSubstr("the limit"));
}

// Whatever stands in a file, it is read or refused with ConfigError.
TEST(ArgumentYaml, RandomChangesOfAFileAreReadOrRefused) {
  const std::string all = to_yaml(TrainingArguments());
  const std::string good = all.substr(0, all.find('\n', 1500) + 1);
  static constexpr char kLetters[] = "\t\n :-[]{}&*!|>'\"%@`#,?a1.\\\x80\xff";
  std::mt19937 random(11);
  int refused = 0;
  for (int i = 0; i < 600; ++i) {
    std::string text = good;
    for (int change = 0; change < 1 + i % 5; ++change) {
      const size_t at = random() % text.size();
      const char letter = kLetters[random() % (sizeof kLetters - 1)];
      if (random() % 2 == 0) {
        text[at] = letter;
      } else {
        text.insert(at, 1 + random() % 3, letter);
      }
    }
    TrainingArguments arguments;
    try {
      read_yaml(text, "f.yaml", &arguments);
    } catch (const ConfigError&) {
      ++refused;
    }
  }
  EXPECT_GT(refused, 100);
  EXPECT_LT(refused, 600);
}

}  // namespace
}  // namespace concord
