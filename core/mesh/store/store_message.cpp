#include "core/mesh/store/store_message.h"

#include <cstring>

namespace concord {
namespace {

template <class Number>
void append(std::string* bytes, Number number) {
  bytes->append(reinterpret_cast<const char*>(&number), sizeof number);
}

template <class Number>
bool take(std::string_view* bytes, Number* number) {
  if (bytes->size() < sizeof *number) return false;
  std::memcpy(number, bytes->data(), sizeof *number);
  bytes->remove_prefix(sizeof *number);
  return true;
}

}  // namespace

std::string pack(const StoreMessage& message) {
  std::string bytes;
  append(&bytes, message.number);
  append(&bytes, message.amount);
  for (const std::string& text : message.texts) {
    append(&bytes, static_cast<uint32_t>(text.size()));
    bytes += text;
  }
  return bytes;
}

std::optional<StoreMessage> unpack_store_message(std::string_view bytes) {
  StoreMessage message;
  if (!take(&bytes, &message.number) || !take(&bytes, &message.amount)) return std::nullopt;
  while (!bytes.empty()) {
    uint32_t length = 0;
    if (!take(&bytes, &length) || length > bytes.size()) return std::nullopt;
    message.texts.emplace_back(bytes.substr(0, length));
    bytes.remove_prefix(length);
  }
  return message;
}

}  // namespace concord
