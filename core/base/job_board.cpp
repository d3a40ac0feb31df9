#include "core/base/job_board.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <new>
#include <system_error>
#include <utility>

namespace concord {
namespace {

constexpr uint64_t kMagic = 0x33304452424e4f43;  // "CONBRD03": distinguishes boards of this version
constexpr int kMaxRanks = 4096;

static_assert(std::atomic<int64_t>::is_always_lock_free);

void* map(int fd, size_t bytes) {
  void* memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  return memory == MAP_FAILED ? nullptr : memory;
}

}  // namespace

struct JobBoard::Layout {
  uint64_t magic = kMagic;
  int64_t ranks = 0;
  int64_t created_at = 0;
  std::array<std::atomic<uint8_t>, kMaxFaults> faults{};
  RankStatus notes[1];  // |ranks| of them

  static size_t bytes(int64_t ranks) { return sizeof(Layout) + static_cast<size_t>(ranks - 1) * sizeof(RankStatus); }
};

const char* to_string(RankPhase phase) {
  switch (phase) {
    case RankPhase::start_up: return "start-up";
    case RankPhase::training: return "training";
    case RankPhase::evaluating: return "evaluation";
    case RankPhase::saving: return "saving";
    case RankPhase::writing: return "writing";
    case RankPhase::ending: return "the end";
  }
  return "?";
}

JobBoard::JobBoard(int ranks) : bytes_(Layout::bytes(ranks)) {
  fd_ = UniqueFd(::memfd_create("concord-board", MFD_CLOEXEC));
  if (fd_.get() < 0 || ::ftruncate(fd_.get(), static_cast<off_t>(bytes_)) != 0) {
    throw std::system_error(errno, std::generic_category(), "cannot create shared memory");
  }
  void* memory = map(fd_.get(), bytes_);
  if (memory == nullptr) throw std::system_error(errno, std::generic_category(), "cannot map shared memory");
  memory_ = new (memory) Layout;
  memory_->ranks = ranks;
  memory_->created_at = monotonic_nanoseconds();
  for (int i = 1; i < ranks; ++i) new (&memory_->notes[i]) RankStatus;
}

JobBoard::JobBoard(UniqueFd fd, Layout* memory, size_t bytes) : fd_(std::move(fd)), memory_(memory), bytes_(bytes) {}

JobBoard::JobBoard(JobBoard&& other) noexcept
    : fd_(std::move(other.fd_)), memory_(std::exchange(other.memory_, nullptr)), bytes_(other.bytes_) {}

JobBoard::~JobBoard() {
  if (memory_ != nullptr) ::munmap(memory_, bytes_);
}

std::optional<JobBoard> JobBoard::of_launcher() {
  const char* text = std::getenv(kBoardVariable);
  if (text == nullptr) return std::nullopt;
  int process = 0, number = -1, end = 0;
  if (std::sscanf(text, "%d:%d%n", &process, &number, &end) != 2 || text[end] != 0) return std::nullopt;
  // Opens the launcher's descriptor through /proc, so that ranks and their children inherit none. The number may refer
  // to another file by now.
  UniqueFd own(::open(fmt::format("/proc/{}/fd/{}", process, number).c_str(), O_RDWR | O_CLOEXEC | O_NONBLOCK));
  struct stat info{};
  if (own.get() < 0 || ::fstat(own.get(), &info) != 0 || !S_ISREG(info.st_mode)) return std::nullopt;
  const auto size = static_cast<size_t>(info.st_size);
  if (size < Layout::bytes(1) || size > Layout::bytes(kMaxRanks)) return std::nullopt;
  auto* memory = static_cast<Layout*>(map(own.get(), size));
  if (memory == nullptr) return std::nullopt;
  if (memory->magic != kMagic || memory->ranks < 1 || Layout::bytes(memory->ranks) != size) {
    ::munmap(memory, size);
    return std::nullopt;
  }
  return JobBoard(std::move(own), memory, size);
}

std::string JobBoard::variable() const { return fmt::format("{}:{}", ::getpid(), fd_.get()); }
int JobBoard::ranks() const { return static_cast<int>(memory_->ranks); }
RankStatus& JobBoard::rank(int index) { return memory_->notes[index]; }
const RankStatus& JobBoard::rank(int index) const { return memory_->notes[index]; }

int64_t JobBoard::newest(const std::atomic<int64_t> RankStatus::* field) const {
  int64_t largest = -1;
  for (int i = 0; i < ranks(); ++i) largest = std::max(largest, (rank(i).*field).load());
  return largest;
}

void JobBoard::clear() {
  for (int i = 0; i < ranks(); ++i) {
    RankStatus& notes = rank(i);
    for (auto* field :
         {&notes.phase, &notes.beats, &notes.limit, &notes.step, &notes.last_step_at, &notes.asked, &notes.answered}) {
      *field = 0;
    }
  }
}

void JobBoard::note_complete_checkpoints() {
  for (int i = 0; i < ranks(); ++i) {
    RankStatus& notes = rank(i);
    const int64_t step = notes.writes_step;
    if (step <= notes.kept_step || ::access(notes.writes_to.data(), F_OK) != 0) continue;
    notes.kept_step = step;
    notes.saved_step = std::max<int64_t>(notes.saved_step, step);
  }
}

bool JobBoard::begin_fault(int fault) {
  return fault >= 0 && fault < kMaxFaults && memory_->faults[static_cast<size_t>(fault)].exchange(1) == 0;
}

bool JobBoard::has_begun(int fault) const {
  return fault >= 0 && fault < kMaxFaults && memory_->faults[static_cast<size_t>(fault)] != 0;
}

int64_t JobBoard::created_at() const { return memory_->created_at; }

int64_t monotonic_nanoseconds() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

}  // namespace concord
