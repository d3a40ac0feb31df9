// Replicated saves of a job on several machines without a shared folder, for in-memory checkpoints. Every machine has
// its own folder, with a file for the part of each of its ranks and of each rank of the previous machine: after the
// loss of one machine all parts still exist. A part contains what its rank writes in other saves (save_job.h), in the
// same chunks.
//
//   checkpoint-20/part-3-of-8                           chunks of rank 3
//   checkpoint-20/model.safetensors.head                head of the file, and its size
//   checkpoint-20/config.json, ...                      the other files of a checkpoint, on every machine
//   checkpoint-20/id-0123456789abcdef                   identical on all machines, unique to this save
//
// To resume from it the machines send each other the parts they lack, and each assembles an ordinary checkpoint folder.
//
// All ranks make the same calls and wait for each other. Throws std::runtime_error, the same on all ranks, for file
// system errors; Error if a rank is lost. Threads: the thread that computes.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/checkpoint/write/global_save_plan.h"
#include "core/mesh/parallel_context.h"

namespace concord {

// |folder| is this machine's; it is complete on all machines when this returns. On an error it does not exist.
// |previous| as for SaveJob. Uses two chunks of host memory.
std::shared_ptr<const GlobalSavePlan> save_replicated(const std::string& folder, std::span<Parameter* const> parameters,
                                                      ParallelContext& job, HfSaveOptions options,
                                                      std::shared_ptr<const GlobalSavePlan> previous);

using FolderListing = std::map<std::string, uint64_t>;  // names and bytes of files
// Returns the id of the save of which the machines together have all parts; nullopt if there is none.
std::optional<std::string> find_complete_save(std::span<const FolderListing> machines);

// Writes the content of the part |path| to the files of the folder |target|, which have their full sizes. Called by one
// rank. Throws if the part does not fit or its checksum is wrong, possibly after some of it was written.
void apply_part(const std::string& path, const std::string& target);

// Sends every machine the files of |folder| that it lacks, |chunk_bytes| at a time. Returns false unless the machines
// together have all files.
bool fetch_missing_shards(const std::string& folder, ParallelContext& job, int64_t chunk_bytes = kChunkBytes);
// Assembles what SaveJob would have written, without a manifest, in |target| on every machine; removes existing
// contents first.
void assemble_parts(const std::string& folder, const std::string& target, ParallelContext& job);

}  // namespace concord
