// One call makes a process part of a job: device, rendezvous, groups, seeds. What ROLL's initialize_megatron and
// Megatron's initialize_model_parallel do, on any platform.
//
//   const concord::InitializeArgs args{.tensor_model_parallel_size = 2, .seed = 42};
//   concord::ParallelContext& job = concord::initialize(args);
//   job.group(concord::GroupKind::tp).all_reduce(tensor).wait();
//   concord::finalize();
//
// Rank, world and the master's address come from torchrun's, srun's or mpirun's environment
// (core/mesh/job_environment.h); without any of them this is a job of one process. The platform is the one that
// CONCORD_PLATFORM names or the best there is, the device that of LOCAL_RANK. Threads: any thread; whoever calls while
// another thread initialises waits for it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/mesh/parallel_context.h"
#include "core/mesh/rank_layout.h"

namespace concord {

// Named as in Megatron's and ROLL's arguments.
struct InitializeArgs {
  int64_t tensor_model_parallel_size = 1;
  int64_t pipeline_model_parallel_size = 1;
  int64_t virtual_pipeline_model_parallel_size = 1;
  int64_t context_parallel_size = 1;
  int64_t expert_model_parallel_size = 1;
  int64_t expert_tensor_parallel_size = 0;  // 0: as tensor_model_parallel_size
  std::string order = "tp-cp-ep-dp-pp";
  int64_t seed = 42;                          // positive
  bool data_parallel_random_init = false;     // data-parallel ranks draw different numbers
  int64_t ddp_timeout = 1800;                 // seconds: for the rendezvous, for communicators, for every operation
  std::vector<GroupKind> create_groups = {};  // made at once, all ranks together; the others on first use
  std::string flight_folder = {};             // for concord-flight-<rank>.json; empty: CONCORD_FLIGHT_FOLDER, else here
};

// The context of this process. Called again with the same arguments it does nothing but start the seeds afresh; with
// others it throws ConfigError, which names the difference. Waits: for all ranks of the job.
// Throws ConfigError for arguments or an environment that cannot be meant, Error for what goes wrong on the way
// (core/mesh/rendezvous.h); the process is then not initialised, and may try again.
ParallelContext& initialize(const InitializeArgs& args);

bool is_initialized();

// Throws Error (FAILED_PRECONDITION) before initialize and after finalize.
ParallelContext& parallel_context();

// Leaves the job: every rank calls it, and none uses its context or groups afterwards. Waits: for work on its way, and
// on rank 0, which serves the store, for the other ranks, at most |ddp_timeout|. Nothing where the process is not
// initialised. The process may initialise again, with other arguments too; all ranks have to.
void finalize();

}  // namespace concord
