// The last calls of a rank, kept so that a job that hangs or loses a rank can report where every rank was.
//
// A ring of kEntries calls over all groups. Recording takes a lock and some stores: well under a microsecond. The pure
// functions at the end turn the positions of several ranks into one readable line.
// Threads: any thread.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "platform/base/thread_safety.hpp"
#include "platform/cpp/types.hpp"

namespace concord {

// What one rank calls; the ranks of a group have to agree on it, except for a p2p batch.
struct CallSignature {
  CommOp op{};
  DType dtype = DType::kU8;
  int64_t count = 0;               // as the platform counts it for this operation
  std::optional<ReduceOp> reduce;  // of operations that reduce
  std::optional<int64_t> root;     // of broadcast and reduce, within the group
  std::string detail;              // of p2p: "send 4 to 1, recv 4 from 2"
  std::string group = {};          // as the caller knows it: several groups may share one communicator; not compared
  std::string action = {};         // for an entry that is not a call but an action of a pipeline schedule: "2F0"
  bool operator==(const CallSignature&) const = default;

  std::string to_string() const;  // "all_reduce sum f32 x 1024", "broadcast bf16 x 8 from 2"
};

enum class CallState { queued, started, done, failed };
const char* to_string(CallState state);

// Where a rank is in one communicator, called |group|. Its calls are numbered from 1; 0 means none. Collectives and p2p
// batches are numbered apart, because not all ranks of a group take part in a p2p batch.
struct GroupPosition {
  std::string group;
  int64_t made = 0;           // the newest call made
  int64_t finished = 0;       // the newest call that is done
  std::string finished_call;  // what it was, where it is still in the ring
  std::string next_call;      // what finished + 1 is, where it was made
  CallState next_state = CallState::queued;
  bool operator==(const GroupPosition&) const = default;
};

class FlightRecorder {
 public:
  static constexpr size_t kEntries = 1000;
  using Clock = std::chrono::system_clock;

  // Notes a new call of |communicator|; returns its ticket. |sequence| is its number there.
  uint64_t record(const std::string& communicator, int64_t sequence, CallSignature signature);
  // Nothing if the ring has moved on.
  void mark(uint64_t ticket, CallState state);

  std::vector<GroupPosition> positions() const;  // the newest of each group, groups in order of their first call

  // The whole ring as a JSON document, oldest call first. |why| is the sentence that led to it.
  std::string to_json(int64_t rank, int64_t world, const std::string& why) const;

 private:
  struct Entry {
    uint64_t ticket = 0;
    size_t group = 0;
    int64_t sequence = 0;
    CallSignature signature;
    CallState state = CallState::queued;
    Clock::time_point queued, started, ended;
  };
  struct Progress {
    std::string name;
    int64_t made = 0;
    int64_t finished = 0;
  };

  size_t group_index(const std::string& name) CONCORD_REQUIRES(mutex_);

  mutable std::mutex mutex_;
  std::vector<Progress> groups_ CONCORD_GUARDED_BY(mutex_);
  std::array<Entry, kEntries> ring_ CONCORD_GUARDED_BY(mutex_);
  uint64_t next_ticket_ CONCORD_GUARDED_BY(mutex_) = 1;
};

// Positions as text for the store, at most |limit| bytes (groups beyond it are left out), and back. Text that is not
// from pack_positions gives nothing, and what is in it can be printed.
std::string pack_positions(std::span<const GroupPosition> positions, size_t limit);
std::vector<GroupPosition> unpack_positions(const std::string& text);

// Where one member of a group is; nothing if it did not answer.
struct MemberPosition {
  int64_t rank;
  std::optional<GroupPosition> position;
  std::string trouble = {};  // of its process, where it did not answer: "pid 4711 is stopped"
};

// One line about a group in which something waits: which rank is behind, at which call, and where the others are.
//   rank 3 is behind in group tp: it finished call 17 (all_reduce sum f32 x 1024) and not call 18; the others are at
//   call 18 (reduce_scatter sum f32 x 64)
//   rank 3 is behind in group tp: no answer (pid 4711 is stopped); the others are at call 18 (...)
std::string describe_lagging_ranks(const std::string& group, std::span<const MemberPosition> members);
// Whether that line names some ranks rather than all or none: then it is the cause.
bool is_any_behind(std::span<const MemberPosition> members);

// The same for p2p batches, whose numbers cannot be compared between ranks: where each of the members is, those that
// did not answer first.
std::string describe_positions(const std::string& group, std::span<const MemberPosition> members);

}  // namespace concord
