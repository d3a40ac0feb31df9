// Copies of a save's data on other machines: in-memory checkpoints of a job whose machines share no folder
// (HfSaveOptions::replicated). Each machine has its own folder, with all files of an ordinary checkpoint and its
// manifest. In the tensors the folder has the data of the machine's own ranks and of the ranks of the previous machine;
// the rest are holes, which take no space. So after the loss of one machine the others have everything
// (core/checkpoint/read/machine_copies.h).
//
// All ranks make the same calls. Throws Error if a rank is lost. Threads: the thread that computes.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/checkpoint/write/save_chunks.h"
#include "core/checkpoint/write/save_files.h"
#include "core/mesh/parallel_context.h"

namespace concord {

// Returns |chunks| in groups of at most |chunk_bytes|, each of which is sent as one. Pure.
std::vector<std::vector<SaveChunk>> in_groups(std::span<const SaveChunk> chunks, int64_t chunk_bytes);
// Serialises the destinations of chunks, without their data, for the rank that keeps a copy. Pure.
std::string destinations_text(const std::vector<std::vector<SaveChunk>>& groups);
// Parses destinations_text() of another rank. Throws std::runtime_error if a group exceeds |chunk_bytes|, or a run
// exceeds its chunk or its tensor. Pure.
std::vector<std::vector<SaveChunk>> parse_destinations(std::string_view text, const SavePlan& plan,
                                                       int64_t chunk_bytes);

// Sends |chunks|, with views of this rank's memory, to its backup rank (Machines::backup_rank). Passes the chunks of
// the ranks that this one backs up to |keep|, with data on the host, about |chunk_bytes| at a time. Waits: for these
// ranks, for |keep|, and for all ranks before the first chunk.
void replicate_chunks(std::span<const SaveChunk> chunks, const SavePlan& plan, const Machines& machines,
                      ParallelContext& job, int64_t chunk_bytes, const std::function<void(SaveChunk)>& keep);

// Returns the sum over all machines of |own|, given by the first rank of each. Waits: for all ranks.
WrittenTensors sum_over_machines(const WrittenTensors& own, const Machines& machines, ParallelContext& job);

using NamedFiles = std::vector<std::pair<std::string, std::string>>;
// Returns the |files| (name, text) of rank 0. Waits: for all ranks.
NamedFiles files_of_first_rank(const NamedFiles& files, ParallelContext& job);

}  // namespace concord
