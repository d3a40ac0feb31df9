// Building sentences. A platform should not need a formatting library, so this is all there is.
#pragma once

#include <concepts>
#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>

namespace concord::loader {

inline void append(std::string& out, std::string_view text) { out.append(text); }
inline void append(std::string& out, char letter) { out.push_back(letter); }
inline void append(std::string& out, std::integral auto number) { out.append(std::to_string(number)); }
inline void append(std::string& out, double number) {
  char text[32];
  std::snprintf(text, sizeof text, "%g", number);
  out.append(text);
}
inline void append_pointer(std::string& out, const void* pointer) {
  char text[32];
  if (pointer == nullptr) {
    out.append("null");
  } else {
    std::snprintf(text, sizeof text, "0x%llx", static_cast<unsigned long long>(reinterpret_cast<uintptr_t>(pointer)));
    out.append(text);
  }
}

// The parts one after another: cat("device ", 7, " of ", 4).
template <class... Parts>
std::string cat(const Parts&... parts) {
  std::string result;
  (append(result, parts), ...);
  return result;
}

// The items with a separator between them: join({"cpu", "null"}, ", ").
template <class Items>
std::string join(const Items& items, std::string_view separator) {
  std::string result;
  for (const auto& item : items) {
    if (!result.empty()) result.append(separator);
    append(result, item);
  }
  return result;
}

}  // namespace concord::loader
