// The messages of one communicator: posts them, waits for them, and finds the rank that failed if they do not arrive.
//
// A rank may post any number of messages; all of them progress while it waits for any of them. While it waits for
// something else (the ranks of its host, in shared memory) none progresses, so it first calls settle().
// Threads: one at a time.
#pragma once

#include <chrono>
#include <deque>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "backends/net/control.h"
#include "backends/net/transport.h"
#include "backends/shm/call.h"
#include "backends/shm/communicator.h"
#include "backends/shm/yielding.h"

namespace concord::net {

struct Message {
  Transfer transfer;
  int32_t peer = 0;
  bool incoming = false;
  int64_t bytes = 0;
  bool goes_unanswered = false;  // a flush, whose failure is ignored: a receive will report it
};

class MessageQueue {
 public:
  // |local| holds the record of failures that the ranks of this host share.
  MessageQueue(int32_t rank, std::unique_ptr<Port> port, std::unique_ptr<Line> line, shm::Communicator& local,
               const shm::Options& options);

  ~MessageQueue();
  MessageQueue(const MessageQueue&) = delete;
  MessageQueue& operator=(const MessageQueue&) = delete;

  // Begins an operation: drops the messages of the previous one, which are all done.
  void begin(const shm::Call& call, Lane lane);
  // Ends an operation that did not fail. After a failure it is not called, so that no message progresses: receives may
  // point to freed memory.
  void end() { port_->drive(false); }

  Message& send(int32_t peer, const void* data, int64_t bytes) { return send(peer, data, bytes, header()); }
  Message& send(int32_t peer, const void* data, int64_t bytes, const Header& header);
  Message& receive(int32_t peer, void* data, int64_t bytes);

  // Waits until |message| is done. A received message must belong to the same call and have the expected length.
  void await(Message& message);
  // Like await(), but accepts any header.
  void await_any(Message& message);
  // Waits until all that was sent has left this process.
  void settle();
  // Waits for all messages.
  void finish();
  // Lets messages progress, and waits for an event for at most |milliseconds|.
  void progress(int milliseconds) { port_->progress(milliseconds); }

  Line& line() { return *line_; }

  // Records the failure for the ranks of this host, reports it to the others, and throws the recorded failure.
  [[noreturn]] void fail(concord_status status, const std::string& detail);

 private:
  using Clock = std::chrono::steady_clock;

  Header header() const { return {{call_.head(), call_.tail()}}; }
  void wait_slowly(const Message& message);
  void compare(const Message& message);

  const int32_t rank_;
  std::unique_ptr<Port> port_;
  std::unique_ptr<Line> line_;
  shm::Communicator& local_;
  const shm::Options options_;
  const int spins_;
  shm::Yielding yielding_;
  shm::Call call_;
  Lane lane_ = Lane::kCollectives;
  std::deque<Message> messages_;    // a deque, so that they never move in memory
  std::vector<Message*> outgoing_;  // since the last settle()
  std::set<int32_t> unsettled_;
};

}  // namespace concord::net
