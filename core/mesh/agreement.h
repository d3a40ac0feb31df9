// Small collectives for decisions of all ranks of a job. They use the job's communicator, so that no other process can
// interfere, and the loss of a rank is detected as in any collective.
//
// Every rank makes the same calls. Throws Error, like collectives, if a rank is lost. Waits: for all ranks. Threads:
// the thread that computes.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "core/mesh/machines.h"
#include "core/mesh/parallel_context.h"

namespace concord {

// Returns |value| reduced over all ranks.
int64_t all_reduce_scalar(ParallelContext& job, int64_t value, ReduceOp op);

// Returns |value| of every rank, indexed by rank.
std::vector<int64_t> all_gather_scalar(ParallelContext& job, int64_t value);

// Returns the machines of the job, from the local ranks that the launcher has assigned. Throws ConfigError like
// machines_from().
Machines machines_of(ParallelContext& job);

// Returns the |text| of rank |root| on all ranks.
std::string broadcast_text(ParallelContext& job, const std::string& text, int64_t root);

// The first text that is not empty, and its rank. first_text() returns nullopt if |text| is empty on all ranks.
struct RankText {
  int64_t rank;
  std::string text;
};
std::optional<RankText> first_text(ParallelContext& job, const std::string& text);

// Runs |body|, which must not wait for another rank. If it throws on any rank, every rank throws the error of the
// lowest such rank, prefixed with its number: ConfigError if it was one, otherwise std::runtime_error.
void run_and_propagate_errors(ParallelContext& job, const std::function<void()>& body);

}  // namespace concord
