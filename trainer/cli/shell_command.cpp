#include "trainer/cli/shell_command.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>

namespace concord {
namespace {

std::string shell_word(const std::string& word) {
  constexpr std::string_view kPlain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-+=./:,@%^";
  if (!word.empty() && word.find_first_not_of(kPlain) == std::string::npos) return word;
  std::string quoted = "'";
  for (const char letter : word) quoted += letter == '\'' ? "'\\''" : std::string(1, letter);
  return quoted + "'";
}

}  // namespace

std::string shell_command(const std::vector<std::string>& words) {
  std::vector<std::string> quoted;
  std::ranges::transform(words, std::back_inserter(quoted), shell_word);
  return fmt::format("{}", fmt::join(quoted, " "));
}

}  // namespace concord
