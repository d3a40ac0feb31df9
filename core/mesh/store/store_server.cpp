#include "core/mesh/store/store_server.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <algorithm>
#include <charconv>
#include <csignal>
#include <system_error>

namespace concord {
namespace {

using Milliseconds = std::chrono::milliseconds;

// Ids in epoll's events; clients have higher ones.
constexpr uint64_t kListener = 0, kWake = 1, kFirstClient = 2;
constexpr size_t kFirstRequest = 64;             // bytes of a peer's first request, which has no keys
constexpr size_t kMaxUnsent = size_t{16} << 20;  // clients with more unread replies than this are not served
constexpr size_t kOverhead = 128;                // approximate bytes of a key's nodes in the maps
constexpr Milliseconds kMaxWait{60000};

// Returns false if |socket| is a Unix socket of another user.
bool is_of_this_user(int socket) {
  int domain = 0;
  socklen_t length = sizeof domain;
  if (::getsockopt(socket, SOL_SOCKET, SO_DOMAIN, &domain, &length) != 0) return false;
  if (domain != AF_UNIX) return true;
  ucred peer{};
  length = sizeof peer;
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &length) != 0) return false;
  return peer.uid == ::geteuid() || peer.uid == 0;
}

}  // namespace

StoreServer::StoreServer(UniqueFd listener, std::string token, const Limits& limits)
    : token_(std::move(token)),
      limits_(limits),
      listener_(std::move(listener)),
      wake_(::eventfd(0, EFD_CLOEXEC)),
      epoll_(::epoll_create1(EPOLL_CLOEXEC)),
      last_client_(kFirstClient) {
  ::fcntl(listener_.get(), F_SETFL, ::fcntl(listener_.get(), F_GETFL) | O_NONBLOCK);
  epoll_event listening{EPOLLIN, {.u64 = kListener}}, waking{EPOLLIN, {.u64 = kWake}};
  if (!wake_ || !epoll_ || ::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, listener_.get(), &listening) != 0 ||
      ::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, wake_.get(), &waking) != 0) {
    throw std::system_error(errno, std::generic_category(), "epoll");
  }
  sigset_t all, before;  // signals are handled by other threads
  sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  thread_ = std::thread([this] { run(); });
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

StoreServer::~StoreServer() {
  stops_ = true;
  const uint64_t one = 1;
  static_cast<void>(!::write(wake_.get(), &one, sizeof one));
  thread_.join();
}

// --------------------------------------------------------------------------------------------------------- connections

void StoreServer::run() {
  epoll_event events[64];
  while (!stops_) {
    const int count = ::epoll_wait(epoll_.get(), events, 64, milliseconds_to_next_end());
    for (int i = 0; i < count; ++i) {
      const uint64_t number = events[i].data.u64;
      if (number == kListener) accept_all();
      if (number >= kFirstClient) serve(number);
    }
    end_overdue();
  }
}

int StoreServer::milliseconds_to_next_end() const {
  Clock::time_point end = Clock::time_point::max();
  if (!waits_by_end_.empty()) end = waits_by_end_.begin()->first;
  if (!strangers_.empty()) end = std::min(end, clients_.at(*strangers_.begin()).since + limits_.introduction);
  if (end == Clock::time_point::max()) return -1;
  const auto left = std::chrono::ceil<Milliseconds>(end - Clock::now());
  return static_cast<int>(std::clamp(left, Milliseconds(0), kMaxWait).count());
}

void StoreServer::end_overdue() {
  const Clock::time_point now = Clock::now();
  while (!waits_by_end_.empty() && waits_by_end_.begin()->first <= now) {
    const auto found = waits_.find(waits_by_end_.begin()->second);
    const Wait& wait = found->second;
    reply(wait.client, wait.request.number, StoreReply::absent, 0);
    const auto by_key = waits_by_key_.find(wait.key);
    by_key->second.erase(found->first);
    if (by_key->second.empty()) waits_by_key_.erase(by_key);
    waits_by_end_.erase(waits_by_end_.begin());
    waits_.erase(found);
  }
  while (!strangers_.empty() && clients_.at(*strangers_.begin()).since + limits_.introduction <= now) {
    drop(*strangers_.begin());
  }
}

// Drops the oldest unauthenticated peer: a flood does not keep out a rank that authenticates immediately.
bool StoreServer::is_room_for_one_more() {
  if (strangers_.empty()) return false;
  drop(*strangers_.begin());
  return true;
}

void StoreServer::accept_all() {
  for (;;) {
    UniqueFd socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!socket && errno == ECONNABORTED) continue;
    if (!socket && (errno == EMFILE || errno == ENFILE)) {
      if (is_room_for_one_more()) continue;
      std::this_thread::sleep_for(Milliseconds(10));  // the listener is still readable: do not spin
    }
    if (!socket) return;
    if (!is_of_this_user(socket.get())) continue;
    const int yes = 1;  // keepalive: eventually drops clients whose machine is gone
    ::setsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    ::setsockopt(socket.get(), SOL_SOCKET, SO_KEEPALIVE, &yes, sizeof yes);
    const uint64_t number = ++last_client_;
    Client& client = clients_[number];
    client.connection = SealedConnection(std::move(socket), SealedConnection::End::server, token_, kStorePurpose);
    client.since = Clock::now();
    strangers_.insert(number);
    watch(number, &client);
    if (strangers_.size() > limits_.strangers) is_room_for_one_more();
  }
}

void StoreServer::drop(uint64_t number) {
  strangers_.erase(number);
  clients_.erase(number);
}

// Registers the events that the client waits for with epoll, if they have changed.
void StoreServer::watch(uint64_t number, Client* client) {
  const size_t unsent = client->connection.unsent();
  const uint32_t wanted = (unsent <= kMaxUnsent ? EPOLLIN : 0u) | (unsent > 0 ? EPOLLOUT : 0u);
  if (wanted == client->events) return;
  epoll_event event{wanted, {.u64 = number}};
  const int action = client->events == 0 ? EPOLL_CTL_ADD : EPOLL_CTL_MOD;
  ::epoll_ctl(epoll_.get(), action, client->connection.descriptor(), &event);
  client->events = wanted;
}

void StoreServer::serve(uint64_t number) {
  const auto found = clients_.find(number);
  if (found == clients_.end()) return;  // dropped since epoll reported it
  SealedConnection& connection = found->second.connection;
  connection.flush();
  const bool is_open = connection.fill();
  const auto limit = [&] { return connection.is_known() ? kMaxStoreRequest : kFirstRequest; };
  while (const auto message = connection.next(limit())) {
    strangers_.erase(number);
    auto request = unpack_store_message(message->body);
    if (!request) connection.close();
    if (request) handle(number, static_cast<StoreRequest>(message->kind), std::move(*request));
  }
  if (!is_open || !connection.open()) return drop(number);
  watch(number, &found->second);
}

// ------------------------------------------------------------------------------------------------------------ requests

void StoreServer::handle(uint64_t client, StoreRequest kind, StoreMessage request) {
  const size_t least = kind == StoreRequest::set                                   ? 2
                       : kind == StoreRequest::add || kind == StoreRequest::remove ? 1
                                                                                   : 0;
  if (request.texts.size() < least) return reply(client, request.number, StoreReply::refused, 0, {"no key"});
  switch (kind) {
    case StoreRequest::set: return change(client, request, request.texts[1], 0);
    case StoreRequest::add: return add(client, request);
    case StoreRequest::remove: return remove(client, request);
    case StoreRequest::check:
      return reply(client, request.number, StoreReply::done, first_missing(request.texts) == nullptr ? 1 : 0);
    case StoreRequest::get:
    case StoreRequest::wait: {
      const Milliseconds limit = std::clamp(Milliseconds(request.amount), Milliseconds(0), kMaxWait);
      return answer_or_wait({client, kind, std::move(request), Clock::now() + limit, {}});
    }
  }
  reply(client, request.number, StoreReply::refused, 0, {"an unknown request"});
}

// Does nothing if the client has disconnected meanwhile.
void StoreServer::reply(uint64_t client, uint64_t number, StoreReply kind, int64_t result,
                        std::vector<std::string> texts) {
  const auto found = clients_.find(client);
  if (found == clients_.end()) return;
  found->second.connection.put(static_cast<uint32_t>(kind), pack({number, result, std::move(texts)}));
  if (found->second.connection.open()) watch(client, &found->second);
}

// Sets the first key of |request| to |value|, and replies with |result|.
void StoreServer::change(uint64_t client, const StoreMessage& request, const std::string& value, int64_t result) {
  const std::string& key = request.texts[0];
  const auto found = values_.find(key);
  const size_t before = found == values_.end() ? 0 : kOverhead + key.size() + found->second.size();
  const size_t after = kOverhead + key.size() + value.size();
  if (bytes_ - before + after > limits_.bytes) {
    return reply(client, request.number, StoreReply::refused, 0,
                 {fmt::format("the job's store is full: it has {} bytes, {} more exceed its limit of {}", bytes_,
                              after - before, limits_.bytes)});
  }
  bytes_ += after - before;
  values_[key] = value;
  reply(client, request.number, StoreReply::done, result);
  wake_waits(key);
}

void StoreServer::add(uint64_t client, const StoreMessage& request) {
  const auto found = values_.find(request.texts[0]);
  const std::string before = found == values_.end() ? "0" : found->second;
  int64_t number = 0;
  const auto parsed = std::from_chars(before.data(), before.data() + before.size(), number);
  if (parsed.ec != std::errc() || parsed.ptr != before.data() + before.size()) {
    return reply(client, request.number, StoreReply::refused, 0,
                 {fmt::format("{} is not a counter", request.texts[0])});
  }
  int64_t sum = 0;
  if (__builtin_add_overflow(number, request.amount, &sum)) {
    return reply(client, request.number, StoreReply::refused, 0, {"the sum is too large"});
  }
  change(client, request, std::to_string(sum), sum);
}

void StoreServer::remove(uint64_t client, const StoreMessage& request) {
  const auto found = values_.find(request.texts[0]);
  const bool is_there = found != values_.end();
  if (is_there) bytes_ -= kOverhead + found->first.size() + found->second.size();
  if (is_there) values_.erase(found);
  reply(client, request.number, StoreReply::done, is_there ? 1 : 0);
}

const std::string* StoreServer::first_missing(const std::vector<std::string>& keys) const {
  const auto found = std::ranges::find_if(keys, [&](const std::string& key) { return !values_.contains(key); });
  return found == keys.end() ? nullptr : &*found;
}

void StoreServer::answer_or_wait(Wait wait) {
  const StoreMessage& request = wait.request;
  if (const std::string* missing = first_missing(request.texts)) {
    if (request.amount <= 0) return reply(wait.client, request.number, StoreReply::absent, 0);
    wait.key = *missing;
    const uint64_t number = ++last_wait_;
    waits_by_key_[wait.key].insert(number);
    waits_by_end_.insert({wait.end, number});
    waits_.emplace(number, std::move(wait));
    return;
  }
  std::vector<std::string> values;
  for (const std::string& key : request.texts) {
    if (wait.kind == StoreRequest::get) values.push_back(values_.at(key));
  }
  reply(wait.client, request.number, StoreReply::done, 0, std::move(values));
}

// Replies to the waits for |key|, which exists now.
void StoreServer::wake_waits(const std::string& key) {
  const auto found = waits_by_key_.find(key);
  if (found == waits_by_key_.end()) return;
  const std::set<uint64_t> numbers = std::move(found->second);
  waits_by_key_.erase(found);
  for (const uint64_t number : numbers) {
    auto wait = waits_.extract(number);
    waits_by_end_.erase({wait.mapped().end, number});
    answer_or_wait(std::move(wait.mapped()));
  }
}

}  // namespace concord
