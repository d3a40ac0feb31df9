#include "backends/net/control.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <thread>
#include <utility>

#include "backends/net/connection.h"
#include "backends/net/id.h"
#include "backends/net/line_state.h"
#include "backends/net/switchboard.h"
#include "backends/shm/process.h"
#include "platform/sdk/tables.hpp"

namespace concord::net {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr milliseconds kPollSlice{100};
constexpr milliseconds kAnswerGrace{2000};  // for the keeper's sentence about who is missing

// What a rank that cannot reach the keeper may try.
[[noreturn]] void fail_unreached(const Seat& seat, const Where& where, int error) {
  sdk::fail(
      CONCORD_STATUS_TIMEOUT,
      sdk::text("communicator '%s': rank %d has not reached the process that made the communicator's id (%s) within "
                "%lld ms: %s. Ranks on several hosts connect to each other by TCP; is the address one of the "
                "network between the hosts, and does a firewall let it pass?",
                seat.name.c_str(), seat.rank, where.text().c_str(), static_cast<long long>(seat.timeout.count()),
                std::strerror(error)));
}

SealedConnection reach(const Seat& seat, const Where& where) {
  const auto end = Clock::now() + seat.timeout;
  int error = 0;
  for (int turn = 0;; ++turn) {
    for (size_t i = 0; i < where.count; ++i) {
      const auto left = std::chrono::ceil<milliseconds>(end - Clock::now());
      const auto patience = std::clamp(left, milliseconds{1}, milliseconds{2000});
      if (UniqueFd socket = connect_to(where.addresses[i], where.port, patience, &error)) {
        return {std::move(socket), SealedConnection::End::client, job_token(), kPurpose};
      }
      if (Clock::now() >= end) fail_unreached(seat, where, error);
    }
    std::this_thread::sleep_for(std::min(milliseconds{10} * (turn + 1), kPollSlice));
  }
}

}  // namespace

std::optional<sdk::Failure> Line::State::listen() {
  const bool open = connection.fill();
  std::optional<sdk::Failure> failure;
  while (auto message = connection.next(kMaxRound)) {
    std::string_view body = message->body;
    if (message->kind == kRound) round = message->body;
    if (message->kind == kFailure) {
      const auto status = take<concord_status>(&body);
      if (!failure) failure.emplace(status, std::string(body));
    }
    if (message->kind == kLost) {
      const auto rank = take<int32_t>(&body);
      lost.emplace(rank, std::string(body));
    }
    if (message->kind == kLeft) left.insert(take<int32_t>(&body));
  }
  if (!open || !connection.open()) {
    const bool was_admitted = connection.is_known();
    if (!left.contains(keeper) || keeper < 0) cut = gone_text(connection.error());
    if (!was_admitted) cut += ", or has rejected this rank, whose id or CONCORD_JOB_TOKEN is not the job's";
    connection.close();
  }
  return failure;
}

std::vector<std::string> Line::State::open_round(std::string_view body) {
  const auto pid = take<int64_t>(&body);
  const auto host = take<uint64_t>(&body);
  std::vector<std::string> records(static_cast<size_t>(seat.world));
  for (std::string& record : records) {
    const auto bytes = take<uint64_t>(&body);
    if (bytes > body.size()) sdk::fail(CONCORD_STATUS_INTERNAL, "the keeper of a communicator sent a short message");
    record = body.substr(0, bytes);
    body.remove_prefix(bytes);
  }
  // Every rank's first record begins with its host and pid.
  for (int32_t r = 0; keeper < 0 && r < seat.world; ++r) {
    std::string_view record = records[static_cast<size_t>(r)];
    const auto its_host = take<uint64_t>(&record);
    if (its_host == host && take<int64_t>(&record) == pid) keeper = r;
  }
  return records;
}

void create_id(void* out_id) {
  shm::create_unique_id(out_id, shm::kUniqueIdBytes);
  Switchboard::here().keep(out_id);
}

void forget_id(const void* id) { Switchboard::here().forget(id); }

Line::Line(std::shared_ptr<State> state) : state_(std::move(state)) {}

std::unique_ptr<Line> Line::open(const Seat& seat) {
  const auto where = Where::read(seat.id);
  if (!where) sdk::invalid(sdk::text("the id of communicator '%s' has no address", seat.name.c_str()));
  auto state = std::make_shared<State>();
  state->seat = seat;
  state->seat.id = nullptr;  // the caller's
  state->where = where->text();
  Hello hello;
  std::memcpy(hello.id, seat.id, kIdBytes);
  hello.world = seat.world;
  hello.rank = seat.rank;
  hello.timeout_ms = seat.timeout.count();
  hello.pid = ::getpid();
  hello.host = shm::this_host();
  sdk::write_string(hello.name, seat.name.c_str());
  SealedConnection connection = reach(seat, *where);
  connection.put(kHello, bytes_of(hello));
  const std::lock_guard lock(state->mutex);
  state->connection = std::move(connection);
  return std::unique_ptr<Line>(new Line(std::move(state)));
}

Line::~Line() {
  if (state_ == nullptr) return;  // part() has taken it
  Switchboard::here().remove(state_);
  const std::lock_guard lock(state_->mutex);
  state_->on_failure = nullptr;
  if (state_->connection.open()) state_->connection.put(kLeaving, {});
  state_->connection.close();
}

std::vector<std::string> Line::exchange(const std::string& record) {
  State& state = *state_;
  const auto end = Clock::now() + state.seat.timeout + kAnswerGrace;
  int socket = -1;
  {
    const std::lock_guard lock(state.mutex);
    state.connection.put(kRecord, record);
    socket = state.connection.descriptor();
  }
  while (true) {
    pollfd entry{socket, POLLIN, 0};
    ::poll(&entry, 1, static_cast<int>(kPollSlice.count()));
    const std::lock_guard lock(state.mutex);
    state.connection.flush();
    if (const auto failure = state.listen()) throw *failure;
    if (state.round) return state.open_round(*std::exchange(state.round, std::nullopt));
    const char* name = state.seat.name.c_str();
    if (!state.lost.empty()) {
      const auto& [rank, how] = *state.lost.begin();
      sdk::fail(CONCORD_STATUS_PEER_LOST,
                sdk::text("communicator '%s': rank %d %s during set-up", name, rank, how.c_str()));
    }
    if (!state.cut.empty()) {
      sdk::fail(CONCORD_STATUS_PEER_LOST,
                sdk::text("communicator '%s': the process that made its id (%s) %s during set-up", name,
                          state.where.c_str(), state.cut.c_str()));
    }
    if (Clock::now() >= end) {
      sdk::fail(CONCORD_STATUS_TIMEOUT,
                sdk::text("communicator '%s': rank %d has waited %lld ms for all of the %d ranks to join", name,
                          state.seat.rank, static_cast<long long>(state.seat.timeout.count()), state.seat.world));
    }
  }
}

void Line::watch(OnFailure on_failure) {
  {
    const std::lock_guard lock(state_->mutex);
    state_->on_failure = std::move(on_failure);
  }
  Switchboard::here().add(state_);
}

void Line::report(concord_status status, const std::string& detail) noexcept {
  try {
    const std::lock_guard lock(state_->mutex);
    if (state_->connection.open()) state_->connection.put(kFailure, bytes_of(status) + detail);
  } catch (...) {  // no memory for the message: the others find out by waiting
  }
}

std::optional<std::string> Line::loss_of(int32_t rank) const {
  const std::lock_guard lock(state_->mutex);
  const auto found = state_->lost.find(rank);
  if (found != state_->lost.end()) return sdk::text("rank %d %s", rank, found->second.c_str());
  if (state_->cut.empty()) return std::nullopt;
  // Without the keeper this rank receives no news of any rank.
  const auto who = state_->keeper >= 0 ? sdk::text("rank %d (%s)", state_->keeper, state_->where.c_str())
                                       : sdk::text("the process that made the id (%s)", state_->where.c_str());
  return who + " " + state_->cut;
}

void Line::part(std::unique_ptr<Line> line, std::function<void()> then) {
  const std::shared_ptr<State> state = std::move(line->state_);
  {
    const std::lock_guard lock(state->mutex);
    state->on_failure = nullptr;
    state->on_parted = std::move(then);
    if (state->connection.open()) state->connection.put(kLeaving, {});
  }
  Switchboard::here().add_parting(state);
}

bool Line::has_left(int32_t rank) const {
  const std::lock_guard lock(state_->mutex);
  return state_->left.contains(rank);
}

}  // namespace concord::net
