// A ring buffer of the latest calls of a rank, so that a job that hangs or loses a rank can report the position of
// every rank.
//
// The ring holds kEntries calls over all groups. Recording takes a lock and some stores: well under a microsecond. The
// pure functions at the end format the positions of several ranks as one line.
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

// The parameters of one call. All ranks of a group must agree on them, except for a p2p batch.
struct CallSignature {
  CommOp op{};
  DType dtype = DType::kU8;
  int64_t count = 0;               // in the platform's unit for this operation
  std::optional<ReduceOp> reduce;  // only for operations that reduce
  std::optional<int64_t> root;     // only for broadcast and reduce: index in the group
  std::string detail;              // only for p2p: "send 4 to 1, recv 4 from 2"
  std::string group = {};   // name that the caller uses, since several groups may share a communicator; not compared
  std::string action = {};  // only for entries that are actions of a pipeline schedule: "2F0"
  bool operator==(const CallSignature&) const = default;

  std::string to_string() const;  // "all_reduce sum f32 x 1024", "broadcast bf16 x 8 from 2"
};

enum class CallState { queued, started, done, failed };
const char* to_string(CallState state);

// The position of a rank in one communicator, called |group|. Its calls are numbered starting at 1; 0 means none.
// Collectives and p2p batches are numbered separately, because not all ranks of a group take part in a p2p batch.
struct GroupPosition {
  std::string group;
  int64_t made = 0;           // the latest call made
  int64_t finished = 0;       // the latest call that is done
  std::string finished_call;  // its signature, if it is still in the ring
  std::string next_call;      // signature of call finished + 1, if it was made
  CallState next_state = CallState::queued;
  bool operator==(const GroupPosition&) const = default;
};

class FlightRecorder {
 public:
  static constexpr size_t kEntries = 1000;
  using Clock = std::chrono::system_clock;

  // Records a new call of |communicator| and returns its ticket. |sequence| is its number there.
  uint64_t record(const std::string& communicator, int64_t sequence, CallSignature signature);
  // Sets the state of the call. Does nothing if the ring has already overwritten it.
  void mark(uint64_t ticket, CallState state);

  std::vector<GroupPosition> positions() const;  // latest position of each group, groups in order of their first call

  // Returns the whole ring as a JSON document, oldest call first. |why| is the message that caused the dump.
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

// Serialises positions for the store, at most |limit| bytes (groups beyond it are omitted), and parses them.
// unpack_positions() returns an empty list for any other text, and its strings are safe to print.
std::string pack_positions(std::span<const GroupPosition> positions, size_t limit);
std::vector<GroupPosition> unpack_positions(const std::string& text);

// The position of one member of a group; nullopt if it did not reply.
struct MemberPosition {
  int64_t rank;
  std::optional<GroupPosition> position;
  std::string trouble = {};  // state of its process, if it did not reply: "pid 4711 is stopped"
};

// Returns one line about a group that waits: which rank is behind, at which call, and where the others are.
//   rank 3 is behind in group tp: it finished call 17 (all_reduce sum f32 x 1024) and not call 18; the others are at
//   call 18 (reduce_scatter sum f32 x 64)
//   rank 3 is behind in group tp: no answer (pid 4711 is stopped); the others are at call 18 (...)
std::string describe_lagging_ranks(const std::string& group, std::span<const MemberPosition> members);
// Returns whether that line names some ranks rather than all or none: these are then the cause.
bool is_any_behind(std::span<const MemberPosition> members);

// Like describe_lagging_ranks(), for p2p batches, whose numbers cannot be compared between ranks: lists the position of
// each member, starting with those that did not reply.
std::string describe_positions(const std::string& group, std::span<const MemberPosition> members);

}  // namespace concord
