#include "backends/net/switchboard.h"

#include <sys/eventfd.h>

#include <cstdlib>
#include <thread>

#include "backends/net/connection.h"
#include "backends/net/hosts.h"
#include "backends/net/id.h"

namespace concord::net {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr size_t kMaxStrangers = 256;  // connections whose first message has not come: each is an open file
constexpr milliseconds kSlice{100};
constexpr milliseconds kHelloGrace{10000};   // for the first message of a stranger
constexpr milliseconds kMinGrace{500};       // for a stranger, while there are kMaxStrangers
constexpr milliseconds kPartingGrace{1000};  // for others to leave, when this process exits

}  // namespace

Switchboard::Switchboard() : wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}

Switchboard& Switchboard::here() {
  static std::mutex mutex;
  static Switchboard* one = nullptr;
  const std::lock_guard lock(mutex);
  if (one == nullptr || one->owner_ != ::getpid()) one = new Switchboard();  // its thread ends with the process
  return *one;
}

void Switchboard::keep(const void* id) {
  const std::lock_guard lock(mutex_);
  if (!listener_) listener_ = listen_on(own_network().address, &port_);
  Where::here(port_).write(const_cast<void*>(id));
  rooms_.try_emplace(std::string(static_cast<const char*>(id), kIdBytes));
  start();
}

void Switchboard::start() {
  const uint64_t one = 1;
  static_cast<void>(!::write(wake_.get(), &one, sizeof one));
  if (started_) return;
  started_ = true;
  std::thread([this] { run(); }).detach();
}

bool Switchboard::has_room() {
  if (strangers_.size() < kMaxStrangers) return true;
  if (Clock::now() < strangers_.front().until - kHelloGrace + kMinGrace) return false;
  strangers_.pop_front();
  return true;
}

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
      listen_to_members();
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

// A process that exits closes its sockets, and data that its peers have not read yet may be lost.
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
    for (const Room::Member& each : room.members()) {
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
      if (room != rooms_.end()) room->second.add(hello, std::move(each.connection));
      each.connection = {};
    } else if (message || !open || Clock::now() > each.until) {
      each.connection = {};
    }
  }
  std::erase_if(strangers_, [](const Stranger& each) { return !each.connection.open(); });
}

void Switchboard::listen_to_members() {
  for (auto place = rooms_.begin(); place != rooms_.end();) {
    Room& room = place->second;
    for (Room::Member& member : room.members()) {
      member.connection.flush();
      const bool open = member.connection.fill();
      while (const auto message = member.connection.next(kMaxRecord)) room.on_message(member, *message);
      if (!open || !member.connection.open()) room.on_disconnect(member);
    }
    room.sweep();
    room.check_deadline();
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

}  // namespace concord::net
