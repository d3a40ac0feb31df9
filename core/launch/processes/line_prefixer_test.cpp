#include "core/launch/processes/line_prefixer.h"

#include <gtest/gtest.h>

namespace concord {
namespace {

std::string pass(LinePrefixer lines, std::initializer_list<std::string> pieces) {
  std::string out;
  for (const std::string& piece : pieces) lines.feed(piece, &out);
  lines.finish(&out);
  return out;
}

TEST(LinePrefixer, EveryLineGetsThePrefix) {
  EXPECT_EQ(pass({"[0] ", true}, {"one\ntwo\n"}), "[0] one\n[0] two\n");
  EXPECT_EQ(pass({"[0] ", true}, {"\n\n"}), "[0] \n[0] \n");
  EXPECT_EQ(pass({"[0] ", true}, {}), "");
}

TEST(LinePrefixer, ALineComesWholeHoweverItArrives) {
  EXPECT_EQ(pass({"> ", true}, {"o", "", "ne", "\n", "tw", "o\nth", "ree\n"}), "> one\n> two\n> three\n");
  LinePrefixer lines("> ", true);
  std::string out;
  lines.feed("half", &out);
  EXPECT_EQ(out, "") << "another rank's line could fall into the middle of it";
}

TEST(LinePrefixer, ALastLineWithoutNewlineIsNotLost) {
  EXPECT_EQ(pass({"> ", true}, {"one\ntwo"}), "> one\n> two\n");
  EXPECT_EQ(pass({"", false}, {"one\ntwo"}), "one\ntwo");
}

TEST(LinePrefixer, BytesAreNotTouched) {
  const std::string bytes("a\0b\r\n\xff\n", 7);
  EXPECT_EQ(pass({"", false}, {bytes}), bytes);
}

TEST(LinePrefixer, AnEndlessLineIsPassedOnInPieces) {
  const std::string endless(LinePrefixer::kMaxLine + 10, 'x');
  EXPECT_EQ(pass({"", false}, {endless, "\n"}), endless + "\n") << "without a prefix the bytes stay the same";
  EXPECT_EQ(pass({"> ", true}, {endless, "\n"}), "> " + std::string(LinePrefixer::kMaxLine, 'x') + "\n> xxxxxxxxxx\n");
}

}  // namespace
}  // namespace concord
