// Memory that a launcher shares with the ranks it starts: the current phase of each rank, and its progress.
//
// The ranks write and the launcher reads, without locks, so that a rank that is stopped or killed in the middle blocks
// no one. The memory has no name in the file system: only processes of this user can reach it, through the launcher,
// and it is freed when they have exited. It outlives a rank that dies and is passed to the rank that replaces it.
//
// Example:
//   JobBoard board(4);                                        // in the launcher
//   setenv(kBoardVariable, board.variable().c_str(), 1);
//   std::optional<JobBoard> same = JobBoard::of_launcher();   // in a rank
//   if (same) same->rank(0).beats += 1;
//
// Threads: any; each field is atomic by itself.
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
// A folder in memory, for this user only, that outlives ranks like the board; only with max_restarts. The folder is
// created in /dev/shm, or in CONCORD_MEMORY_DIR if set.
inline constexpr const char* kMemoryFolderVariable = "CONCORD_MEMORY_FOLDER";
inline constexpr const char* kMemoryDirVariable = "CONCORD_MEMORY_DIR";
// The name of a job with several launchers, identical for all of them and in every attempt.
inline constexpr const char* kJobVariable = "CONCORD_JOB";
// The number of ranks that the arguments are for, if the job continues with fewer; and the index of the rank's device
// on the machine, if it differs from LOCAL_RANK.
inline constexpr const char* kFullWorldVariable = "CONCORD_FULL_WORLD";
inline constexpr const char* kSlotVariable = "CONCORD_SLOT";

// The phase of a rank; each has its own time limit (core/base/heartbeat.h).
enum class RankPhase : int64_t { start_up, training, evaluating, saving, writing, ending };
inline constexpr size_t kRankPhases = 6;
const char* to_string(RankPhase phase);

// The status of one rank. Times are nanoseconds of CLOCK_MONOTONIC, which all processes of a machine share.
struct RankStatus {
  static constexpr size_t kTextBytes = 3 << 10;
  static constexpr size_t kPathBytes = 1 << 10;

  std::atomic<int64_t> phase = 0;         // a RankPhase
  std::atomic<int64_t> beats = 0;         // grows with every sign of life
  std::atomic<int64_t> limit = 0;         // nanoseconds until the next beat is overdue; 0: no limit
  std::atomic<int64_t> step = 0;          // steps done
  std::atomic<int64_t> last_step_at = 0;  // time of the last completed step
  std::atomic<int64_t> saved_step = -1;   // latest complete checkpoint, in memory or on disk; -1: none
  std::atomic<int64_t> kept_step = -1;    // latest checkpoint that this job has written to disk; -1: none
  std::atomic<int64_t> writes_step = -1;  // step of the checkpoint in progress, see |writes_to|; -1: none
  std::atomic<int64_t> replaced = 0;      // number of times that its process was replaced because it was slow
  std::atomic<int64_t> asked = 0;         // set by the launcher to request the positions; done when |answered| is equal
  std::atomic<int64_t> answered = 0;
  std::array<char, kTextBytes> answer{};     // pack_positions (core/mesh/watch/flight_recorder.h), zero-terminated
  std::array<char, kPathBytes> writes_to{};  // folder that exists once the checkpoint is complete; zero-terminated
};

class JobBoard {
 public:
  static constexpr int kMaxFaults = 4096;

  explicit JobBoard(int ranks);  // new memory for the ranks of this machine. Throws std::system_error
  ~JobBoard();
  JobBoard(JobBoard&& other) noexcept;
  JobBoard& operator=(JobBoard&&) = delete;

  // Opens the launcher's board that kBoardVariable names. Returns nullopt if the variable is not set or does not name a
  // board.
  static std::optional<JobBoard> of_launcher();

  std::string variable() const;  // for kBoardVariable
  int ranks() const;
  RankStatus& rank(int index);
  const RankStatus& rank(int index) const;
  int64_t newest(const std::atomic<int64_t> RankStatus::* field) const;  // maximum over all ranks
  void clear();  // resets the phases for a new attempt; keeps checkpoints and faults
  // Call after the ranks have exited: records checkpoints that are complete although the rank that wrote them was
  // killed before it could record them.
  void note_complete_checkpoints();

  // Marks |fault| as begun and returns whether it was new. Requested faults (trainer/health/faults.h) happen once, over
  // all attempts.
  bool begin_fault(int fault);
  bool has_begun(int fault) const;
  int64_t created_at() const;  // nanoseconds of CLOCK_MONOTONIC: start of the job, in every attempt

 private:
  struct Layout;
  JobBoard(UniqueFd fd, Layout* memory, size_t bytes);

  UniqueFd fd_;
  Layout* memory_ = nullptr;
  size_t bytes_ = 0;
};

int64_t monotonic_nanoseconds();

}  // namespace concord
