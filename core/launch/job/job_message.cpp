#include "core/launch/job/job_message.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>

namespace concord {
namespace {

constexpr size_t kMaxNumbers = 5000;

struct Form {
  std::string_view name;
  size_t numbers;  // at least
};
constexpr std::array<Form, 10> kForms = {{{"hello", 10},
                                          {"welcome", 0},
                                          {"refused", 0},
                                          {"alive", 0},
                                          {"start", 5},
                                          {"stop", 2},
                                          {"finish", 1},
                                          {"failed", 4},
                                          {"ended", 8},
                                          {"left", 1}}};

std::string without_control_characters(std::string text) {
  std::ranges::replace_if(text, [](unsigned char c) { return c < ' ' || c == 127; }, ' ');
  return text;
}

}  // namespace

std::string pack(const JobMessage& message) {
  std::string text(kForms[static_cast<size_t>(message.kind)].name);
  for (const int64_t number : message.numbers) text += fmt::format(" {}", number);
  return text + "|" + without_control_characters(message.text);
}

std::optional<JobMessage> unpack_message(std::string_view text) {
  const size_t bar = text.find('|');
  if (bar == std::string_view::npos) return std::nullopt;
  JobMessage message;
  message.text = without_control_characters(std::string(text.substr(bar + 1)));
  std::string_view head = text.substr(0, bar);
  const std::string_view name = head.substr(0, head.find(' '));
  const auto form = std::ranges::find(kForms, name, &Form::name);
  if (form == kForms.end()) return std::nullopt;
  message.kind = static_cast<JobMessage::Kind>(form - kForms.begin());
  head.remove_prefix(name.size());
  while (!head.empty() && message.numbers.size() < kMaxNumbers) {
    int64_t number = 0;
    const auto [end, error] = std::from_chars(head.data() + 1, head.data() + head.size(), number);
    if (head.front() != ' ' || error != std::errc()) return std::nullopt;
    message.numbers.push_back(number);
    head.remove_prefix(static_cast<size_t>(end - head.data()));
  }
  if (!head.empty() || message.numbers.size() < form->numbers) return std::nullopt;
  return message;
}

JobMessage ended_message(int attempt, const NodeEnd& end) {
  return {.kind = JobMessage::Kind::ended,
          .numbers = {attempt, end.succeeded, end.has_failed, end.failed_slot, end.exit_code, end.stop_signal,
                      end.stopped_as_asked, end.can_start_again}};
}

NodeEnd node_end(const JobMessage& message) {
  const std::vector<int64_t>& n = message.numbers;
  return {.succeeded = n.at(1) != 0,
          .has_failed = n.at(2) != 0,
          .failed_slot = static_cast<int>(n.at(3)),
          .exit_code = static_cast<int>(n.at(4)),
          .stop_signal = static_cast<int>(n.at(5)),
          .stopped_as_asked = n.at(6) != 0,
          .can_start_again = n.at(7) != 0};
}

}  // namespace concord
