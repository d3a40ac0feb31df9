// The files of a save in its temporary folder, as one rank writes them: bytes at their places, with checksums.
//
// Threads: write() any, at the same time; everything else one at a time. Errors: std::runtime_error for what the file
// system says.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "core/checkpoint/manifest.h"
#include "core/checkpoint/write/save_chunks.h"
#include "core/checkpoint/write/save_plan.h"
#include "core/mesh/machines.h"
#include "core/safetensors/writer.h"

namespace concord {

// What the ranks together have written.
struct WrittenTensors {
  uint64_t bytes = 0;
  std::vector<uint32_t> checksums;  // by number of the tensor in the plan
};

class SaveFiles {
 public:
  // |plan| outlives it.
  SaveFiles(std::string folder, const SavePlan& plan);

  // One rank: all files in their sizes, with their headers.
  void create();
  // The elements of |chunk|, whose bytes are at |data| on the host.
  void write(const SaveChunk& chunk, const std::byte* data);
  // Makes what this rank wrote durable and leaves its part of the checksums in the folder.
  void finish(int64_t rank);

  // The same rank, after finish() of all |ranks|: reads and removes what they left. Throws where bytes are missing.
  WrittenTensors collect(const RankRange& ranks) const;
  // Of the tensors, and of their files' headers.
  void describe(const WrittenTensors& written, Manifest* manifest) const;

 private:
  safetensors::FilePart& file(size_t set, size_t index);

  std::string folder_;
  const SavePlan& plan_;
  std::mutex mutex_;                                                        // of files_ while they are opened
  std::vector<std::vector<std::unique_ptr<safetensors::FilePart>>> files_;  // by set; opened on first use
  std::vector<std::atomic<uint32_t>> shares_;                               // of each tensor's checksum, by number
  std::atomic<uint64_t> written_ = 0;
};

}  // namespace concord
