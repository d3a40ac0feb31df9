// The messages between the server of a job's store and its clients, inside a SealedConnection. Every request has one
// reply, which repeats its number.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace concord {

// The kind of a request. set has a key and a value, add and remove have one key, the others any number of keys.
enum class StoreRequest : uint32_t { set = 1, get, wait, add, check, remove };

// The kind of a reply. absent: a key did not appear in time. refused: the first text says why.
enum class StoreReply : uint32_t { done = 1, absent, refused };

struct StoreMessage {
  uint64_t number = 0;
  int64_t amount = 0;  // add: the summand; get, wait: milliseconds to wait; reply: the sum, or 1 for true
  std::vector<std::string> texts;
  bool operator==(const StoreMessage&) const = default;
};

std::string pack(const StoreMessage& message);
std::optional<StoreMessage> unpack_store_message(std::string_view bytes);  // nullopt if |bytes| is not a message

}  // namespace concord
