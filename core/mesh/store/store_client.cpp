#include "core/mesh/store/store_client.h"

#include <fmt/core.h>
#include <fmt/ranges.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstring>
#include <system_error>

#include "core/mesh/store/store_server.h"

namespace concord {
namespace {

using Clock = std::chrono::steady_clock;
using Milliseconds = std::chrono::milliseconds;

constexpr Milliseconds kSlice{2000};  // one wait at the server, so that a stopped server is detected soon after
constexpr size_t kMaxReply = size_t{1} << 30;  // more than the server may store

std::atomic<int64_t> requests = 0;  // number sent by all clients of this process

StoreMessage message_of(std::span<const std::string> keys, int64_t amount = 0) {
  return {0, amount, {keys.begin(), keys.end()}};
}

}  // namespace

int64_t store_requests() { return requests; }

StoreClient::StoreClient(UniqueFd socket, const std::string& token, std::string where, Milliseconds limit)
    : where_(std::move(where)),
      limit_(limit),
      wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      connection_(std::move(socket), SealedConnection::End::client, token, kStorePurpose) {
  if (!wake_) throw std::system_error(errno, std::generic_category(), "eventfd");
  // The server accepts no larger request from a peer that has not authenticated. The reply is ignored.
  connection_.put(static_cast<uint32_t>(StoreRequest::check), pack(StoreMessage{}));
  sigset_t all, before;  // signals are handled by other threads
  sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  thread_ = std::thread([this] { run(); });
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

StoreClient::~StoreClient() {
  {
    const std::lock_guard lock(mutex_);
    is_closing_ = true;
  }
  wake();
  thread_.join();
}

void StoreClient::wake() const {
  const uint64_t one = 1;
  static_cast<void>(!::write(wake_.get(), &one, sizeof one));  // fails only if a wakeup is pending already
}

void StoreClient::run() {
  std::unique_lock lock(mutex_);
  while (!is_closing_ && !is_lost_) {
    pollfd wanted[] = {{connection_.descriptor(), connection_.wanted_events(), 0}, {wake_.get(), POLLIN, 0}};
    lock.unlock();
    ::poll(wanted, 2, -1);
    uint64_t ignored = 0;
    static_cast<void>(!::read(wake_.get(), &ignored, sizeof ignored));
    lock.lock();
    connection_.flush();
    if (wanted[0].revents != 0) receive();
  }
}

void StoreClient::receive() {
  const bool is_open = connection_.fill();
  while (auto received = connection_.next(kMaxReply)) {
    auto message = unpack_store_message(received->body);
    const auto found = message ? pending_.find(message->number) : pending_.end();
    if (found == pending_.end()) continue;  // the caller has given up
    found->second = Reply{static_cast<StoreReply>(received->kind), std::move(*message)};
    changed_.notify_all();
  }
  if (is_open && connection_.open()) return;
  connection_.close();
  is_lost_ = true;
  changed_.notify_all();
}

std::optional<StoreClient::Reply> StoreClient::request(StoreRequest kind, StoreMessage message, Milliseconds limit) {
  std::unique_lock lock(mutex_);
  if (is_lost_) return std::nullopt;
  const uint64_t number = message.number = ++last_;
  pending_[number];
  ++requests;
  connection_.put(static_cast<uint32_t>(kind), pack(message));
  if (connection_.unsent() > 0) wake();
  changed_.wait_until(lock, Clock::now() + limit,
                      [&]() CONCORD_REQUIRES(mutex_) { return is_lost_ || pending_[number].has_value(); });
  std::optional<Reply> reply = std::move(pending_[number]);
  pending_.erase(number);
  return reply;
}

std::string StoreClient::lost_text() {
  if (!is_lost_) return "";
  const int error = connection_.error();
  const bool is_unreachable = error == ETIMEDOUT || error == EHOSTUNREACH || error == ENETUNREACH;
  return fmt::format("{}: {}", is_unreachable ? "can no longer be reached" : "no longer answers",
                     error == 0 ? "it has closed the connection" : std::strerror(error));
}

StoreClient::Reply StoreClient::call(StoreRequest kind, StoreMessage message, Milliseconds waits) {
  const std::string key = message.texts.empty() ? "" : message.texts.front();
  auto reply = request(kind, std::move(message), limit_ + waits);
  if (!reply) {
    const std::lock_guard lock(mutex_);
    const std::string how =
        is_lost_ ? lost_text() : fmt::format("has not answered for {} ms", (limit_ + waits).count());
    throw Error(CONCORD_STATUS_PEER_LOST,
                fmt::format("the store at {}, which rank 0 serves, {} ({})", where_, how, key));
  }
  if (reply->kind != StoreReply::refused) return std::move(*reply);
  throw Error(CONCORD_STATUS_OUT_OF_MEMORY,
              fmt::format("the store at {} rejected {}: {}", where_, key,
                          reply->message.texts.empty() ? "" : reply->message.texts.front()));
}

std::optional<std::string> StoreClient::greet(Milliseconds limit, int* error) {
  if (request(StoreRequest::check, {}, limit)) return std::nullopt;
  const std::lock_guard lock(mutex_);
  *error = is_lost_ ? connection_.error() : ETIMEDOUT;
  if (!is_lost_) return fmt::format("the process that listens there has not answered within {} ms", limit.count());
  if (*error == SealedConnection::kNoPeer) return "the process that listens there is not a store of this version";
  if (*error != 0 && *error != ECONNRESET && *error != SealedConnection::kWrongSecret) return std::strerror(*error);
  *error = SealedConnection::kWrongSecret;
  return "authentication failed: the process that listens there belongs to another job, or has another "
         "CONCORD_JOB_TOKEN; all ranks of a job need the same one, or none";
}

// --------------------------------------------------------------------------------------------------------------- Store

void StoreClient::set(const std::string& key, std::string_view value) {
  constexpr size_t kMaxBytes = kMaxStoreRequest - 1024;
  if (key.size() + value.size() > kMaxBytes) {
    throw Error(CONCORD_STATUS_INVALID_ARGUMENT,
                fmt::format("the value for {} has {} bytes; the store takes at most {}", key, value.size(), kMaxBytes));
  }
  call(StoreRequest::set, {0, 0, {key, std::string(value)}});
}

void StoreClient::wait(std::span<const std::string> keys, Milliseconds timeout) {
  if (!keys.empty()) await(StoreRequest::wait, keys, timeout);
}

std::vector<std::string> StoreClient::get_all(std::span<const std::string> keys, Milliseconds timeout) {
  if (keys.empty()) return {};
  return await(StoreRequest::get, keys, timeout);
}

int64_t StoreClient::add(const std::string& key, int64_t amount) {
  return call(StoreRequest::add, {0, amount, {key}}).message.amount;
}

bool StoreClient::check(std::span<const std::string> keys) {
  return keys.empty() || call(StoreRequest::check, message_of(keys)).message.amount != 0;
}

bool StoreClient::remove(const std::string& key) {
  return call(StoreRequest::remove, {0, 0, {key}}).message.amount != 0;
}

// The server replies when the keys exist, or after a slice of the time.
std::vector<std::string> StoreClient::await(StoreRequest kind, std::span<const std::string> keys,
                                            Milliseconds timeout) {
  const Clock::time_point end = Clock::now() + timeout;
  for (;;) {
    const auto left = std::chrono::ceil<Milliseconds>(end - Clock::now());
    const Milliseconds slice = std::clamp(left, Milliseconds(0), kSlice);
    Reply reply = call(kind, message_of(keys, slice.count()), slice);
    if (reply.kind == StoreReply::done) return std::move(reply.message.texts);
    if (left > slice) continue;
    throw Error(CONCORD_STATUS_TIMEOUT,
                fmt::format("the store at {} has no {} after {} ms", where_, fmt::join(keys, ", "), timeout.count()));
  }
}

}  // namespace concord
