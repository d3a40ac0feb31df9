// The files of a save in its temporary folder, as written by one rank: bytes at their offsets, with checksums.
//
// Threads: any for write(), concurrently; otherwise one at a time. Throws std::runtime_error for file system errors.
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

// The data that several ranks together have written.
struct WrittenTensors {
  uint64_t bytes = 0;
  std::vector<uint32_t> shares;  // shares of the tensors' checksums (crc32_share), by index of the tensor in the plan

  void add(const WrittenTensors& more);
};

class SaveFiles {
 public:
  // |plan| must outlive this object.
  SaveFiles(std::string folder, const SavePlan& plan);

  // Creates all files in their full sizes, with their headers. With |reserves| for all of their data; otherwise they
  // are sparse. Called by one rank.
  void create(bool reserves = true);
  // Writes the elements of |chunk|, whose bytes are at |data| on the host. The rank that sent a copy counts it.
  void write(const SaveChunk& chunk, const std::byte* data);
  // Makes this rank's data durable and writes its part of the checksums to the folder.
  void finish(int64_t rank);

  // Called by one rank after finish() of all |ranks|: reads and removes the checksums that they left.
  WrittenTensors collect(const RankRange& ranks) const;
  // Adds the tensors and the headers of their files to |manifest|. Throws if bytes are missing.
  void describe(const WrittenTensors& written, Manifest* manifest) const;

 private:
  safetensors::FilePart& file(size_t set, size_t index);

  std::string folder_;
  const SavePlan& plan_;
  std::mutex mutex_;                                                        // guards the opening of files_
  std::vector<std::vector<std::unique_ptr<safetensors::FilePart>>> files_;  // by set; opened on first use
  std::vector<std::atomic<uint32_t>> shares_;  // shares of the tensors' checksums, by index
  std::atomic<uint64_t> written_ = 0;
};

}  // namespace concord
