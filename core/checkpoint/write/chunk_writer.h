// Moves the chunks of a save from where they are to its files: the thread that computes passes them on, copied to host
// memory if they are about to change, and threads in the background write them. Needs no libtorch.
//
// Threads: pass_on() one; write() another one, at the same time; abandon() any.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "core/checkpoint/write/save_chunks.h"
#include "core/checkpoint/write/save_files.h"
#include "platform/cpp/event.hpp"

namespace concord {

class ChunkWriter {
 public:
  // |files| outlives it. Chunks on the device have at most |chunk_bytes|; copies in host memory take |memory_limit|
  // bytes together, or one chunk.
  ChunkWriter(SaveFiles& files, const Device& device, int64_t chunk_bytes, int64_t memory_limit)
      : files_(files), device_(device), chunk_bytes_(chunk_bytes), queue_(memory_limit) {}

  // Declares that chunks on the device are complete after the work that |stream| has now. Call it before all others if
  // there are such chunks.
  void read_after(const Stream& stream);
  // Passes all chunks of the save on to write(). With |copies|, memory without an owner may change afterwards. Waits:
  // with |copies| until what exceeds the memory limit is written.
  void pass_on(std::vector<SaveChunk> chunks, bool copies);
  // Writes what pass_on() has passed on or will, on |threads| threads. Throws what the first of them throws; the others
  // then stop. Waits: until everything is written.
  void write(int64_t threads);
  // Makes write() and pass_on() return early.
  void abandon() { queue_.abandon(); }

 private:
  std::vector<SaveChunk> copy_to_host(std::vector<SaveChunk> chunks);
  void write_chunks();

  SaveFiles& files_;
  const Device device_;
  const int64_t chunk_bytes_;
  ChunkQueue queue_;
  std::optional<Event> complete_;
};

}  // namespace concord
