#include "backends/net/mail.h"

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

Mail::Mail(int32_t rank, std::unique_ptr<Port> port, std::unique_ptr<Line> line, shm::Communicator& local,
           const shm::Options& options)
    : rank_(rank), port_(std::move(port)), line_(std::move(line)), local_(local), options_(options), spins_(kSpins) {}

// A peer may still be about to connect, or to read what this rank has sent last: the port stays until all have left.
Mail::~Mail() {
  if (local_.error(nullptr) == CONCORD_STATUS_OK) {
    Line::part(std::move(line_), [port = port_.release()] { delete port; });
  } else {
    port_.release()->retire();
  }
}

void Mail::begin(const shm::Call& call, Lane lane) {
  local_.throw_if_failed();  // after a failure letters stay where they are: the port may still refer to them
  port_->drive(true);
  letters_.clear();
  outgoing_.clear();
  call_ = call;
  lane_ = lane;
}

Letter& Mail::send(int32_t peer, const void* data, int64_t bytes, const Header& header) {
  Letter& letter = letters_.emplace_back();
  letter.peer = peer;
  letter.bytes = bytes;
  port_->send(peer, lane_, header, data, bytes, &letter.transfer);
  unsettled_.insert(peer);
  outgoing_.push_back(&letter);
  return letter;
}

Letter& Mail::receive(int32_t peer, void* data, int64_t bytes) {
  Letter& letter = letters_.emplace_back();
  letter.peer = peer;
  letter.incoming = true;
  letter.bytes = bytes;
  port_->receive(peer, lane_, data, bytes, &letter.transfer);
  return letter;
}

void Mail::await(Letter& letter) {
  await_any(letter);
  if (letter.incoming) compare(letter);
}

void Mail::await_any(Letter& letter) {
  const auto& state = letter.transfer.state;
  for (int i = 0; i < spins_ && state == Transfer::State::kPending; ++i) {
    port_->progress(0);
    if (i > spins_ / 4 && !yielding_.yield()) break;
  }
  if (state != Transfer::State::kDone) wait_slowly(letter);
}

void Mail::wait_slowly(const Letter& letter) {
  const auto start = Clock::now();
  auto gone_at = Clock::time_point::max();
  auto broken_at = Clock::time_point::max();
  while (true) {
    port_->progress(kNapMs);
    if (letter.transfer.state == Transfer::State::kDone) return;
    // A peer that has all it wants may leave before this rank's connection to it is idle.
    if (letter.goes_unanswered && letter.transfer.state == Transfer::State::kBroken) return;
    local_.throw_if_failed();
    const auto now = Clock::now();
    const bool broken = letter.transfer.state == Transfer::State::kBroken;
    if (broken) std::this_thread::sleep_for(milliseconds(kNapMs));
    if (broken && broken_at == Clock::time_point::max()) broken_at = now;
    const auto loss = line_->loss_of(letter.peer);
    if (loss && gone_at == Clock::time_point::max()) gone_at = now;
    if (loss && (broken || now - gone_at > kStillUnderWay)) {
      fail(CONCORD_STATUS_PEER_LOST,
           sdk::text("communicator '%s': %s; rank %d was waiting for rank %d in %s", options_.name.c_str(),
                     loss->c_str(), rank_, letter.peer, describe(call_).c_str()));
    }
    if (broken && now - broken_at > kBlameGrace) {
      fail(CONCORD_STATUS_PEER_LOST,
           sdk::text("communicator '%s': the connection from rank %d to rank %d, which %s, broke in %s: %s",
                     options_.name.c_str(), rank_, letter.peer,
                     line_->has_left(letter.peer) ? "has destroyed its communicator" : "seems to be alive",
                     describe(call_).c_str(), letter.transfer.why));
    }
    if (now - start >= options_.timeout) {
      fail(CONCORD_STATUS_TIMEOUT,
           sdk::text("rank %d of communicator '%s' has waited %lld ms in %s for rank %d on another host, which %s",
                     rank_, options_.name.c_str(),
                     static_cast<long long>(std::chrono::duration_cast<milliseconds>(now - start).count()),
                     describe(call_).c_str(), letter.peer,
                     line_->has_left(letter.peer) ? "has destroyed its communicator" : "is connected but silent"));
    }
  }
}

void Mail::compare(const Letter& letter) {
  const uint64_t* words = letter.transfer.header.words;
  if (words[0] == call_.head() && words[1] == call_.tail() && letter.transfer.bytes == letter.bytes) return;
  if (call_.operation == CONCORD_COMM_ALL_TO_ALL_V && words[0] == call_.head()) {
    const int64_t element = sdk::dtype_size(call_.dtype);
    fail(CONCORD_STATUS_INVALID_ARGUMENT,
         sdk::text("communicator '%s': all_to_all_v: rank %d sends %lld elements to rank %d, which receives %lld",
                   options_.name.c_str(), letter.peer, static_cast<long long>(letter.transfer.bytes / element), rank_,
                   static_cast<long long>(letter.bytes / element)));
  }
  fail(CONCORD_STATUS_INVALID_ARGUMENT,
       sdk::text("communicator '%s': rank %d called %s where rank %d called %s", options_.name.c_str(), letter.peer,
                 describe(shm::Call::unpack(words[0], words[1])).c_str(), rank_, describe(call_).c_str()));
}

void Mail::settle() {
  for (Letter* letter : outgoing_) await(*letter);
  outgoing_.clear();
  for (const int32_t peer : unsettled_) {
    Letter& letter = letters_.emplace_back();
    letter.peer = peer;
    letter.goes_unanswered = true;
    port_->flush(peer, &letter.transfer);
    await(letter);
  }
  unsettled_.clear();
}

void Mail::finish() {
  for (size_t i = 0; i < letters_.size(); ++i) await(letters_[i]);
  settle();
}

void Mail::fail(concord_status status, const std::string& detail) {
  local_.record(status, detail);
  local_.throw_if_failed();
  std::abort();  // not reached: there is a record now
}

}  // namespace concord::net
