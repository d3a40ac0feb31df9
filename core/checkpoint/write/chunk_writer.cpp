#include "core/checkpoint/write/chunk_writer.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>

#include "core/base/threads.h"
#include "core/checkpoint/write/staging_buffers.h"

namespace concord {

void ChunkWriter::read_after(const Stream& stream) {
  complete_.emplace(device_);
  complete_->record(stream);
}

void ChunkWriter::add_copy(SaveChunk chunk) {
  if (queue_.reserve(chunk.bytes)) push_reserved(std::move(chunk));
}

void ChunkWriter::push_reserved(SaveChunk chunk) {
  chunk.reserved = chunk.bytes;
  std::vector<SaveChunk> one(1);
  one.front() = std::move(chunk);
  queue_.push(std::move(one));
}

void ChunkWriter::pass_on(std::vector<SaveChunk> chunks, bool copies) {
  if (copies) chunks = copy_to_host(std::move(chunks));
  queue_.push(std::move(chunks));
  queue_.close();
}

// Copies and passes on the chunks without an owner; returns the others.
std::vector<SaveChunk> ChunkWriter::copy_to_host(std::vector<SaveChunk> chunks) {
  const auto end_of_owned = std::stable_partition(chunks.begin(), chunks.end(),
                                                  [](const SaveChunk& chunk) { return chunk.owner != nullptr; });
  std::optional<PinnedStagingBuffers> landing;
  auto ahead = end_of_owned;  // the next chunk to fetch
  for (auto chunk = end_of_owned; chunk != chunks.end(); ++chunk) {
    if (!queue_.reserve(chunk->bytes)) return {};  // abandoned
    if (!chunk->on_host && !landing) landing.emplace(device_, *complete_, chunk_bytes_);
    for (; landing && landing->under_way() < 2 && ahead != chunks.end(); ++ahead) {
      if (!ahead->on_host) landing->begin(*ahead);
    }
    const std::shared_ptr<std::byte[]> host(new std::byte[static_cast<size_t>(chunk->bytes)]);
    std::memcpy(host.get(), chunk->on_host ? chunk->data : landing->finish(), static_cast<size_t>(chunk->bytes));
    chunk->data = host.get();
    chunk->on_host = true;
    chunk->owner = host;
    push_reserved(std::move(*chunk));
  }
  chunks.erase(end_of_owned, chunks.end());
  return chunks;
}

void ChunkWriter::write(int64_t threads) {
  run_on_threads(threads, [this] {
    try {
      write_chunks();
    } catch (...) {
      queue_.abandon();
      throw;
    }
  });
}

void ChunkWriter::write_chunks() {
  std::optional<PinnedStagingBuffers> landing;
  while (const std::optional<SaveChunk> chunk = queue_.pop()) {
    if (!chunk->on_host && !landing) landing.emplace(device_, *complete_, chunk_bytes_);
    if (!chunk->on_host) landing->begin(*chunk);
    files_.write(*chunk, chunk->on_host ? chunk->data : landing->finish());
    queue_.release(chunk->reserved);
  }
}

}  // namespace concord
