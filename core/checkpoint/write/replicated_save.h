// Saves of a job on several machines without a folder that all of them see, for checkpoints in memory. Every machine
// has a folder of its own, with a file for the part of each of its ranks, and for that of each rank of the machine
// before it: after the loss of one machine all parts still exist. A part has what its rank writes in other saves
// (save_job.h), in the same chunks.
//
//   checkpoint-20/part-3-of-8                           chunks of rank 3
//   checkpoint-20/model.safetensors.head                what the file begins with, and its size
//   checkpoint-20/config.json, ...                      what else a checkpoint has, on every machine
//   checkpoint-20/id-0123456789abcdef                   the same on all machines, and of this save alone
//
// To go on from it the machines send each other what they lack, and each makes a folder of it as other saves have it.
//
// All ranks make the same calls and wait for each other. Errors: std::runtime_error, the same on all ranks, for what
// the file systems say; Error where a rank is lost. Threads: the one that computes.
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

// |folder| is this machine's; it is complete, everywhere, when this returns. On an error nothing has that name.
// |previous| as of SaveJob. Bytes of host memory: two chunks.
std::shared_ptr<const GlobalSavePlan> save_replicated(const std::string& folder, std::span<Parameter* const> parameters,
                                                      ParallelContext& job, HfSaveOptions options,
                                                      std::shared_ptr<const GlobalSavePlan> previous);

using FolderListing = std::map<std::string, uint64_t>;  // of files: names and bytes
// The id of the save of which the machines have all parts together; nothing where there is none.
std::optional<std::string> find_complete_save(std::span<const FolderListing> machines);

// Writes what the part |path| has into the files of the folder |target|, which have their full sizes. By one rank
// alone; a part that does not fit, or whose checksum is wrong, is refused with the reason, maybe after some of it was
// written.
void apply_part(const std::string& path, const std::string& target);

// Gives every machine the files of |folder| that it lacks, |chunk_bytes| at a time. Returns false unless the machines
// have all files together.
bool fetch_missing_shards(const std::string& folder, ParallelContext& job, int64_t chunk_bytes = kChunkBytes);
// Makes of them what SaveJob would have written, without a manifest, in |target| of every machine; what is there is
// removed first.
void assemble_parts(const std::string& folder, const std::string& target, ParallelContext& job);

}  // namespace concord
