#include "core/launch/job/job_link.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>

#include "core/base/config_error.h"
#include "core/mesh/store/sockets.h"

namespace concord {
namespace {

using Milliseconds = std::chrono::milliseconds;

constexpr size_t kMaxBody = 1 << 16;
constexpr size_t kMaxFirst = 1 << 15;  // the first message of a peer
constexpr size_t kMaxStrangers = 64;
constexpr Milliseconds kIntroduction{5000};

void make_nonblocking(int fd) { ::fcntl(fd, F_SETFL, ::fcntl(fd, F_GETFL) | O_NONBLOCK); }

std::string text_of(int error) {
  if (error == 0) return "its connection has ended";
  if (error == SealedConnection::kWrongSecret) {
    return "authentication failed: CONCORD_JOB_TOKEN differs, or the peer belongs to another job";
  }
  return error == SealedConnection::kNoPeer ? "the peer is not a launcher of this version" : std::strerror(error);
}

}  // namespace

struct JobLink::Peer {
  int number = 0;
  SealedConnection connection;
  bool is_leader = false;  // the one at the other end
  bool is_dropped = false;
  Clock::time_point last_heard = Clock::now();
  Clock::time_point next_alive = Clock::now() + kAliveEvery;
};

std::unique_ptr<JobLink> JobLink::serve(const std::string& host, int port, const std::string& token) {
  Listener listener = listen_on(host, port);
  if (!listener.socket) {
    throw ConfigError(
        fmt::format("this launcher cannot listen at {}:{}: {}; choose another --master_port on all machines", host,
                    port, std::strerror(listener.error)));
  }
  make_nonblocking(listener.socket.get());
  const int bound = own_port(listener.socket);
  auto link = std::unique_ptr<JobLink>(new JobLink(std::move(listener.socket), token));
  link->port_ = bound;
  return link;
}

std::unique_ptr<JobLink> JobLink::try_join(const std::string& host, int port, const std::string& token,
                                           Milliseconds limit, std::string* why) {
  UniqueFd socket = connect_once(host, port, limit, why);
  if (!socket) return nullptr;
  auto link = std::unique_ptr<JobLink>(new JobLink(UniqueFd(), token));
  link->address_ = concord::own_address(socket);
  link->add(std::move(socket), true);
  return link;
}

JobLink::JobLink(UniqueFd listener, const std::string& token)
    : token_(token), listener_(std::move(listener)), wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (!wake_) throw std::system_error(errno, std::generic_category(), "eventfd");
  // Signals are for the launcher's thread.
  sigset_t all, before;
  sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  thread_ = std::thread([this] { run(); });
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

JobLink::~JobLink() {
  {
    const std::lock_guard lock(mutex_);
    is_closing_ = true;
    peers_.clear();
  }
  wake();
  thread_.join();
}

void JobLink::wake() {
  const uint64_t one = 1;
  if (::write(wake_.get(), &one, sizeof one) < 0) {
  }  // it is awake already
}

void JobLink::add(UniqueFd socket, bool is_leader) {
  const int yes = 1;
  ::setsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
  auto peer = std::make_unique<Peer>();
  using End = SealedConnection::End;
  peer->connection = SealedConnection(std::move(socket), is_leader ? End::client : End::server, token_, "launcher");
  peer->is_leader = is_leader;
  const std::lock_guard lock(mutex_);
  const int number = is_leader ? kLeader : ++next_peer_;
  peer->number = number;
  peers_[number] = std::move(peer);
  wake();
}

std::vector<JobLink::Received> JobLink::take() {
  const std::lock_guard lock(mutex_);
  return std::exchange(heard_, {});
}

void JobLink::send(int peer, const JobMessage& message) {
  const std::lock_guard lock(mutex_);
  const auto found = peers_.find(peer);
  if (found == peers_.end() || found->second->is_dropped) return;
  queue(found->second.get(), message);
  wake();
}

void JobLink::set_heartbeat(const JobMessage& message) {
  const std::lock_guard lock(mutex_);
  alive_ = message;
}

void JobLink::drop(int peer) {
  const std::lock_guard lock(mutex_);
  const auto found = peers_.find(peer);
  if (found == peers_.end()) return;
  found->second->is_dropped = true;
  std::erase_if(heard_, [&](const Received& each) { return each.peer == peer; });
  wake();
}

void JobLink::close(Milliseconds limit) {
  std::unique_lock lock(mutex_);
  is_closing_ = true;
  for (auto& [number, peer] : peers_) peer->is_dropped = true;
  wake();
  changed_.wait_for(lock, limit, [&]() CONCORD_REQUIRES(mutex_) { return peers_.empty(); });
}

void JobLink::queue(Peer* peer, const JobMessage& message) {
  peer->connection.put(0, pack(message).substr(0, kMaxBody));
}

void JobLink::run() {
  for (;;) {
    {
      const std::lock_guard lock(mutex_);
      if (is_closing_ && peers_.empty()) return;
    }
    poll_once();
  }
}

void JobLink::poll_once() {
  std::vector<pollfd> polled = {{wake_.get(), POLLIN, 0}, {listener_.get(), POLLIN, 0}};
  std::vector<int> numbers;
  {
    const std::lock_guard lock(mutex_);
    if (is_closing_) polled[1].fd = -1;
    for (const auto& [number, peer] : peers_) {
      numbers.push_back(number);
      polled.push_back({peer->connection.descriptor(), peer->connection.wanted_events(), 0});
    }
  }
  if (::poll(polled.data(), polled.size(), static_cast<int>(kAliveEvery.count() / 5)) < 0 && errno != EINTR) return;
  uint64_t ignored = 0;
  if (::read(wake_.get(), &ignored, sizeof ignored) < 0) {
  }
  if (polled[1].revents != 0) accept_all();
  const std::lock_guard lock(mutex_);
  for (size_t i = 0; i < numbers.size(); ++i) {
    const auto found = peers_.find(numbers[i]);
    if (found == peers_.end()) continue;
    Peer* peer = found->second.get();
    if (polled[i + 2].revents != 0) read(peer);
    if (peer->connection.open()) write(peer);
    if (peer->connection.open()) keep_time(peer);
    if (!peer->connection.open()) peers_.erase(found);
  }
  changed_.notify_all();
}

void JobLink::accept_all() {
  for (;;) {
    UniqueFd socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!socket) return;
    add(std::move(socket), false);
    // The oldest stranger makes room: a flood cannot keep out peers that authenticate immediately.
    const std::lock_guard lock(mutex_);
    const auto is_stranger = [](const auto& entry) { return !entry.second->connection.is_known(); };
    if (static_cast<size_t>(std::ranges::count_if(peers_, is_stranger)) <= kMaxStrangers) continue;
    peers_.erase(std::ranges::find_if(peers_, is_stranger));
  }
}

void JobLink::read(Peer* peer) {
  const bool is_open = peer->connection.fill();
  const auto limit = [&] { return peer->connection.is_known() ? kMaxBody : kMaxFirst; };
  while (const auto sealed = peer->connection.next(limit())) {
    const std::optional<JobMessage> message = unpack_message(sealed->body);
    if (!message) return lose(peer, "it sent an invalid message", false);
    peer->last_heard = Clock::now();
    const bool is_noise = message->kind == JobMessage::Kind::alive && message->numbers.empty();
    if (!peer->is_dropped && !is_noise) heard_.push_back({.peer = peer->number, .message = *message});
  }
  if (!is_open || !peer->connection.open()) lose(peer, text_of(peer->connection.error()), false);
}

void JobLink::write(Peer* peer) {
  peer->connection.flush();
  // The peer sees the end after everything that was sent; closing the socket here could lose some of it.
  if (peer->is_dropped && peer->connection.unsent() == 0) ::shutdown(peer->connection.descriptor(), SHUT_WR);
}

void JobLink::keep_time(Peer* peer) {
  const Clock::time_point now = Clock::now();
  const Clock::duration silent = now - peer->last_heard;
  if (!peer->connection.is_known() && !peer->is_leader) {
    if (silent > kIntroduction) peer->connection.close();
    return;
  }
  if (silent > kPeerTimeout) {
    return lose(peer, fmt::format("it has been silent for {:.0f} s", std::chrono::duration<double>(silent).count()),
                true);
  }
  if (peer->is_dropped || now < peer->next_alive) return;
  peer->next_alive = now + kAliveEvery;
  queue(peer, alive_);
  write(peer);
}

// The loss of a stranger is not reported.
void JobLink::lose(Peer* peer, const std::string& why, bool was_silent) {
  const bool is_stranger = !peer->connection.is_known() && !peer->is_leader;
  peer->connection.close();
  if (peer->is_dropped || is_stranger) return;
  heard_.push_back({.peer = peer->number, .message = std::nullopt, .why = why, .was_silent = was_silent});
}

}  // namespace concord
