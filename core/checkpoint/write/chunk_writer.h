// Moves the chunks of a save to its files: the training thread passes them on, copied to host memory if they are about
// to change, and background threads write them. Independent of libtorch.
//
// Threads: one for pass_on(); another one for write(), concurrently; any for abandon().
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
  // |files| must outlive this object. Chunks on the device have at most |chunk_bytes|; copies in host memory take at
  // most |memory_limit| bytes in total, or one chunk.
  ChunkWriter(SaveFiles& files, const Device& device, int64_t chunk_bytes, int64_t memory_limit)
      : files_(files), device_(device), chunk_bytes_(chunk_bytes), queue_(memory_limit) {}

  // Declares that chunks on the device are complete after the current work of |stream|. Call first if there are such
  // chunks.
  void read_after(const Stream& stream);
  // Passes a copy of another machine's data, on the host and with an owner, to write(). Call before pass_on(). Waits:
  // until everything beyond the memory limit is written.
  void add_copy(SaveChunk chunk);
  // Passes all other chunks of the save to write(). With |copies|, memory without an owner may change afterwards.
  // Waits: with |copies| until everything beyond the memory limit is written.
  void pass_on(std::vector<SaveChunk> chunks, bool copies);
  // Writes the chunks of pass_on(), before or after this call, with |threads| threads. Rethrows the first error of a
  // thread; the others then stop. Waits: until everything is written.
  void write(int64_t threads);
  // Makes write() and pass_on() return early.
  void abandon() { queue_.abandon(); }

 private:
  std::vector<SaveChunk> copy_to_host(std::vector<SaveChunk> chunks);
  void push_reserved(SaveChunk chunk);
  void write_chunks();

  SaveFiles& files_;
  const Device device_;
  const int64_t chunk_bytes_;
  ChunkQueue queue_;
  std::optional<Event> complete_;
};

}  // namespace concord
