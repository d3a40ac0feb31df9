// The keeper's side of a communicator that spans hosts: the connections of the ranks that have joined with one id. See
// control.h. Threads: one at a time.
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

class Room {
 public:
  struct Member {
    SealedConnection connection;
    int32_t rank = 0;
    int64_t pid = 0;
    bool has_record = false;
    bool has_left = false;
    bool is_rejected = false;  // it gets an error message and is not part of the communicator
    std::string record;
  };

  // Whether all ranks have joined and left. A room that was never complete stays, to report the failure to late ranks.
  bool over() const { return members_.empty() && world_ > 0 && ranks_.size() == static_cast<size_t>(world_); }
  std::list<Member>& members() { return members_; }

  void add(const Hello& hello, SealedConnection connection);

  void on_message(Member& member, const SealedConnection::Message& message);

  // Reports the loss of |member|, whose connection is closed, to the others.
  void on_disconnect(Member& member);

  void sweep() {
    std::erase_if(members_, [](const Member& member) { return !member.connection.open(); });
  }

  // Reports a failure if ranks have waited for others longer than the communicator's timeout.
  void check_deadline();

 private:
  void fail(const std::string& text) { fail(CONCORD_STATUS_INVALID_ARGUMENT, text, nullptr); }
  void fail(concord_status status, const std::string& text, const Member* sender);
  void send_failure(Member& member) const { member.connection.put(kFailure, bytes_of(status_) + text_); }
  void broadcast(const Member& about, Kind kind, const std::string& body) {
    for (Member& member : members_) {
      if (&member != &about && !member.is_rejected && member.connection.open()) member.connection.put(kind, body);
    }
  }

  void finish_round();

  int32_t world_ = 0;
  std::string name_;
  std::chrono::milliseconds timeout_{};
  std::chrono::steady_clock::time_point deadline_;
  std::set<int32_t> ranks_;
  bool is_complete_ = false;  // all ranks have joined
  std::list<Member> members_;
  concord_status status_ = CONCORD_STATUS_OK;
  std::string text_;
};

}  // namespace concord::net
