// Control connections of a communicator that spans hosts: by them its ranks find each other and report failures.
//
// The process that creates an id listens on a TCP port, whose address is in the id. Every rank holds one connection (a
// Line) to it. It carries the records that ranks exchange during set-up, and afterwards failures and exits of ranks
// only; data between ranks goes over transport.h. The creator of the id, its keeper, broadcasts the first failure to
// all ranks.
//
// A process that exits closes its connection, which the keeper detects immediately. A host that does not answer the
// kernel's probes is lost after kUnreachableAfter. A stopped process still answers them, so it is not taken for lost.
//
// Only processes that have the job's token (CONCORD_JOB_TOKEN, if it is set) and the whole id are admitted; the token
// is never sent. After all ranks have connected, another process that claims one of their ranks is rejected. Each
// process with ids or connections has one listening thread, which ends with the process.
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

// Writes an id of shm::kUniqueIdBytes bytes, with the address at which this process listens.
void create_id(void* out_id);
// Closes |id|: ranks can no longer connect with it. Does nothing in a process that did not create the id.
void forget_id(const void* id);
// Whether |id| is from create_id; other ids are for ranks of one host.
bool has_address(const void* id);

// Whether the job runs on more than one host, by the launcher's environment variables.
bool job_spans_hosts();

struct Seat {
  int32_t world = 0;
  int32_t rank = 0;
  const void* id = nullptr;
  std::string name;  // of the communicator, for messages
  std::chrono::milliseconds timeout{};
};

// A rank's control connection. Threads: set-up by one thread; then any.
class Line {
 public:
  // Connects to the keeper. Waits: until it answers, or for the timeout. Throws sdk::Failure.
  static std::unique_ptr<Line> open(const Seat& seat);
  ~Line();  // announces to the others that this rank leaves; never waits
  Line(const Line&) = delete;
  Line& operator=(const Line&) = delete;

  // Gathers the |record| of every rank and returns them in rank order. Every rank calls it the same number of times,
  // before watch(). Throws the failure that another rank has reported, PEER_LOST, or TIMEOUT with the missing ranks.
  std::vector<std::string> exchange(const std::string& record);

  // Sets the callback for the first failure that another rank reports; it is called at most once, on another thread.
  using OnFailure = std::function<void(concord_status, const std::string&)>;
  void watch(OnFailure on_failure);

  // Broadcasts a failure to all other ranks, unless another one was first. Never waits.
  void report(concord_status status, const std::string& detail) noexcept;

  // Returns why |rank| is lost; nullopt if it is not.
  std::optional<std::string> loss_of(int32_t rank) const;
  // Whether |rank| has destroyed its communicator.
  bool has_left(int32_t rank) const;

  // Announces that this rank leaves, and calls |then| once, on another thread, when all others have left too; it is not
  // called if one of them or the keeper is lost. A process that exits earlier waits for a second.
  static void part(std::unique_ptr<Line> line, std::function<void()> then);

  struct State;  // shared with the listening thread

 private:
  explicit Line(std::shared_ptr<State> state);
  std::shared_ptr<State> state_;
};

}  // namespace concord::net
