// How the ranks of a communicator on several hosts find each other, and how they learn what happened to each other.
//
// The process that makes an id listens on a TCP port, and the id says where. Every rank keeps one line to it. Over the
// line go the records that ranks exchange in set-up, and afterwards only news: a rank has failed, has exited,
// cannot be reached, has left. Data between ranks takes a different way (transport.h). The process that made the id,
// its keeper, passes the first failure on to all ranks.
//
// A process that exits closes its line, which the keeper detects immediately. A host that cannot be reached does not
// answer the kernel's probes: kUnreachableAfter. A process that was stopped still answers them, so it is not taken for
// lost.
//
// Only processes that have the job's token (CONCORD_JOB_TOKEN, if it is set) and the whole id are admitted; the token
// is never sent. After all ranks have met, another process that claims one of their ranks is refused. One thread for
// each process that has ids or lines does all the listening; it ends with the process.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "platform/abi/status.h"

namespace concord::net {

inline constexpr std::chrono::milliseconds kUnreachableAfter{2000};

// Makes an id of shm::kUniqueIdBytes bytes that also tells where this process listens.
void create_id(void* out_id);
// Drops |id|: no rank will connect with it any more. Does nothing in a process that did not make the id.
void forget_id(const void* id);
// Whether |id| was made by create_id; if not, it is for ranks of one host.
bool has_address(const void* id);

// Whether the launcher's variables say that the job runs on more than one host.
bool job_spans_hosts();

struct Seat {
  int32_t world = 0;
  int32_t rank = 0;
  const void* id = nullptr;
  std::string name;  // of the communicator, for messages
  std::chrono::milliseconds timeout{};
};

// One rank's line. Threads: set-up by one thread; then any.
class Line {
 public:
  // Waits until the keeper answers, or the timeout. Throws sdk::Failure.
  static std::unique_ptr<Line> open(const Seat& seat);
  ~Line();  // tells the others that this rank leaves; never waits
  Line(const Line&) = delete;
  Line& operator=(const Line&) = delete;

  // Gathers the |record| of every rank and returns them in rank order. Every rank calls it the same number of times.
  // Throws what another rank has reported, PEER_LOST, or TIMEOUT with the ranks that are missing. Only before watch().
  std::vector<std::string> exchange(const std::string& record);

  // From now on |on_failure| is called, on another thread, with what another rank reports; at most once.
  using OnFailure = std::function<void(concord_status, const std::string&)>;
  void watch(OnFailure on_failure);

  // Tells all other ranks, unless another failure was first. Never waits.
  void report(concord_status status, const std::string& detail) noexcept;

  // Why nothing more will come from |rank|; nothing if it seems to be there.
  std::optional<std::string> loss_of(int32_t rank) const;
  // Whether |rank| has destroyed its communicator.
  bool has_left(int32_t rank) const;

  // Tells the others that this rank leaves, and calls |then| once, on another thread, when all of them have left, too.
  // Never, if one of them or the keeper is lost. A process that exits before waits for a second.
  static void part(std::unique_ptr<Line> line, std::function<void()> then);

  struct State;  // shared with the thread that listens

 private:
  explicit Line(std::shared_ptr<State> state);
  std::shared_ptr<State> state_;
};

}  // namespace concord::net
