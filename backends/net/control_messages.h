// The messages between the ranks of a communicator and the keeper of its id (control.h), sent by SealedConnection.
#pragma once

#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>

#include "backends/shm/communicator.h"
#include "platform/sdk/failure.hpp"

namespace concord::net {

inline constexpr size_t kIdBytes = static_cast<size_t>(shm::kUniqueIdBytes);
inline constexpr std::string_view kPurpose = "communicator";  // for SealedConnection
inline constexpr size_t kMaxRecord = 64 << 10;                // bytes of a message from a rank
inline constexpr size_t kMaxRound = 256 << 20;                // bytes of a message from the keeper

// From a rank: kHello, kRecord, kFailure, kLeaving. From the keeper: kRound, kFailure, kLost, kLeft.
enum Kind : uint32_t { kHello = 1, kRecord, kRound, kFailure, kLeaving, kLost, kLeft };

// The body of kHello: plain values. Missing bytes of a short message are read as zeros.
struct Hello {
  char id[kIdBytes] = {};
  int32_t world = 0;
  int32_t rank = 0;
  int64_t timeout_ms = 0;
  int64_t pid = 0;
  uint64_t host = 0;
  char name[64] = {};
};

template <class Value>
std::string bytes_of(const Value& value) {
  return {reinterpret_cast<const char*>(&value), sizeof value};
}

template <class Value>
Value take(std::string_view* from) {
  Value value{};
  const size_t bytes = std::min(from->size(), sizeof value);
  std::memcpy(&value, from->data(), bytes);
  from->remove_prefix(bytes);
  return value;
}

// Returns the token that peers must have; empty: none.
inline std::string job_token() {
  const char* token = std::getenv("CONCORD_JOB_TOKEN");
  return token == nullptr ? "" : token;
}

// Describes why a connection was lost: |error| is an errno; 0: closed by the peer.
inline std::string gone_text(int error) {
  if (error == 0 || error == ECONNRESET || error == EPIPE) return "has ended";
  return sdk::text("can no longer be reached (%s)", std::strerror(error));
}

}  // namespace concord::net
