#include "backends/net/room.h"

#include <unistd.h>

#include "backends/shm/process.h"

namespace concord::net {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

void Room::add(const Hello& hello, SealedConnection connection) {
  if (world_ == 0) {
    world_ = hello.world;
    name_ = hello.name;
    timeout_ = milliseconds(std::max<int64_t>(1, hello.timeout_ms));
    deadline_ = Clock::now() + timeout_;
  }
  Member& member = members_.emplace_back();
  member.connection = std::move(connection);
  member.rank = hello.rank;
  member.pid = hello.pid;
  if (status_ != CONCORD_STATUS_OK) return send_failure(member);
  const auto who =
      sdk::text("communicator '%s': rank %d (pid %lld)", name_.c_str(), hello.rank, static_cast<long long>(hello.pid));
  if (hello.world != world_) {
    fail(sdk::text("%s expects %d ranks, another one expects %d", who.c_str(), hello.world, world_));
  } else if (hello.rank < 0 || hello.rank >= world_) {
    fail(sdk::text("%s is not a rank of a communicator with %d ranks", who.c_str(), world_));
  } else if (!ranks_.insert(hello.rank).second) {
    const auto text = sdk::text("%s has the same rank as another process; ranks must be distinct", who.c_str());
    if (!is_complete_) return fail(text);
    member.is_rejected = true;  // the ranks that have joined are not disturbed
    member.connection.put(kFailure, bytes_of(concord_status{CONCORD_STATUS_INVALID_ARGUMENT}) + text);
  }
}

void Room::on_message(Member& member, const SealedConnection::Message& message) {
  if (member.is_rejected) return;
  std::string_view body = message.body;
  switch (message.kind) {
    case kRecord:
      member.record = message.body;
      member.has_record = true;
      finish_round();
      break;
    case kFailure: {
      const auto status = take<concord_status>(&body);
      fail(status, std::string(body), &member);
      break;
    }
    case kLeaving:
      member.has_left = true;
      broadcast(member, kLeft, bytes_of(member.rank));
      break;
    default: member.connection.close(); break;
  }
}

void Room::on_disconnect(Member& member) {
  const int error = member.connection.error();
  member.connection.close();
  if (member.has_left || member.is_rejected) return;
  broadcast(
      member, kLost,
      bytes_of(member.rank) + sdk::text("(pid %lld) %s", static_cast<long long>(member.pid), gone_text(error).c_str()));
}

void Room::check_deadline() {
  const bool waiting =
      std::any_of(members_.begin(), members_.end(), [](const Member& each) { return each.has_record; });
  if (!waiting || status_ != CONCORD_STATUS_OK || Clock::now() < deadline_) return;
  std::set<int32_t> there;
  for (const Member& member : members_) {
    if (member.has_record) there.insert(member.rank);
  }
  std::string missing;
  for (int32_t r = 0; r < world_ && missing.size() < 200; ++r) {
    if (!there.contains(r)) missing += (missing.empty() ? "" : ", ") + std::to_string(r);
  }
  fail(CONCORD_STATUS_TIMEOUT,
       sdk::text("communicator '%s': these of the %d ranks have not joined within %lld ms: %s", name_.c_str(), world_,
                 static_cast<long long>(timeout_.count()), missing.c_str()),
       nullptr);
}

void Room::fail(concord_status status, const std::string& text, const Member* sender) {
  if (status_ != CONCORD_STATUS_OK) return;
  status_ = status;
  text_ = text;
  for (Member& member : members_) {
    if (&member != sender) send_failure(member);
  }
}

void Room::finish_round() {
  const auto ready =
      std::count_if(members_.begin(), members_.end(), [](const Member& each) { return each.has_record; });
  if (ready < world_ || status_ != CONCORD_STATUS_OK) return;
  is_complete_ = true;
  members_.sort([](const Member& a, const Member& b) { return a.rank < b.rank; });
  std::string body = bytes_of(static_cast<int64_t>(::getpid())) + bytes_of(shm::this_host());
  for (Member& member : members_) {
    if (member.is_rejected) continue;
    body += bytes_of(static_cast<uint64_t>(member.record.size())) + member.record;
    member.has_record = false;
    member.record.clear();
  }
  deadline_ = Clock::now() + timeout_;
  for (Member& member : members_) {
    if (!member.is_rejected) member.connection.put(kRound, body);
  }
}

}  // namespace concord::net
