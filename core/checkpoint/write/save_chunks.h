// The data that a rank writes in a save, in chunks that threads pass to each other, in bounded memory.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "core/parallel/shard_spec.h"
#include "platform/base/thread_safety.hpp"

namespace concord {

inline constexpr int64_t kChunkBytes = 16 << 20;  // default of HfSaveOptions::chunk_bytes

// Elements that are contiguous in memory, and their destination.
struct SaveChunk {
  size_t set = 0;              // index in the plan
  std::vector<ShardRun> runs;  // |local| is relative to |data|
  const std::byte* data = nullptr;
  const void* allocation = nullptr;  // start of the storage that contains |data|; two storages are two allocations
  int64_t element_size = 0;
  int64_t bytes = 0;
  bool on_host = true;
  std::shared_ptr<const void> owner = {};  // keeps |data| alive; null: the caller does
  int64_t reserved = 0;                    // bytes that count towards ChunkQueue's limit
  bool is_copy = false;                    // of another machine's data (replication.h)
};

// One copy of a plan of copies into a buffer.
struct ChunkCopy {
  const std::byte* from = nullptr;
  int64_t to = 0;  // offset in the buffer, in bytes
  int64_t bytes = 0;
  bool operator==(const ChunkCopy&) const = default;
};

// Returns the copies of all chunks on a device into one buffer of |out_bytes| bytes. Consecutive chunks of an
// allocation are one copy. No copy crosses allocations, even if they are adjacent in memory: CUDA rejects that. Copies
// start at multiples of |alignment|. Sets |out_offsets| to the offset of each chunk in the buffer, -1 for chunks on the
// host.
std::vector<ChunkCopy> plan_copies(std::span<const SaveChunk> chunks, int64_t alignment, int64_t* out_bytes,
                                   std::vector<int64_t>* out_offsets);

// Chunks in transit from the training thread to those that write. Threads: any.
class ChunkQueue {
 public:
  explicit ChunkQueue(int64_t limit) : limit_(limit) {}

  // Call before |bytes| are copied for a chunk. Waits: until the copies that are not yet written leave room for them,
  // or there are none. Returns false if the save was abandoned.
  bool reserve(int64_t bytes);
  void push(std::vector<SaveChunk> chunks);
  void close();  // no more chunks will be pushed

  // Waits: for the next chunk. Returns nullopt if there are no more, or the save was abandoned.
  std::optional<SaveChunk> pop();
  void release(int64_t bytes);  // call after a chunk is written and freed

  void abandon();  // makes all waits return

 private:
  const int64_t limit_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<SaveChunk> chunks_ CONCORD_GUARDED_BY(mutex_);
  int64_t reserved_ CONCORD_GUARDED_BY(mutex_) = 0;
  bool is_closed_ CONCORD_GUARDED_BY(mutex_) = false;
  bool is_abandoned_ CONCORD_GUARDED_BY(mutex_) = false;
};

}  // namespace concord
