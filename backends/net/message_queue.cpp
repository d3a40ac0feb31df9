#include "backends/net/message_queue.h"

#include <thread>

#include "platform/sdk/dtypes.hpp"

namespace concord::net {
namespace {

using std::chrono::milliseconds;

constexpr int kSpins = 60;  // looks at the network, a microsecond or two each, before a rank sleeps
constexpr int kNapMs = 20;
constexpr milliseconds kStillUnderWay{100};  // what a rank sent before its end may still arrive
constexpr milliseconds kBlameGrace{2000};    // how long a broken connection waits for news of who is gone

}  // namespace

MessageQueue::MessageQueue(int32_t rank, std::unique_ptr<Port> port, std::unique_ptr<Line> line,
                           shm::Communicator& local, const shm::Options& options)
    : rank_(rank), port_(std::move(port)), line_(std::move(line)), local_(local), options_(options), spins_(kSpins) {}

// A peer may still be about to connect, or to read what this rank has sent last: the port stays until all have left.
MessageQueue::~MessageQueue() {
  if (local_.error(nullptr) == CONCORD_STATUS_OK) {
    Line::part(std::move(line_), [port = port_.release()] { delete port; });
  } else {
    port_.release()->retire();
  }
}

void MessageQueue::begin(const shm::Call& call, Lane lane) {
  local_.throw_if_failed();  // after a failure messages stay where they are: the port may still refer to them
  port_->drive(true);
  messages_.clear();
  outgoing_.clear();
  call_ = call;
  lane_ = lane;
}

Message& MessageQueue::send(int32_t peer, const void* data, int64_t bytes, const Header& header) {
  Message& message = messages_.emplace_back();
  message.peer = peer;
  message.bytes = bytes;
  port_->send(peer, lane_, header, data, bytes, &message.transfer);
  unsettled_.insert(peer);
  outgoing_.push_back(&message);
  return message;
}

Message& MessageQueue::receive(int32_t peer, void* data, int64_t bytes) {
  Message& message = messages_.emplace_back();
  message.peer = peer;
  message.incoming = true;
  message.bytes = bytes;
  port_->receive(peer, lane_, data, bytes, &message.transfer);
  return message;
}

void MessageQueue::await(Message& message) {
  await_any(message);
  if (message.incoming) compare(message);
}

void MessageQueue::await_any(Message& message) {
  const auto& state = message.transfer.state;
  for (int i = 0; i < spins_ && state == Transfer::State::kPending; ++i) {
    port_->progress(0);
    if (i > spins_ / 4 && !yielding_.yield()) break;
  }
  if (state != Transfer::State::kDone) wait_slowly(message);
}

void MessageQueue::wait_slowly(const Message& message) {
  const auto start = Clock::now();
  auto gone_at = Clock::time_point::max();
  auto broken_at = Clock::time_point::max();
  while (true) {
    port_->progress(kNapMs);
    if (message.transfer.state == Transfer::State::kDone) return;
    // A peer that has all it wants may leave before this rank's connection to it is idle.
    if (message.goes_unanswered && message.transfer.state == Transfer::State::kBroken) return;
    local_.throw_if_failed();
    const auto now = Clock::now();
    const bool broken = message.transfer.state == Transfer::State::kBroken;
    if (broken) std::this_thread::sleep_for(milliseconds(kNapMs));
    if (broken && broken_at == Clock::time_point::max()) broken_at = now;
    const auto loss = line_->loss_of(message.peer);
    if (loss && gone_at == Clock::time_point::max()) gone_at = now;
    if (loss && (broken || now - gone_at > kStillUnderWay)) {
      fail(CONCORD_STATUS_PEER_LOST,
           sdk::text("communicator '%s': %s; rank %d was waiting for rank %d in %s", options_.name.c_str(),
                     loss->c_str(), rank_, message.peer, describe(call_).c_str()));
    }
    if (broken && now - broken_at > kBlameGrace) {
      fail(CONCORD_STATUS_PEER_LOST,
           sdk::text("communicator '%s': the connection from rank %d to rank %d, which %s, broke in %s: %s",
                     options_.name.c_str(), rank_, message.peer,
                     line_->has_left(message.peer) ? "has destroyed its communicator" : "seems to be alive",
                     describe(call_).c_str(), message.transfer.why));
    }
    if (now - start >= options_.timeout) {
      fail(CONCORD_STATUS_TIMEOUT,
           sdk::text("rank %d of communicator '%s' has waited %lld ms in %s for rank %d on another host, which %s",
                     rank_, options_.name.c_str(),
                     static_cast<long long>(std::chrono::duration_cast<milliseconds>(now - start).count()),
                     describe(call_).c_str(), message.peer,
                     line_->has_left(message.peer) ? "has destroyed its communicator" : "is connected but silent"));
    }
  }
}

void MessageQueue::compare(const Message& message) {
  const uint64_t* words = message.transfer.header.words;
  if (words[0] == call_.head() && words[1] == call_.tail() && message.transfer.bytes == message.bytes) return;
  if (call_.operation == CONCORD_COMM_ALL_TO_ALL_V && words[0] == call_.head()) {
    const int64_t element = sdk::dtype_size(call_.dtype);
    fail(CONCORD_STATUS_INVALID_ARGUMENT,
         sdk::text("communicator '%s': all_to_all_v: rank %d sends %lld elements to rank %d, which receives %lld",
                   options_.name.c_str(), message.peer, static_cast<long long>(message.transfer.bytes / element), rank_,
                   static_cast<long long>(message.bytes / element)));
  }
  fail(CONCORD_STATUS_INVALID_ARGUMENT,
       sdk::text("communicator '%s': rank %d called %s where rank %d called %s", options_.name.c_str(), message.peer,
                 describe(shm::Call::unpack(words[0], words[1])).c_str(), rank_, describe(call_).c_str()));
}

void MessageQueue::settle() {
  for (Message* message : outgoing_) await(*message);
  outgoing_.clear();
  for (const int32_t peer : unsettled_) {
    Message& message = messages_.emplace_back();
    message.peer = peer;
    message.goes_unanswered = true;
    port_->flush(peer, &message.transfer);
    await(message);
  }
  unsettled_.clear();
}

void MessageQueue::finish() {
  for (size_t i = 0; i < messages_.size(); ++i) await(messages_[i]);
  settle();
}

void MessageQueue::fail(concord_status status, const std::string& detail) {
  local_.record(status, detail);
  local_.throw_if_failed();
  std::abort();  // not reached: there is a record now
}

}  // namespace concord::net
