// The keeper's side of a communicator on several hosts: the ranks that have come with one id. See control.h.
// Threads: one at a time.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <list>
#include <set>
#include <string>

#include "backends/net/control_messages.h"
#include "platform/base/sealed_connection.hpp"

namespace concord::net {

// The ranks that have come with one id.
class Room {
 public:
  struct Guest {
    SealedConnection connection;
    int32_t rank = 0;
    int64_t pid = 0;
    bool has_record = false;
    bool has_left = false;
    bool is_refused = false;  // it is told why, and is not part of the communicator
    std::string record;
  };

  // Whether all ranks have joined and left. A room that was never full stays, to report the failure to late ranks.
  bool over() const { return guests_.empty() && world_ > 0 && ranks_.size() == static_cast<size_t>(world_); }
  std::list<Guest>& guests() { return guests_; }

  void enter(const Hello& hello, SealedConnection connection);

  void hear(Guest& guest, const SealedConnection::Message& message);

  // Reports the loss of a guest whose connection has ended.
  void lose(Guest& guest);

  void sweep() {
    std::erase_if(guests_, [](const Guest& guest) { return !guest.connection.open(); });
  }

  // Fails if ranks have waited for others longer than the communicator's timeout.
  void look_at_clock();

 private:
  void fail(const std::string& text) { fail(CONCORD_STATUS_INVALID_ARGUMENT, text, nullptr); }
  void fail(concord_status status, const std::string& text, const Guest* teller);
  void tell_failure(Guest& guest) const { guest.connection.put(kFailure, bytes_of(status_) + text_); }
  void tell_others(const Guest& about, Kind kind, const std::string& body) {
    for (Guest& guest : guests_) {
      if (&guest != &about && !guest.is_refused && guest.connection.open()) guest.connection.put(kind, body);
    }
  }

  void finish_round();

  int32_t world_ = 0;
  std::string name_;
  std::chrono::milliseconds timeout_{};
  std::chrono::steady_clock::time_point deadline_;
  std::set<int32_t> ranks_;
  bool is_complete_ = false;  // all ranks have met
  std::list<Guest> guests_;
  concord_status status_ = CONCORD_STATUS_OK;
  std::string text_;
};

}  // namespace concord::net
