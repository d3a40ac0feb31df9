// What all ranks of a job decide together. Through their communicator: no other process can interfere, a rank that
// exits or stops is noticed as in any collective, and nothing is left behind.
//
// Every rank makes the same calls. Errors: Error, as collectives throw it where a rank is lost. Waits: for all ranks.
// Threads: the one that computes.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "core/mesh/machines.h"
#include "core/mesh/parallel_context.h"

namespace concord {

// |value| of all ranks, reduced.
int64_t reduced(ParallelContext& job, int64_t value, ReduceOp op);

// |value| of all ranks, by rank.
std::vector<int64_t> gathered(ParallelContext& job, int64_t value);

// By what the launcher says of each rank. Throws ConfigError, as machines_from.
Machines machines_of(ParallelContext& job);

// The |text| of rank |root|, on all ranks.
std::string broadcast_text(ParallelContext& job, const std::string& text, int64_t root);

// The |text| of the lowest rank whose text is not empty, and that rank; nothing where all are empty.
struct RankText {
  int64_t rank;
  std::string text;
};
std::optional<RankText> first_text(ParallelContext& job, const std::string& text);

// Runs |body|, which waits for no other rank. Where it throws on any rank, all ranks throw what it threw on the lowest
// of these, with the rank: ConfigError, or else std::runtime_error.
void run_and_propagate_errors(ParallelContext& job, const std::function<void()>& body);

}  // namespace concord
