// The job and rank of this process, from the environment variables of its launcher.
//
// One pure function from variables to a value; it waits for nothing and communicates with nothing. The first of these
// that is set decides (a launcher inside another one's allocation sets the inner ones):
//   torchrun   RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT   (`concord launch` sets the same)
//   openmpi    OMPI_COMM_WORLD_RANK _SIZE _LOCAL_RANK _LOCAL_SIZE
//   slurm      SLURM_PROCID SLURM_NTASKS SLURM_LOCALID SLURM_NODEID SLURM_TASKS_PER_NODE SLURM_JOB_NODELIST
//   single     none of them: a job of one process
// MASTER_ADDR and MASTER_PORT take precedence over what openmpi and slurm imply. CONCORD_JOB_TOKEN, the same random
// text for all ranks, keeps others out of the job's store; `concord launch` generates one if all processes are on one
// machine. A variable that is empty counts as not set. Settings that are partial or contradict each other throw
// ConfigError with their names, values and what to change.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

namespace concord {

inline constexpr const char* kJobToken = "CONCORD_JOB_TOKEN";

enum class JobSource { single, torchrun, slurm, openmpi };

std::string_view to_string(JobSource source);

struct JobEnvironment {
  int64_t rank = 0;
  int64_t world = 1;
  int64_t local_rank = 0;  // index among the processes of this machine
  int64_t local_world = 1;
  std::optional<int64_t> node_rank = 0;  // nullopt if the launcher does not set it (mpirun on several machines)
  std::string master_addr = "127.0.0.1";
  int master_port = 0;  // 0 only in a world of 1: any free port
  JobSource source = JobSource::single;
  bool agent_store = false;  // torchrun serves the store itself: rank 0 connects as a client too
  std::string token;         // CONCORD_JOB_TOKEN, which is never printed; empty if not set
  bool operator==(const JobEnvironment&) const = default;
};

// Returns the value of a variable, or nullopt if it is not set.
using EnvironmentLookup = std::function<std::optional<std::string>(const char* name)>;

JobEnvironment read_job_environment(const EnvironmentLookup& lookup);
JobEnvironment read_job_environment();  // uses the variables of this process

// Returns the first machine of a Slurm node list: "node[03-05,9],login1" -> "node03".
std::string first_slurm_host(std::string_view node_list);

// Returns the number of tasks on machine |node| from a list such as "4(x2),3" (4, 4, 3); nullopt past its end.
std::optional<int64_t> slurm_tasks_on_node(std::string_view tasks_per_node, int64_t node);

}  // namespace concord
