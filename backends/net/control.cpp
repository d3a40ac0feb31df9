#include "backends/net/control.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <list>
#include <map>
#include <mutex>
#include <set>
#include <thread>

#include "backends/net/connection.h"
#include "backends/net/id.h"
#include "backends/shm/communicator.h"
#include "backends/shm/process.h"
#include "platform/base/sealed_connection.hpp"
#include "platform/base/thread_safety.hpp"
#include "platform/sdk/plugin.hpp"

namespace concord::net {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr size_t kIdBytes = static_cast<size_t>(shm::kUniqueIdBytes);
constexpr size_t kMaxRecord = 64 << 10;  // what a rank may send at once
constexpr size_t kMaxRound = 256 << 20;  // what the keeper may send at once
constexpr size_t kMaxStrangers = 256;    // connections whose first message has not come: each is an open file
constexpr milliseconds kSlice{100};
constexpr milliseconds kAnswerGrace{2000};   // for the keeper's sentence about who is missing
constexpr milliseconds kHelloGrace{10000};   // for a stranger to say who it is
constexpr milliseconds kMinGrace{500};       // for a stranger, while there are kMaxStrangers
constexpr milliseconds kPartingGrace{1000};  // for others to leave, when this process exits

// From a rank: kHello, kRecord, kFailure, kLeaving. From the keeper: kRound, kFailure, kLost, kLeft.
enum Kind : uint32_t { kHello = 1, kRecord, kRound, kFailure, kLeaving, kLost, kLeft };

// Plain values one after the other; a short message reads as zeros.
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

constexpr std::string_view kPurpose = "communicator";  // for SealedConnection

// Returns the token that peers must have; empty: none.
std::string job_token() {
  const char* token = std::getenv("CONCORD_JOB_TOKEN");
  return token == nullptr ? "" : token;
}

const char* why_gone(int error) { return error == 0 || error == ECONNRESET || error == EPIPE ? "has ended" : nullptr; }

std::string gone_text(int error) {
  const char* ended = why_gone(error);
  return ended != nullptr ? ended : sdk::text("cannot be reached any more (%s)", std::strerror(error));
}

// ------------------------------------------------------------------------------------------------------ the keeper

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

  // Everybody has come and gone. A room that was never full stays, to tell those who come late what failed.
  bool over() const { return guests_.empty() && world_ > 0 && ranks_.size() == static_cast<size_t>(world_); }
  std::list<Guest>& guests() { return guests_; }

  void enter(const Hello& hello, SealedConnection connection) {
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
    const auto who = sdk::text("communicator '%s': rank %d (pid %lld)", name_.c_str(), hello.rank,
                               static_cast<long long>(hello.pid));
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

  void hear(Guest& guest, const SealedConnection::Message& message) {
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

  // The guest's connection has ended.
  void lose(Guest& guest) {
    const int error = guest.connection.error();
    guest.connection.close();
    if (guest.has_left || guest.is_refused) return;
    tell_others(
        guest, kLost,
        bytes_of(guest.rank) + sdk::text("(pid %lld) %s", static_cast<long long>(guest.pid), gone_text(error).c_str()));
  }

  void sweep() {
    std::erase_if(guests_, [](const Guest& guest) { return !guest.connection.open(); });
  }

  // Who waits for others waits no longer than the communicator's time.
  void look_at_clock() {
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
         sdk::text("communicator '%s': of %d ranks these have not joined within %lld ms: %s", name_.c_str(), world_,
                   static_cast<long long>(timeout_.count()), missing.c_str()),
         nullptr);
  }

 private:
  void fail(const std::string& text) { fail(CONCORD_STATUS_INVALID_ARGUMENT, text, nullptr); }
  void fail(concord_status status, const std::string& text, const Guest* teller) {
    if (status_ != CONCORD_STATUS_OK) return;
    status_ = status;
    text_ = text;
    for (Guest& guest : guests_) {
      if (&guest != teller) tell_failure(guest);
    }
  }
  void tell_failure(Guest& guest) const { guest.connection.put(kFailure, bytes_of(status_) + text_); }
  void tell_others(const Guest& about, Kind kind, const std::string& body) {
    for (Guest& guest : guests_) {
      if (&guest != &about && !guest.is_refused && guest.connection.open()) guest.connection.put(kind, body);
    }
  }

  void finish_round() {
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

  int32_t world_ = 0;
  std::string name_;
  milliseconds timeout_{};
  Clock::time_point deadline_;
  std::set<int32_t> ranks_;
  bool is_complete_ = false;  // all ranks have met
  std::list<Guest> guests_;
  concord_status status_ = CONCORD_STATUS_OK;
  std::string text_;
};

}  // namespace

// --------------------------------------------------------------------------------------------------- one rank's side

struct Line::State {
  Seat seat;
  std::string where;  // the keeper, for messages

  // Guards all below; never held while waiting.
  mutable std::mutex mutex;
  SealedConnection connection CONCORD_GUARDED_BY(mutex);
  int32_t keeper CONCORD_GUARDED_BY(mutex) = -1;  // the rank that runs in the keeper's process; -1: none or not known
  OnFailure on_failure CONCORD_GUARDED_BY(mutex);
  std::map<int32_t, std::string> lost CONCORD_GUARDED_BY(mutex);
  std::set<int32_t> left CONCORD_GUARDED_BY(mutex);
  std::string cut CONCORD_GUARDED_BY(mutex);                  // why there is no line any more; empty: there is
  std::function<void()> on_parted CONCORD_GUARDED_BY(mutex);  // set once this rank leaves

  bool all_left() const CONCORD_REQUIRES(mutex) { return static_cast<int32_t>(left.size()) == seat.world - 1; }

  // Handles what has come; returns a failure that another rank has reported. Called by the thread that listens.
  std::optional<sdk::Failure> listen() CONCORD_REQUIRES(mutex);
  std::vector<std::string> open_round(std::string_view body) CONCORD_REQUIRES(mutex);
  std::optional<std::string> round CONCORD_GUARDED_BY(mutex);
};

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
    if (!was_admitted) cut += ", or has refused this rank, whose id or CONCORD_JOB_TOKEN is not the job's";
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

namespace {

// ------------------------------------------------------------------------------------------------------- the listener

// Keeps the ids of this process and listens to all its lines, on one thread. Threads: any.
class Switchboard {
 public:
  // The one of this process; a child made by fork has its own.
  static Switchboard& here() {
    static std::mutex mutex;
    static Switchboard* one = nullptr;
    const std::lock_guard lock(mutex);
    if (one == nullptr || one->owner_ != ::getpid()) one = new Switchboard();  // its thread ends with the process
    return *one;
  }

  void keep(const void* id) {
    const std::lock_guard lock(mutex_);
    if (!listener_) listener_ = listen_on(own_network().address, &port_);
    Where::here(port_).write(const_cast<void*>(id));
    rooms_.try_emplace(std::string(static_cast<const char*>(id), kIdBytes));
    start();
  }
  void forget(const void* id) {
    const std::lock_guard lock(mutex_);
    rooms_.erase(std::string(static_cast<const char*>(id), kIdBytes));
  }
  void add(const std::shared_ptr<Line::State>& line) {
    const std::lock_guard lock(mutex_);
    lines_.push_back(line);
    start();
  }
  // Keeps |line| until all ranks have left it, or one is lost.
  void add_parting(const std::shared_ptr<Line::State>& line);
  // Afterwards nothing of the line is called any more.
  void remove(const std::shared_ptr<Line::State>& line) {
    const std::lock_guard lock(mutex_);
    std::erase(lines_, line);
  }

 private:
  struct Stranger {
    SealedConnection connection;
    Clock::time_point until;
  };

  Switchboard() : wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}
  void start() CONCORD_REQUIRES(mutex_) {
    const uint64_t one = 1;
    static_cast<void>(!::write(wake_.get(), &one, sizeof one));
    if (started_) return;
    started_ = true;
    std::thread([this] { run(); }).detach();
  }
  [[noreturn]] void run();
  std::vector<pollfd> entries();
  // Whether one more stranger is accepted. The oldest makes room once it has had time for its message, so a flood does
  // not keep out a rank that sends it immediately.
  bool has_room() CONCORD_REQUIRES(mutex_) {
    if (strangers_.size() < kMaxStrangers) return true;
    if (Clock::now() < strangers_.front().until - kHelloGrace + kMinGrace) return false;
    strangers_.pop_front();
    return true;
  }
  void listen_to_strangers() CONCORD_REQUIRES(mutex_);
  void listen_to_guests() CONCORD_REQUIRES(mutex_);
  void listen_to_lines() CONCORD_REQUIRES(mutex_);
  // What is to be called for lines that all ranks have left; they are removed.
  std::vector<std::function<void()>> close_parted() CONCORD_REQUIRES(mutex_);
  static void wait_for_parting();

  const pid_t owner_ = ::getpid();
  const std::string token_ = job_token();
  const UniqueFd wake_;
  std::mutex mutex_;  // guards all below; held while messages are handled, which never waits
  bool started_ CONCORD_GUARDED_BY(mutex_) = false;
  UniqueFd listener_ CONCORD_GUARDED_BY(mutex_);
  uint16_t port_ CONCORD_GUARDED_BY(mutex_) = 0;
  std::map<std::string, Room> rooms_ CONCORD_GUARDED_BY(mutex_);
  std::list<Stranger> strangers_ CONCORD_GUARDED_BY(mutex_);
  std::vector<std::shared_ptr<Line::State>> lines_ CONCORD_GUARDED_BY(mutex_);
  std::vector<std::shared_ptr<Line::State>> parting_ CONCORD_GUARDED_BY(mutex_);  // of lines_
  std::atomic<size_t> unparted_{0};  // of parting_, and of those whose calls have not returned
};

void Switchboard::run() {
  while (true) {
    std::vector<pollfd> wanted = entries();
    ::poll(wanted.data(), wanted.size(), static_cast<int>(kSlice.count()));
    uint64_t rings = 0;
    static_cast<void>(!::read(wake_.get(), &rings, sizeof rings));
    std::vector<std::function<void()>> calls;
    {
      const std::lock_guard lock(mutex_);
      listen_to_strangers();
      listen_to_guests();
      listen_to_lines();
      calls = close_parted();
    }
    for (const auto& call : calls) call();
    unparted_ -= calls.size();
  }
}

void Switchboard::add_parting(const std::shared_ptr<Line::State>& line) {
  // At exit handlers run in the opposite order: this one before those of the engine, which is loaded by now.
  static const int registered = std::atexit(wait_for_parting);
  static_cast<void>(registered);
  const std::lock_guard lock(mutex_);
  parting_.push_back(line);
  ++unparted_;
  start();
}

std::vector<std::function<void()>> Switchboard::close_parted() {
  std::vector<std::function<void()>> calls;
  std::erase_if(parting_, [&](const std::shared_ptr<Line::State>& line) {
    const std::lock_guard lock(line->mutex);
    const bool parted = line->all_left();
    if (!parted && line->connection.open() && line->lost.empty()) return false;
    calls.push_back(parted ? std::move(line->on_parted) : [] {});
    line->on_parted = nullptr;
    line->connection.close();
    std::erase(lines_, line);
    return true;
  });
  return calls;
}

// A process that ends closes its sockets, and what its peers have not read of them yet may be lost.
void Switchboard::wait_for_parting() {
  Switchboard& board = here();
  const auto end = Clock::now() + kPartingGrace;
  while (board.unparted_ > 0 && Clock::now() < end) std::this_thread::sleep_for(milliseconds(1));
}

std::vector<pollfd> Switchboard::entries() {
  const std::lock_guard lock(mutex_);
  const int listener = strangers_.size() < kMaxStrangers ? listener_.get() : -1;  // -1: poll skips it
  std::vector<pollfd> wanted{{wake_.get(), POLLIN, 0}, {listener, POLLIN, 0}};
  for (const Stranger& each : strangers_) wanted.push_back({each.connection.descriptor(), POLLIN, 0});
  for (auto& [id, room] : rooms_) {
    for (const Room::Guest& each : room.guests()) {
      wanted.push_back({each.connection.descriptor(), each.connection.wanted_events(), 0});
    }
  }
  for (const auto& line : lines_) {
    const std::lock_guard guard(line->mutex);
    wanted.push_back({line->connection.descriptor(), line->connection.wanted_events(), 0});
  }
  return wanted;
}

// A peer must have the job's token and name its id in the first message.
void Switchboard::listen_to_strangers() {
  for (UniqueFd socket; listener_ && has_room() && (socket = accept_from(listener_));) {
    strangers_.push_back({SealedConnection(std::move(socket), SealedConnection::End::server, token_, kPurpose),
                          Clock::now() + kHelloGrace});
  }
  for (Stranger& each : strangers_) {
    const bool open = each.connection.fill();
    const auto message = each.connection.next(sizeof(Hello));
    if (message && message->kind == kHello && message->body.size() == sizeof(Hello)) {
      std::string_view body = message->body;
      auto hello = take<Hello>(&body);
      hello.name[sizeof hello.name - 1] = 0;
      const auto room = rooms_.find(std::string(hello.id, kIdBytes));
      if (room != rooms_.end()) room->second.enter(hello, std::move(each.connection));
      each.connection = {};
    } else if (message || !open || Clock::now() > each.until) {
      each.connection = {};
    }
  }
  std::erase_if(strangers_, [](const Stranger& each) { return !each.connection.open(); });
}

void Switchboard::listen_to_guests() {
  for (auto place = rooms_.begin(); place != rooms_.end();) {
    Room& room = place->second;
    for (Room::Guest& guest : room.guests()) {
      guest.connection.flush();
      const bool open = guest.connection.fill();
      while (const auto message = guest.connection.next(kMaxRecord)) room.hear(guest, *message);
      if (!open || !guest.connection.open()) room.lose(guest);
    }
    room.sweep();
    room.look_at_clock();
    place = room.over() ? rooms_.erase(place) : std::next(place);
  }
}

void Switchboard::listen_to_lines() {
  for (const auto& line : lines_) {
    std::optional<sdk::Failure> failure;
    Line::OnFailure tell;
    {
      const std::lock_guard lock(line->mutex);
      if (!line->connection.open()) continue;
      line->connection.flush();
      failure = line->listen();
      if (failure) tell = line->on_failure;
    }
    if (tell) tell(failure->status(), failure->what());
  }
}

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
    std::this_thread::sleep_for(std::min(milliseconds{10} * (turn + 1), kSlice));
  }
}

}  // namespace

// ------------------------------------------------------------------------------------------------------------ the line

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
    ::poll(&entry, 1, static_cast<int>(kSlice.count()));
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
  // Without the keeper nobody would tell this rank of anybody.
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
