#include "backends/net/room.h"

#include <unistd.h>

#include "backends/shm/process.h"

namespace concord::net {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

void Room::enter(const Hello& hello, SealedConnection connection) {
  if (world_ == 0) {
    world_ = hello.world;
    name_ = hello.name;
    timeout_ = milliseconds(std::max<int64_t>(1, hello.timeout_ms));
    deadline_ = Clock::now() + timeout_;
  }
  Guest& guest = guests_.emplace_back();
  guest.connection = std::move(connection);
  guest.rank = hello.rank;
  guest.pid = hello.pid;
  if (status_ != CONCORD_STATUS_OK) return tell_failure(guest);
  const auto who =
      sdk::text("communicator '%s': rank %d (pid %lld)", name_.c_str(), hello.rank, static_cast<long long>(hello.pid));
  if (hello.world != world_) {
    fail(sdk::text("%s expects %d ranks, another one expects %d", who.c_str(), hello.world, world_));
  } else if (hello.rank < 0 || hello.rank >= world_) {
    fail(sdk::text("%s is not a rank of a communicator with %d ranks", who.c_str(), world_));
  } else if (!ranks_.insert(hello.rank).second) {
    const auto text = sdk::text("%s has the same rank as another process; ranks must be distinct", who.c_str());
    if (!is_complete_) return fail(text);
    guest.is_refused = true;  // the ranks that have met are not disturbed
    guest.connection.put(kFailure, bytes_of(concord_status{CONCORD_STATUS_INVALID_ARGUMENT}) + text);
  }
}

void Room::hear(Guest& guest, const SealedConnection::Message& message) {
  if (guest.is_refused) return;
  std::string_view body = message.body;
  switch (message.kind) {
    case kRecord:
      guest.record = message.body;
      guest.has_record = true;
      finish_round();
      break;
    case kFailure: {
      const auto status = take<concord_status>(&body);
      fail(status, std::string(body), &guest);
      break;
    }
    case kLeaving:
      guest.has_left = true;
      tell_others(guest, kLeft, bytes_of(guest.rank));
      break;
    default: guest.connection.close(); break;
  }
}

void Room::lose(Guest& guest) {
  const int error = guest.connection.error();
  guest.connection.close();
  if (guest.has_left || guest.is_refused) return;
  tell_others(
      guest, kLost,
      bytes_of(guest.rank) + sdk::text("(pid %lld) %s", static_cast<long long>(guest.pid), gone_text(error).c_str()));
}

void Room::look_at_clock() {
  const bool waiting = std::any_of(guests_.begin(), guests_.end(), [](const Guest& each) { return each.has_record; });
  if (!waiting || status_ != CONCORD_STATUS_OK || Clock::now() < deadline_) return;
  std::set<int32_t> there;
  for (const Guest& guest : guests_) {
    if (guest.has_record) there.insert(guest.rank);
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

void Room::fail(concord_status status, const std::string& text, const Guest* teller) {
  if (status_ != CONCORD_STATUS_OK) return;
  status_ = status;
  text_ = text;
  for (Guest& guest : guests_) {
    if (&guest != teller) tell_failure(guest);
  }
}

void Room::finish_round() {
  const auto ready = std::count_if(guests_.begin(), guests_.end(), [](const Guest& each) { return each.has_record; });
  if (ready < world_ || status_ != CONCORD_STATUS_OK) return;
  is_complete_ = true;
  guests_.sort([](const Guest& a, const Guest& b) { return a.rank < b.rank; });
  std::string body = bytes_of(static_cast<int64_t>(::getpid())) + bytes_of(shm::this_host());
  for (Guest& guest : guests_) {
    if (guest.is_refused) continue;
    body += bytes_of(static_cast<uint64_t>(guest.record.size())) + guest.record;
    guest.has_record = false;
    guest.record.clear();
  }
  deadline_ = Clock::now() + timeout_;
  for (Guest& guest : guests_) {
    if (!guest.is_refused) guest.connection.put(kRound, body);
  }
}

}  // namespace concord::net
