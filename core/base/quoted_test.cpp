#include "core/base/quoted.h"

#include <gtest/gtest.h>

namespace concord {
namespace {

TEST(Quoted, PlainTextAndOtherScriptsStayAsTheyAre) {
  EXPECT_EQ(quoted(""), "''");
  EXPECT_EQ(quoted("model.layers.0"), "'model.layers.0'");
  EXPECT_EQ(quoted("größe 模型 🙂"), "'größe 模型 🙂'");
}

TEST(Quoted, NothingThatATerminalObeysIsLeft) {
  EXPECT_EQ(quoted("\x1b[2J\x07"), "'\\x1b[2J\\x07'");
  EXPECT_EQ(quoted(std::string_view("a\0b\x7f", 4)), "'a\\x00b\\x7f'");
  EXPECT_EQ(quoted("two\nlines\r\tone"), "'two\\nlines\\r\\tone'");
  EXPECT_EQ(quoted("\xc2\x9b[31m"), "'\\u009b[31m'");            // CSI as one character
  EXPECT_EQ(quoted("\xe2\x80\xaegpj.exe"), "'\\u202egpj.exe'");  // right-to-left override
}

TEST(Quoted, BytesThatAreNotUtf8AreShownAsNumbers) {
  EXPECT_EQ(quoted("caf\xe9"), "'caf\\xe9'");
  EXPECT_EQ(quoted("\xc0\xaf\xed\xa0\x80"), "'\\xc0\\xaf\\xed\\xa0\\x80'");
  EXPECT_EQ(quoted("\xf0\x9f\x99"), "'\\xf0\\x9f\\x99'");
}

TEST(Quoted, TheQuotesCannotBeEndedFromInside) { EXPECT_EQ(quoted("a' b \\"), "'a\\' b \\\\'"); }

TEST(Quoted, ALongTextIsCutBetweenCharactersAndItsSizeIsSaid) {
  EXPECT_EQ(quoted(std::string(kMaxQuoted, 'x')), "'" + std::string(kMaxQuoted, 'x') + "'");
  EXPECT_EQ(quoted(std::string(900'000, 'x')), "'" + std::string(kMaxQuoted, 'x') + "...' (900000 bytes)");
  const std::string before(kMaxQuoted - 1, 'x');
  EXPECT_EQ(quoted(before + "é"), "'" + before + "...' (201 bytes)");
}

TEST(OneLine, IsTheSameWithoutQuotes) { EXPECT_EQ(one_line("it's\n\x1b[1m"), "it's\\n\\x1b[1m"); }

TEST(Printable, AMessageKeepsItsLinesAndQuotes) {
  EXPECT_EQ(printable("2 mistakes:\n  it's \x1b[1mone"), "2 mistakes:\n  it's \\x1b[1mone");
  EXPECT_EQ(printable("abcdef", 4), "abcd... (6 bytes)");
}

TEST(ShellCommand, QuotesWhatAShellWouldRead) {
  EXPECT_EQ(shell_command({"train", "--model", "a/b-1.0"}), "train --model a/b-1.0");
  EXPECT_EQ(shell_command({"echo", "", "two words", "it's $HOME", "*"}), R"(echo '' 'two words' 'it'\''s $HOME' '*')");
}

}  // namespace
}  // namespace concord
