#include "core/schedule/action.h"

#include <array>
#include <charconv>

namespace concord {
namespace {

constexpr std::array<std::string_view, 9> kNames = {"F",      "B",      "I",      "W",          "SEND_F",
                                                    "RECV_F", "SEND_B", "RECV_B", "REDUCE_GRAD"};

// Consumes leading digits of |text|. from_chars would accept a sign and leading zeros, which to_string never writes.
std::optional<int32_t> take_number(std::string_view* text) {
  const size_t digits = std::min(text->find_first_not_of("0123456789"), text->size());
  if (digits == 0 || (digits > 1 && text->front() == '0')) return std::nullopt;
  int32_t value = 0;
  const auto [end, error] = std::from_chars(text->data(), text->data() + digits, value);
  if (error != std::errc() || value > kMaxIndex) return std::nullopt;
  text->remove_prefix(digits);
  return value;
}

std::optional<ActionKind> kind_called(std::string_view name) {
  for (size_t i = 0; i < kNames.size(); ++i) {
    if (kNames[i] == name) return static_cast<ActionKind>(i);
  }
  return std::nullopt;
}

}  // namespace

std::string_view to_string(ActionKind kind) { return kNames.at(static_cast<size_t>(kind)); }

std::string to_string(const Action& action) {
  std::string text = std::to_string(action.stage);
  text += to_string(action.kind);
  if (action.kind != ActionKind::reduce_gradients) text += std::to_string(action.microbatch);
  return text;
}

std::optional<Action> parse_action(std::string_view text) {
  const std::optional<int32_t> stage = take_number(&text);
  if (!stage) return std::nullopt;
  const size_t name_end = std::min(text.find_first_of("0123456789"), text.size());
  const std::optional<ActionKind> kind = kind_called(text.substr(0, name_end));
  if (!kind) return std::nullopt;
  text.remove_prefix(name_end);
  if (*kind == ActionKind::reduce_gradients) {
    return text.empty() ? std::optional(Action{.stage = *stage, .kind = *kind}) : std::nullopt;
  }
  const std::optional<int32_t> microbatch = take_number(&text);
  if (!microbatch || !text.empty()) return std::nullopt;
  return Action{.stage = *stage, .microbatch = *microbatch, .kind = *kind};
}

}  // namespace concord
