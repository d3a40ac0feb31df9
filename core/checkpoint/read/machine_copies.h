// Merges the folders of a replicated save (core/checkpoint/write/replication.h), of which each machine of a job has one
// with a part of the data, into an ordinary checkpoint.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/checkpoint/write/save_chunks.h"
#include "core/mesh/parallel_context.h"

namespace concord {

// The content of a folder of a replicated save: the data of machine |machine| of |machines| and of the one before it.
struct MachineCopy {
  int64_t machine = -1;  // -1: the folder does not exist, or does not belong to a replicated save
  int64_t machines = 0;
  int64_t digest = 0;  // tensor_digest() of the manifest, identical in all folders of the save

  bool operator==(const MachineCopy&) const = default;
};

inline constexpr const char* kMachineFile = "machine.json";
std::string machine_json(size_t machine, size_t machines);  // content of kMachineFile
// Throws ConfigError if the manifest or kMachineFile is damaged.
MachineCopy read_machine_copy(const std::string& folder);

// Returns the indices in |copies| of those that belong to one save and together have all of its data; empty if there is
// no such save. Pure.
std::vector<size_t> complete_copies(std::span<const MachineCopy> copies);

// Merges |folder| of all machines, which may be missing on some of them, and writes the checkpoint to |target| on each;
// removes existing contents first. Returns false, without writing, unless the machines together have all of it. Throws
// ConfigError or std::runtime_error, the same on all ranks, if a copy is damaged: every byte is compared with its
// checksum. All ranks call it. Waits: for all ranks. Throws Error if one is lost. Threads: the thread that computes.
bool merge_copies(const std::string& folder, const std::string& target, ParallelContext& job,
                  int64_t chunk_bytes = kChunkBytes);

}  // namespace concord
