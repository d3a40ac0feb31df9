#include "core/checkpoint/write/save_chunks.h"

#include <iterator>
#include <utility>

namespace concord {

std::vector<ChunkCopy> plan_copies(std::span<const SaveChunk> chunks, int64_t alignment, int64_t* out_bytes,
                                   std::vector<int64_t>* out_offsets) {
  std::vector<ChunkCopy> copies;
  const void* allocation = nullptr;  // allocation of the last copy
  int64_t used = 0;
  out_offsets->assign(chunks.size(), -1);
  for (size_t i = 0; i < chunks.size(); ++i) {
    const SaveChunk& chunk = chunks[i];
    if (chunk.on_host) continue;
    const bool follows =
        !copies.empty() && chunk.allocation == allocation && chunk.data == copies.back().from + copies.back().bytes;
    if (!follows) {
      used = (used + alignment - 1) / alignment * alignment;
      copies.push_back({chunk.data, used, 0});
      allocation = chunk.allocation;
    }
    (*out_offsets)[i] = used;
    copies.back().bytes += chunk.bytes;
    used += chunk.bytes;
  }
  *out_bytes = used;
  return copies;
}

bool ChunkQueue::reserve(int64_t bytes) {
  std::unique_lock lock(mutex_);
  changed_.wait(
      lock, [&]() CONCORD_REQUIRES(mutex_) { return is_abandoned_ || reserved_ == 0 || reserved_ + bytes <= limit_; });
  if (is_abandoned_) return false;
  reserved_ += bytes;
  return true;
}

void ChunkQueue::push(std::vector<SaveChunk> chunks) {
  {
    const std::lock_guard lock(mutex_);
    chunks_.insert(chunks_.end(), std::make_move_iterator(chunks.begin()), std::make_move_iterator(chunks.end()));
  }
  changed_.notify_all();
}

void ChunkQueue::close() {
  {
    const std::lock_guard lock(mutex_);
    is_closed_ = true;
  }
  changed_.notify_all();
}

std::optional<SaveChunk> ChunkQueue::pop() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&]() CONCORD_REQUIRES(mutex_) { return is_abandoned_ || is_closed_ || !chunks_.empty(); });
  if (is_abandoned_ || chunks_.empty()) return std::nullopt;
  SaveChunk chunk = std::move(chunks_.front());
  chunks_.pop_front();
  return chunk;
}

void ChunkQueue::release(int64_t bytes) {
  {
    const std::lock_guard lock(mutex_);
    reserved_ -= bytes;
  }
  changed_.notify_all();
}

void ChunkQueue::abandon() {
  {
    const std::lock_guard lock(mutex_);
    is_abandoned_ = true;
  }
  changed_.notify_all();
}

}  // namespace concord
