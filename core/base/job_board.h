// A piece of memory that a launcher shares with the ranks it starts: what each of them does, and since when.
//
// The ranks write, the launcher reads; nothing waits and nothing can get stuck, even if a rank is stopped or killed in
// the middle. The memory has no name in the file system: only processes of this user can reach it, through the
// launcher, and it is gone when they are. It outlives a rank that dies and is the same for the one that replaces it.
//
// Example:
//   JobBoard board(4);                                        // in the launcher
//   setenv(kBoardVariable, board.variable().c_str(), 1);
//   std::optional<JobBoard> same = JobBoard::of_launcher();   // in a rank
//   if (same) same->rank(0).beats += 1;
//
// Threads: any; the fields are atomic, each on its own.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "platform/base/unique_fd.hpp"

namespace concord {

inline constexpr const char* kBoardVariable = "CONCORD_BOARD";
// A folder in memory, for this user only, that outlives ranks as the board does; with max_restarts. It is in /dev/shm,
// or where CONCORD_MEMORY_DIR says.
inline constexpr const char* kMemoryFolderVariable = "CONCORD_MEMORY_FOLDER";
inline constexpr const char* kMemoryDirVariable = "CONCORD_MEMORY_DIR";
// Of a job of several launchers: its name, the same for all of them and in every attempt.
inline constexpr const char* kJobVariable = "CONCORD_JOB";
// Of a job that goes on with fewer ranks: how many its arguments are for; and which device of the machine the rank has,
// where that is not LOCAL_RANK.
inline constexpr const char* kFullWorldVariable = "CONCORD_FULL_WORLD";
inline constexpr const char* kSlotVariable = "CONCORD_SLOT";

// What a rank is doing; each has a time limit of its own (core/base/heartbeat.h).
enum class RankPhase : int64_t { start_up, training, evaluating, saving, writing, ending };
inline constexpr size_t kRankPhases = 6;
const char* to_string(RankPhase phase);

// One rank's part. Times are nanoseconds of CLOCK_MONOTONIC, which all processes of a machine share.
struct RankStatus {
  static constexpr size_t kTextBytes = 3 << 10;
  static constexpr size_t kPathBytes = 1 << 10;

  std::atomic<int64_t> phase = 0;         // a RankPhase
  std::atomic<int64_t> beats = 0;         // grows with every sign of life
  std::atomic<int64_t> limit = 0;         // nanoseconds until the next beat is overdue; 0: no limit
  std::atomic<int64_t> step = 0;          // steps done
  std::atomic<int64_t> last_step_at = 0;  // when
  std::atomic<int64_t> saved_step = -1;   // of the newest complete checkpoint, in memory or on the disk; -1: none
  std::atomic<int64_t> kept_step = -1;    // of the newest one on the disk that this job has written; -1: none
  std::atomic<int64_t> writes_step = -1;  // step of the checkpoint in progress, see |writes_to|; -1: none
  std::atomic<int64_t> replaced = 0;      // how often its process has ended because it was slow
  std::atomic<int64_t> asked = 0;         // the launcher's question: where are you? Answered when |answered| is equal
  std::atomic<int64_t> answered = 0;
  std::array<char, kTextBytes> answer{};  // pack_positions (core/mesh/watch/flight_recorder.h), with a zero at its end
  std::array<char, kPathBytes> writes_to{};  // a folder that exists once the checkpoint is complete; zero at its end
};

class JobBoard {
 public:
  static constexpr int kMaxFaults = 4096;

  explicit JobBoard(int ranks);  // new memory, of this machine's ranks. Throws std::system_error
  ~JobBoard();
  JobBoard(JobBoard&& other) noexcept;
  JobBoard& operator=(JobBoard&&) = delete;

  // The launcher's, where kBoardVariable names one; nothing where there is none or it is not a board.
  static std::optional<JobBoard> of_launcher();

  std::string variable() const;  // for kBoardVariable
  int ranks() const;
  RankStatus& rank(int index);
  const RankStatus& rank(int index) const;
  int64_t newest(const std::atomic<int64_t> RankStatus::* field) const;  // the largest of all ranks
  void clear();  // for a new attempt: what ranks do. What is saved and which faults have happened stays
  // Call after the ranks have exited: notes checkpoints that are complete although the rank that wrote them was killed
  // before it noted them.
  void note_complete_checkpoints();

  // Faults that were requested (trainer/health/faults.h) happen once, also in later attempts: whether |fault| is new.
  bool begin_fault(int fault);
  bool has_begun(int fault) const;
  int64_t created_at() const;  // nanoseconds of CLOCK_MONOTONIC: the begin of the job, in every attempt

 private:
  struct Layout;
  JobBoard(UniqueFd fd, Layout* memory, size_t bytes);

  UniqueFd fd_;
  Layout* memory_ = nullptr;
  size_t bytes_ = 0;
};

int64_t monotonic_nanoseconds();

}  // namespace concord
