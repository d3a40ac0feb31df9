// One call makes a process part of a job: device, rendezvous, groups, seeds. What ROLL's initialize_megatron and
// Megatron's initialize_model_parallel do, on any platform.
//
// Example, given at::Tensor tensor:
//   const concord::InitializeArgs args{.tensor_model_parallel_size = 2, .seed = 42};
//   concord::ParallelContext& job = concord::initialize(args);
//   job.group(concord::GroupKind::tp).all_reduce(tensor).wait();
//   concord::finalize();
//
// Rank, world and the master's address come from torchrun's, srun's or mpirun's environment
// (core/mesh/job_environment.h); without any of them this is a job of one process. The platform is the one that
// CONCORD_PLATFORM names or the best there is, the device that of LOCAL_RANK. Threads: any thread; a thread that calls
// while another thread initialises waits for it.
#pragma once

#include <memory>

#include "core/mesh/initialize_args.h"
#include "core/mesh/parallel_context.h"

namespace concord {

// The context of this process. Called again with the same arguments it only resets the seeds; with
// others it throws ConfigError, which names the difference. Waits: for all ranks of the job.
// Throws ConfigError for invalid arguments or an invalid environment, Error for what goes wrong on the way
// (core/mesh/store/rendezvous.h); the process is then not initialised, and may try again. With |store| the ranks meet
// in that one, which all of them can reach and the job has to itself (keys begin with "concord/"), instead of a new
// one.
ParallelContext& initialize(const InitializeArgs& args, std::shared_ptr<Store> store = nullptr);

bool is_initialized();

// Throws Error (FAILED_PRECONDITION) before initialize and after finalize.
ParallelContext& parallel_context();

// Leaves the job: every rank calls it, and none uses its context or groups afterwards. Waits: for work in flight, and
// on rank 0, which serves the store, for the other ranks, at most |ddp_timeout|. Nothing if the process is not
// initialised. The process may initialise again, with other arguments too; all ranks have to.
void finalize();

}  // namespace concord
