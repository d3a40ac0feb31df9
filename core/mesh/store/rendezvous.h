// How the processes of a job find each other and agree that they belong to the same job.
//
// connect_store opens the one store of a job; rendezvous then lets every rank meet in it. These failures are common
// in practice, so each has its own message: a port in use, a master that never appears, a rank that never joins, two
// processes with the same rank, ranks started with different settings. A rank that detects one tells the others through
// the store, so that all of them end with the same message instead of waiting for the timeout.
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
// TIMEOUT naming the ranks that did not join, INVALID_ARGUMENT for two processes with the same rank or for terms that
// differ, which rank 0 throws when all others have seen it, or after 5 seconds (more beyond 2,500 ranks). Costs a rank
// a handful of store operations, whatever the world size; only rank 0 of a failed one queries all.
void rendezvous(Store& store, const Member& member, std::chrono::milliseconds timeout);

// The other end: rank 0, which serves the store, waits until all others have called it too; they do not wait. False
// if some rank has not joined within |timeout|, or cannot join any more: |is_any_lost|, called now and then.
bool exit_barrier(Store& store, const Member& member, std::chrono::milliseconds timeout,
                  const std::function<bool()>& is_any_lost);

// Connects to the store of the job, which rank 0 serves at master_addr:master_port. Under torchrun, whose agent serves
// a store there that anyone can change (agent_store), rank 0 takes another port and publishes it in that store. A world
// of 1 has a local store without a port. With a token only processes that have it are served; without one, only those
// of the same user if the job is on one machine (uses_unix_socket), and otherwise everyone who reaches the port. Waits:
// for the server, at most |timeout|. Throws Error: UNAVAILABLE if the port cannot be listened on, or its server has
// another token; TIMEOUT if no server answers. Later a call without a reply within |timeout| (at least 5 seconds, at
// most 60) is PEER_LOST, and so is one to a machine that cannot be reached for 3 seconds.
std::shared_ptr<Store> connect_store(const JobEnvironment& job, std::chrono::milliseconds timeout);

// Whether the job meets at a Unix socket: all ranks are on one machine, and there is no token.
bool uses_unix_socket(const JobEnvironment& job);

}  // namespace concord
