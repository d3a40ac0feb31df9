#include "core/safetensors/natural_order.h"

namespace concord::safetensors {
namespace {

bool is_digit(char letter) { return letter >= '0' && letter <= '9'; }

// Returns the digits at the start of |text|, without leading zeros.
std::string_view number_at(std::string_view text) {
  size_t length = 0;
  while (length < text.size() && is_digit(text[length])) ++length;
  text = text.substr(0, length);
  while (text.size() > 1 && text.front() == '0') text.remove_prefix(1);
  return text;
}

}  // namespace

bool natural_less(std::string_view a, std::string_view b) {
  const std::string_view whole_a = a, whole_b = b;
  while (!a.empty() && !b.empty()) {
    if (is_digit(a.front()) && is_digit(b.front())) {
      const std::string_view x = number_at(a), y = number_at(b);
      if (x.size() != y.size()) return x.size() < y.size();
      if (x != y) return x < y;
      a.remove_prefix(static_cast<size_t>(x.data() - a.data()) + x.size());
      b.remove_prefix(static_cast<size_t>(y.data() - b.data()) + y.size());
    } else {
      if (a.front() != b.front()) return a.front() < b.front();
      a.remove_prefix(1);
      b.remove_prefix(1);
    }
  }
  if (a.empty() != b.empty()) return a.empty();
  return whole_a < whole_b;  // they differ only in leading zeros
}

}  // namespace concord::safetensors
