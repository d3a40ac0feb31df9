// Starts the processes of a job on this machine and supervises them, as torchrun does: `concord launch` and
// `train --nproc N`.
//
//   - Every process gets torchrun's variables (see rank_environment.h) and its own session, and on one machine a
//     random CONCORD_JOB_TOKEN, unless one is set. Rank 0 reads the launcher's standard input, the others nothing.
//   - Output comes line by line with "[rank 3] " in front, standard output and standard error kept apart, or goes to
//     one file per rank.
//   - SIGINT, SIGTERM and SIGHUP are forwarded to the processes and their descendants, SIGUSR1 and SIGUSR2 to the
//     processes alone. A second SIGINT, SIGTERM or SIGHUP kills all of them.
//   - A process that fails ends the job: the others get SIGTERM, after the grace time SIGKILL, and the report begins
//     with the one that failed first. With max_restarts all are started again (restart_policy.h); ranks that keep their
//     state in kMemoryFolderVariable's folder or in checkpoints resume from there.
//   - Launchers on several machines with max_restarts are one job (job_state.h): the one with node_rank 0 leads, or
//     with etcd the one that holds a lease. All start and stop their ranks together, and return the same exit code.
//   - Spares are started like ranks, once these train, but with kSpareVariable (spare_process.h) instead of a place in
//     the job; the program loads what it needs and waits. After a failure they become ranks, without the launcher's
//     standard input.
//   - A program that can be a zygote is loaded once and forked for each rank (zygote.h), unless kRankStartVariable says
//     exec.
//   - Ranks that send heartbeats (core/base/heartbeat.h) are watched. A rank that is silent for too long is reported,
//     with what the others wait for, and killed if the job can be restarted.
//   - Nothing is left running. The launcher waits for, or kills, all descendants, daemons included. Only if it is
//     killed with kill -9, the kernel kills its processes and a guard process their descendants; session_guard.h lists
//     those that it cannot find. A set-user-id program clears its PR_SET_PDEATHSIG, so the kernel does not kill it.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "core/mesh/rendezvous_options.h"

namespace concord {

inline constexpr const char* kRankStartVariable = "CONCORD_RANK_START";  // fork (the default) or exec

struct LaunchOptions {
  int nproc = 1;               // on each machine
  int nnodes = 1;              // machines; each runs its own launcher with its own node_rank
  int node_rank = 0;           // nnodes or more, with max_restarts: a spare machine, which replaces one that is lost
  std::string master_addr;     // address of machine 0; empty: 127.0.0.1, if nnodes is 1
  int master_port = 0;         // 0: any free port if nnodes is 1, else torchrun's 29500
  int max_restarts = 0;        // how many times all processes are started again after failures without progress
  int spares = 0;              // with max_restarts: processes that wait to become ranks; for programs that can (below)
  bool forks_ranks = false;    // the program can be a zygote (zygote_process.h)
  std::vector<int> worlds;     // with max_restarts: how many ranks the job can run with, descending; empty: all only
  int colocated_ranks = 1;     // with fewer ranks: each machine runs a multiple of this
  double rejoin_seconds = 60;  // how long the job waits for a lost launcher
  RendezvousOptions rendezvous;  // how launchers on several machines find their leader
  bool recovers = false;     // after a failure the others get SIGKILL without SIGTERM: their state is in a checkpoint
  double grace_seconds = 5;  // between SIGTERM and SIGKILL
  std::string log_dir;       // rank-3.log for each rank there, instead of standard output and standard error
  bool prefix = true;        // "[rank 3] " in front of each line
};

// Runs |command| (the program, then its arguments) until all processes have exited. Returns 0 if all of them exited
// with code 0; 128 + signal if one of the signals above came and all exited with that or 0; else 1 or the code of
// restart_policy.h, with a report on standard error. Throws ConfigError, before anything is started, for invalid
// options and a missing program. Threads: from one thread at a time; that thread must stay (the kernel kills
// the processes when it ends). While it runs, the process's signals and all its children are the launcher's, also those
// it did not start.
int launch(const LaunchOptions& options, std::span<const std::string> command);

}  // namespace concord
