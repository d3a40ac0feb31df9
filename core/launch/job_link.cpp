#include "core/launch/job_link.h"

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
#include <random>

#include "core/config_error.h"
#include "core/mesh/sockets.h"

namespace concord {
namespace {

using Milliseconds = std::chrono::milliseconds;

constexpr std::string_view kMagic = "concord2";
constexpr size_t kNonce = 16;
constexpr size_t kGreeting = kMagic.size() + kNonce;
constexpr size_t kHeader = sizeof(uint32_t) + sizeof(uint64_t);  // length of the body, seal
constexpr uint32_t kLongestBody = 1 << 16;
constexpr uint32_t kLongestFirst = 1 << 15;  // of one who is not known yet
constexpr size_t kMostStrangers = 64;
constexpr Milliseconds kIntroduction{5000};

std::string random_bytes(size_t count) {
  std::random_device random;
  std::string bytes;
  while (bytes.size() < count) {
    const unsigned number = random();
    bytes.append(reinterpret_cast<const char*>(&number), sizeof number);
  }
  bytes.resize(count);
  return bytes;
}

template <class Number>
std::string bytes_of(Number number) {
  return {reinterpret_cast<const char*>(&number), sizeof number};
}

void make_nonblocking(int fd) { ::fcntl(fd, F_SETFL, ::fcntl(fd, F_GETFL) | O_NONBLOCK); }

}  // namespace

struct JobLink::Peer {
  int number = 0;
  UniqueFd socket;
  bool is_leader = false;  // the one at the other end
  std::string own_nonce;
  std::string nonce;      // the other's; empty until it has come
  bool is_known = false;  // a genuine message has come
  bool is_dropped = false;
  uint64_t sent = 0, received = 0;
  std::string in, out;
  std::vector<JobMessage> waiting;  // for |nonce|, on which their seals depend
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
    : hash_(token), listener_(std::move(listener)), wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
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
  peer->socket = std::move(socket);
  peer->is_leader = is_leader;
  peer->own_nonce = random_bytes(kNonce);
  peer->out = std::string(kMagic) + peer->own_nonce;
  const std::lock_guard lock(mutex_);
  const int number = is_leader ? kLeader : ++next_peer_;
  peer->number = number;
  peers_[number] = std::move(peer);
  wake();
}

std::vector<JobLink::Heard> JobLink::take() {
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

void JobLink::say_alive(const JobMessage& message) {
  const std::lock_guard lock(mutex_);
  alive_ = message;
}

void JobLink::drop(int peer) {
  const std::lock_guard lock(mutex_);
  const auto found = peers_.find(peer);
  if (found == peers_.end()) return;
  found->second->is_dropped = true;
  std::erase_if(heard_, [&](const Heard& each) { return each.peer == peer; });
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
  if (peer->nonce.empty()) {
    peer->waiting.push_back(message);
    return;
  }
  const std::string body = pack(message).substr(0, kLongestBody);
  const uint64_t hash = seal(*peer, !peer->is_leader, peer->sent++, body);
  peer->out += bytes_of(static_cast<uint32_t>(body.size())) + bytes_of(hash) + body;
}

uint64_t JobLink::seal(const Peer& peer, bool from_leader, uint64_t sequence, std::string_view body) const {
  const std::string& leader = peer.is_leader ? peer.nonce : peer.own_nonce;
  const std::string& member = peer.is_leader ? peer.own_nonce : peer.nonce;
  return hash_(fmt::format("launcher {}{}{} {} {}", leader, member, from_leader ? "down" : "up", sequence, body));
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
      const bool writes = !peer->out.empty();
      polled.push_back({peer->socket.get(), static_cast<short>(POLLIN | (writes ? POLLOUT : 0)), 0});
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
    if (peer->socket) write(peer);
    if (peer->socket) keep_time(peer);
    if (!peer->socket) peers_.erase(found);
  }
  changed_.notify_all();
}

void JobLink::accept_all() {
  for (;;) {
    UniqueFd socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!socket) return;
    add(std::move(socket), false);
    // The oldest stranger makes room: a flood cannot keep out those who say who they are at once.
    const std::lock_guard lock(mutex_);
    const auto is_stranger = [](const auto& entry) { return !entry.second->is_known; };
    if (static_cast<size_t>(std::ranges::count_if(peers_, is_stranger)) <= kMostStrangers) continue;
    peers_.erase(std::ranges::find_if(peers_, is_stranger));
  }
}

void JobLink::read(Peer* peer) {
  for (;;) {
    char buffer[16384];
    const ssize_t length = ::recv(peer->socket.get(), buffer, sizeof buffer, 0);
    if (length < 0 && errno == EINTR) continue;
    if (length < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
    if (length <= 0) {
      return lose(peer, length == 0 ? "its connection has ended" : std::strerror(errno), false);
    }
    peer->in.append(buffer, static_cast<size_t>(length));
    if (!take_frames(peer)) return;
  }
}

// False where it was lost.
bool JobLink::take_frames(Peer* peer) {
  if (peer->nonce.empty()) {
    const size_t size = std::min(peer->in.size(), kMagic.size());
    if (peer->in.compare(0, size, kMagic.substr(0, size)) != 0) {
      lose(peer, "what listens there is no launcher of this version", false);
      return false;
    }
    if (peer->in.size() < kGreeting) return true;
    peer->nonce = peer->in.substr(kMagic.size(), kNonce);
    peer->in.erase(0, kGreeting);
    for (const JobMessage& message : std::exchange(peer->waiting, {})) queue(peer, message);
  }
  for (;;) {
    if (peer->in.size() < kHeader) return true;
    uint32_t length = 0;
    uint64_t hash = 0;
    std::memcpy(&length, peer->in.data(), sizeof length);
    std::memcpy(&hash, peer->in.data() + sizeof length, sizeof hash);
    if (length > (peer->is_known ? kLongestBody : kLongestFirst)) {
      lose(peer, "it sent something that is no message", false);
      return false;
    }
    if (peer->in.size() < kHeader + length) return true;
    const std::string body = peer->in.substr(kHeader, length);
    peer->in.erase(0, kHeader + length);
    const uint64_t expected = seal(*peer, peer->is_leader, peer->received++, body);
    const std::optional<JobMessage> message = unpack_message(body);
    if (!is_same_text(bytes_of(hash), bytes_of(expected)) || !message) {
      lose(peer, "it has another token (CONCORD_JOB_TOKEN), or is no launcher of this job", false);
      return false;
    }
    peer->is_known = true;
    peer->last_heard = Clock::now();
    const bool is_noise = message->kind == JobMessage::Kind::alive && message->numbers.empty();
    if (!peer->is_dropped && !is_noise) heard_.push_back({.peer = peer->number, .message = *message});
  }
}

void JobLink::write(Peer* peer) {
  while (!peer->out.empty()) {
    const ssize_t length = ::send(peer->socket.get(), peer->out.data(), peer->out.size(), MSG_NOSIGNAL);
    if (length < 0 && errno == EINTR) continue;
    if (length < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
    if (length < 0) return lose(peer, std::strerror(errno), false);
    peer->out.erase(0, static_cast<size_t>(length));
  }
  // The other side sees the end after all that was sent; closing at once could lose it.
  if (peer->is_dropped) ::shutdown(peer->socket.get(), SHUT_WR);
}

void JobLink::keep_time(Peer* peer) {
  const Clock::time_point now = Clock::now();
  const Clock::duration silent = now - peer->last_heard;
  if (!peer->is_known && !peer->is_leader) {
    if (silent > kIntroduction) peer->socket.reset();
    return;
  }
  if (silent > kSilence) {
    return lose(peer, fmt::format("it has been silent for {:.0f} s", std::chrono::duration<double>(silent).count()),
                true);
  }
  if (peer->is_dropped || peer->nonce.empty() || now < peer->next_alive) return;
  peer->next_alive = now + kAliveEvery;
  queue(peer, alive_);
  write(peer);
}

// A stranger goes without a word.
void JobLink::lose(Peer* peer, const std::string& why, bool was_silent) {
  peer->socket.reset();
  if (peer->is_dropped || (!peer->is_known && !peer->is_leader)) return;
  heard_.push_back({.peer = peer->number, .message = std::nullopt, .why = why, .was_silent = was_silent});
}

}  // namespace concord
