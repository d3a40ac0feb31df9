#include "core/launch/job/membership.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>

namespace concord {
namespace {

std::vector<std::string_view> split(std::string_view text, char at) {
  std::vector<std::string_view> parts;
  for (;;) {
    const size_t end = text.find(at);
    parts.push_back(text.substr(0, end));
    if (end == std::string_view::npos) return parts;
    text.remove_prefix(end + 1);
  }
}

template <class Number>
bool read(std::string_view text, Number lowest, Number highest, Number* number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *number);
  return error == std::errc() && end == text.data() + text.size() && *number >= lowest && *number <= highest;
}

bool read_launcher(std::string_view text, int64_t* launcher) { return read<int64_t>(text, 1, INT64_MAX, launcher); }

std::string voters_text(const char* name, const Voters& voters) {
  return fmt::format(" {},{},{}", name, voters.leader, fmt::join(voters.launchers, ","));
}

bool read_voters(const std::vector<std::string_view>& parts, Voters* voters) {
  if (parts.size() < 3 || parts.size() > 2 + Voters::kMost || !read_launcher(parts[1], &voters->leader)) return false;
  return std::all_of(parts.begin() + 2, parts.end(),
                     [&](std::string_view part) { return read_launcher(part, &voters->launchers.emplace_back()); });
}

bool read_entry(const std::vector<std::string_view>& parts, RosterEntry* entry) {
  if (parts.size() != 4 || parts[3].empty()) return false;
  entry->address = parts[3];
  return read_launcher(parts[0], &entry->launcher) && read(parts[1], 0, 1 << 15, &entry->node) &&
         read(parts[2], 1, 65535, &entry->port);
}

}  // namespace

std::string pack(const Membership& roster) {
  if (roster.electorate.attempt < 0) return "";
  std::string text = fmt::format("{}", roster.electorate.attempt) + voters_text("now", roster.electorate.now);
  for (const Voters& voters : roster.electorate.before) text += voters_text("before", voters);
  for (const RosterEntry& entry : roster.voters) {
    text += fmt::format(" {},{},{},{}", entry.launcher, entry.node, entry.port, entry.address);
  }
  return text;
}

std::optional<Membership> unpack_roster(std::string_view text) {
  Membership roster;
  if (text.empty()) return roster;
  const std::vector<std::string_view> words = split(text, ' ');
  if (!read(words[0], 0, INT32_MAX, &roster.electorate.attempt)) return std::nullopt;
  for (size_t i = 1; i < words.size(); ++i) {
    const std::vector<std::string_view> parts = split(words[i], ',');
    const bool is_now = parts[0] == "now", is_before = parts[0] == "before";
    const bool is_read = is_now      ? read_voters(parts, &roster.electorate.now)
                         : is_before ? read_voters(parts, &roster.electorate.before.emplace_back())
                                     : read_entry(parts, &roster.voters.emplace_back());
    if (!is_read || (is_now != (i == 1))) return std::nullopt;
  }
  if (roster.electorate.now.launchers.empty()) return std::nullopt;
  return roster;
}

}  // namespace concord
