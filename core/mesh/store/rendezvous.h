// Rendezvous: how the processes of a job find each other and verify that they belong to the same job.
//
// connect_store opens the store of a job; every rank then joins it with rendezvous. Common failures have their own
// messages: a port in use, a master that never appears, a rank that never joins, two processes with the same rank,
// ranks started with different settings. A rank that detects one publishes it in the store, so that all ranks exit with
// the same message instead of waiting for the timeout.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/mesh/job_environment.h"
#include "core/mesh/store/store.h"

namespace concord {

// A setting that must be the same on all ranks: {"tensor_model_parallel_size", "4"}.
struct Term {
  std::string name;
  std::string value;
  bool operator==(const Term&) const = default;
};

struct Member {
  int64_t rank = 0;
  int64_t world = 1;
  std::string who;          // "process 4711 on node3"
  std::vector<Term> terms;  // compared with rank 0's, in order; names and values without newlines
};

// "process 4711 on node3" for the calling process.
std::string describe_this_process();

// Returns when all |member.world| ranks have called it with the same terms. Waits: at most |timeout|. Throws Error:
// TIMEOUT with the ranks that did not join, INVALID_ARGUMENT for two processes with the same rank or for different
// terms; rank 0 throws it after all others have seen it, or after 5 seconds (more beyond 2,500 ranks). Costs a rank a
// few store operations, whatever the world size; only rank 0 of a failed rendezvous queries all ranks.
void rendezvous(Store& store, const Member& member, std::chrono::milliseconds timeout);

// Barrier at the end of a job: rank 0, which serves the store, waits until all others have called it too; they do not
// wait. Returns false if some rank has not called it within |timeout|, or can no longer call it: |is_any_lost| is
// polled.
bool exit_barrier(Store& store, const Member& member, std::chrono::milliseconds timeout,
                  const std::function<bool()>& is_any_lost);

// Connects to the store of the job, which rank 0 serves at master_addr:master_port. Under torchrun, whose agent serves
// a store there that anyone can change (agent_store), rank 0 uses another port and publishes it in that store. A world
// of 1 has a local store without a port. With a token only processes that have it are served; without one, only those
// of the same user if the job is on one machine (uses_unix_socket), and otherwise any process that reaches the port.
// Waits: for the server, at most |timeout|. Throws Error: UNAVAILABLE if the port cannot be listened on, or its server
// has a different token; TIMEOUT if no server replies. Later calls throw PEER_LOST if there is no reply within
// |timeout| (clamped to 5 to 60 seconds), or if the machine is unreachable for 3 seconds.
std::shared_ptr<Store> connect_store(const JobEnvironment& job, std::chrono::milliseconds timeout);

// Returns whether the job uses a Unix socket: all ranks are on one machine, and there is no token.
bool uses_unix_socket(const JobEnvironment& job);

}  // namespace concord
