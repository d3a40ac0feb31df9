// The memory that the ranks of one communicator share: its layout, its making, its mapping.
//
// One anonymous file (memfd) holds everything; it has no name anywhere, so nothing is left behind however a process
// dies. All its pages are reserved when it is made: lack of memory is an error there and never a SIGBUS later. The
// layout is a pure function of the number of ranks: no size or offset is ever read from shared memory.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "backends/shm/process.h"
#include "platform/abi/status.h"
#include "platform/base/unique_fd.hpp"

namespace concord::shm {

// Two cache lines: neighbours are fetched in pairs on some processors.
inline constexpr int64_t kLineBytes = 128;
inline constexpr int32_t kMaxWorld = 1024;

// The first failure of a communicator. |verdict| is 0 or the status with the number of the rank that saw it; the rank
// that sets it writes |text| and then |text_ready|.
struct alignas(kLineBytes) FailureRecord {
  std::atomic<uint64_t> verdict;
  std::atomic<uint32_t> text_ready;
  char text[1024];
};

// Written by its rank, polled by all others: how far the rank is, and which operations its last two were, so that
// ranks can compare their calls.
struct alignas(kLineBytes) Progress {
  std::atomic<uint64_t> step;
  std::atomic<uint64_t> call[2][2];
};

// How a rank is woken, and what it does.
struct alignas(kLineBytes) Bedside {
  std::atomic<uint32_t> doorbell;  // futex; changes at every ring
  std::atomic<uint32_t> departed;  // 1: the rank has destroyed its communicator
  std::atomic<uint64_t> wish;      // 0: awake; kAnyNews; else the step that all ranks must reach
  std::atomic<uint64_t> activity;  // first word of the running call; 0 outside of operations
};

// Identity of a rank. Written in set-up, constant afterwards.
struct alignas(kLineBytes) Member {
  ProcessIdentity process;
  ProcessorSet processors;
};

// One direction between two ranks: a ring of bytes. |written| belongs to the sender, |taken| to the receiver.
struct ChannelControl {
  alignas(kLineBytes) std::atomic<uint64_t> written;
  alignas(kLineBytes) std::atomic<uint64_t> taken;
};

static_assert(std::atomic<uint64_t>::is_always_lock_free && std::atomic<uint32_t>::is_always_lock_free,
              "locks inside an atomic would be private to a process");

// The layout of the segment. Offsets are from its start, in bytes.
struct Geometry {
  explicit Geometry(int32_t world);

  int32_t world;
  int64_t slot_bytes;     // one of a rank's two staging slots
  int64_t channel_bytes;  // the ring of one channel, a multiple of 16
  int64_t progress_offset;
  int64_t bedside_offset;
  int64_t member_offset;
  int64_t slots_offset;
  int64_t channels_offset;
  int64_t total_bytes;
};

// A mapped segment. Ranks that are threads of one process share one mapping.
class Segment {
 public:
  // Makes and maps a new one, all zeros; |out_file| is for the other ranks. OUT_OF_MEMORY if its pages cannot be
  // reserved.
  static std::shared_ptr<Segment> create(int32_t world, UniqueFd* out_file);
  // Maps what another rank made and passed on; |file| may be closed afterwards.
  static std::shared_ptr<Segment> adopt(const UniqueFd& file, int32_t world);

  ~Segment();
  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;

  const Geometry& geometry() const { return geometry_; }
  FailureRecord& failure() const { return at<FailureRecord>(0); }
  Progress& progress(int32_t rank) const { return at<Progress>(geometry_.progress_offset, rank); }
  Bedside& bedside(int32_t rank) const { return at<Bedside>(geometry_.bedside_offset, rank); }
  Member& member(int32_t rank) const { return at<Member>(geometry_.member_offset, rank); }
  // Slot 0 or 1 of |rank|.
  std::byte* slot(int32_t rank, uint64_t parity) const;
  // From a rank to another one.
  ChannelControl& channel(int32_t from, int32_t to) const;
  std::byte* ring(int32_t from, int32_t to) const;

 private:
  Segment(const UniqueFd& file, int32_t world);
  static std::shared_ptr<Segment> map(const UniqueFd& file, int32_t world);

  template <class Type>
  Type& at(int64_t offset, int32_t index = 0) const {
    return *reinterpret_cast<Type*>(base_ + offset + index * static_cast<int64_t>(sizeof(Type)));
  }
  int64_t channel_offset(int32_t from, int32_t to) const;

  Geometry geometry_;
  std::byte* base_ = nullptr;
};

}  // namespace concord::shm
