// Makes this process part of a job: device, rendezvous, groups, seeds. Corresponds to ROLL's initialize_megatron and
// Megatron's initialize_model_parallel, on any platform.
//
// Example, given at::Tensor tensor:
//   const concord::InitializeArgs args{.tensor_model_parallel_size = 2, .seed = 42};
//   concord::ParallelContext& job = concord::initialize(args);
//   job.group(concord::GroupKind::tp).all_reduce(tensor).wait();
//   concord::finalize();
//
// Rank, world and the master's address come from the environment of torchrun, srun or mpirun
// (core/mesh/job_environment.h); without any of them this is a job of one process. The platform is the one that
// CONCORD_PLATFORM names or the best available one; the device is that of LOCAL_RANK. Threads: any thread; concurrent
// calls wait for the first one.
#pragma once

#include <memory>

#include "core/mesh/initialize_args.h"
#include "core/mesh/parallel_context.h"

namespace concord {

// Returns the context of this process. A second call with the same arguments only resets the seeds; with other
// arguments it throws ConfigError with the difference. Waits: for all ranks of the job. Throws ConfigError for invalid
// arguments or an invalid environment, and Error if the rendezvous fails (core/mesh/store/rendezvous.h); the process is
// then not initialised and may retry. If |store| is given, the ranks meet in it instead of creating one; all ranks must
// reach it, and its keys "concord/..." belong to this job.
ParallelContext& initialize(const InitializeArgs& args, std::shared_ptr<Store> store = nullptr);

bool is_initialized();

// Returns the context. Throws Error (FAILED_PRECONDITION) before initialize and after finalize.
ParallelContext& parallel_context();

// Leaves the job. Every rank calls it, and none uses its context or groups afterwards. Waits: for work in flight and,
// on rank 0, which serves the store, for the other ranks, at most |ddp_timeout|. Does nothing if the process is not
// initialised. All ranks may then initialise again, also with other arguments.
void finalize();

}  // namespace concord
