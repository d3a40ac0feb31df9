#include "core/mesh/job_environment.h"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <vector>

#include "core/base/config_error.h"

namespace concord {
namespace {

constexpr const char* kLaunchersHint =
    "start the processes with `concord launch`, torchrun, srun or mpirun, or unset it for a single process";

std::optional<int64_t> to_number(std::string_view text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

// Typed access to the variables; errors name the variable and its value.
class Variables {
 public:
  explicit Variables(const EnvironmentLookup& lookup) : lookup_(lookup) {}

  std::optional<std::string> text(const char* name) const {
    std::optional<std::string> value = lookup_(name);
    if (value && value->empty()) value.reset();
    return value;
  }

  bool has(const char* name) const { return text(name).has_value(); }

  std::optional<int64_t> number(const char* name, int64_t lowest) const {
    const std::optional<std::string> value = text(name);
    if (!value) return std::nullopt;
    const std::optional<int64_t> parsed = to_number(*value);
    if (!parsed || *parsed < lowest) {
      throw ConfigError(fmt::format("{}={}: must be an integer >= {}; correct it or unset it", name, *value, lowest));
    }
    return parsed;
  }

  // |because| is the variable that requires this one.
  int64_t needed(const char* name, int64_t lowest, const char* because) const {
    const std::optional<int64_t> value = number(name, lowest);
    if (!value) {
      throw ConfigError(
          fmt::format("{}={} is set but {} is not; set both, or {}", because, *text(because), name, kLaunchersHint));
    }
    return *value;
  }

  // Returns the first of |names| that is set.
  const char* first_set(std::initializer_list<const char*> names) const {
    for (const char* name : names) {
      if (has(name)) return name;
    }
    return nullptr;
  }

 private:
  const EnvironmentLookup& lookup_;
};

void check_below(const char* name, int64_t value, const char* limit_name, int64_t limit) {
  if (value < limit) return;
  throw ConfigError(fmt::format("{}={} with {}={}: must be from 0 to {}; give every process its own number below {}",
                                name, value, limit_name, limit, limit - 1, limit_name));
}

void check_at_most(const char* name, int64_t value, const char* limit_name, int64_t limit) {
  if (value <= limit) return;
  throw ConfigError(
      fmt::format("{}={} with {}={}: a machine cannot have more processes than the job; correct one of them", name,
                  value, limit_name, limit));
}

std::optional<int> master_port(const Variables& variables) {
  const std::optional<std::string> value = variables.text("MASTER_PORT");
  if (!value) return std::nullopt;
  const std::optional<int64_t> port = to_number(*value);
  if (!port || *port < 1 || *port > 65535) {
    throw ConfigError(
        fmt::format("MASTER_PORT={}: must be a port, 1 to 65535; choose one that is free on the master", *value));
  }
  return static_cast<int>(*port);
}

std::optional<std::string> master_addr(const Variables& variables) {
  const std::optional<std::string> value = variables.text("MASTER_ADDR");
  if (value && value->find_first_of(" \t\r\n,;/") != std::string::npos) {
    throw ConfigError(
        fmt::format("MASTER_ADDR='{}': must be a single host name or address, without spaces or separators", *value));
  }
  return value;
}

// Ports 15000 to 31383: above the well-known ones and below the ephemeral ports of Linux.
int port_from(uint64_t seed) { return 15000 + static_cast<int>(seed % 16384); }

// Hashes a name that identifies the job, to derive a port without communication.
uint64_t hash_text(std::string_view text) {
  uint64_t hash = 14695981039346656037u;  // FNV-1a
  for (const char character : text) hash = (hash ^ static_cast<unsigned char>(character)) * 1099511628211u;
  return hash ^ (hash >> 32);
}

bool read_flag(const Variables& variables, const char* name) {
  const std::string value = variables.text(name).value_or("False");
  if (value == "True" || value == "true" || value == "1") return true;
  if (value == "False" || value == "false" || value == "0") return false;
  throw ConfigError(fmt::format("{}={}: must be True or False", name, value));
}

// Sets the master of a job of several processes, if only the variables can name it.
void read_master(const Variables& variables, JobEnvironment* job, const std::string& who) {
  const std::optional<std::string> addr = master_addr(variables);
  const std::optional<int> port = master_port(variables);
  if (addr) job->master_addr = *addr;
  if (port) job->master_port = *port;
  if (job->world == 1 || (addr && port)) return;
  throw ConfigError(fmt::format(
      "{} but {} is not set; set MASTER_ADDR to the machine of rank 0 and MASTER_PORT to a free port there", who,
      !addr && !port ? "neither MASTER_ADDR nor MASTER_PORT"
      : addr         ? "MASTER_PORT"
                     : "MASTER_ADDR"));
}

JobEnvironment read_torchrun(const Variables& variables) {
  JobEnvironment job;
  job.source = JobSource::torchrun;
  job.rank = variables.needed("RANK", 0, "WORLD_SIZE");
  job.world = variables.needed("WORLD_SIZE", 1, "RANK");
  check_below("RANK", job.rank, "WORLD_SIZE", job.world);
  const bool local_is_known = variables.has("LOCAL_RANK") || variables.has("LOCAL_WORLD_SIZE");
  if (local_is_known) {
    job.local_world = variables.needed("LOCAL_WORLD_SIZE", 1, "LOCAL_RANK");
    job.local_rank = variables.needed("LOCAL_RANK", 0, "LOCAL_WORLD_SIZE");
  } else if (job.world > 1) {
    throw ConfigError(
        fmt::format("RANK={} and WORLD_SIZE={} are set but LOCAL_RANK and LOCAL_WORLD_SIZE are not; with one process "
                    "per machine set LOCAL_RANK=0 and LOCAL_WORLD_SIZE=1",
                    job.rank, job.world));
  }
  check_below("LOCAL_RANK", job.local_rank, "LOCAL_WORLD_SIZE", job.local_world);
  check_at_most("LOCAL_WORLD_SIZE", job.local_world, "WORLD_SIZE", job.world);
  job.node_rank = variables.number("GROUP_RANK", 0);
  if (!job.node_rank && job.rank % job.local_world == job.local_rank) job.node_rank = job.rank / job.local_world;
  read_master(variables, &job, fmt::format("RANK={} and WORLD_SIZE={} are set", job.rank, job.world));
  job.agent_store = read_flag(variables, "TORCHELASTIC_USE_AGENT_STORE");
  return job;
}

JobEnvironment read_openmpi(const Variables& variables) {
  JobEnvironment job;
  job.source = JobSource::openmpi;
  job.rank = variables.needed("OMPI_COMM_WORLD_RANK", 0, "OMPI_COMM_WORLD_SIZE");
  job.world = variables.needed("OMPI_COMM_WORLD_SIZE", 1, "OMPI_COMM_WORLD_RANK");
  job.local_rank = variables.needed("OMPI_COMM_WORLD_LOCAL_RANK", 0, "OMPI_COMM_WORLD_RANK");
  job.local_world = variables.needed("OMPI_COMM_WORLD_LOCAL_SIZE", 1, "OMPI_COMM_WORLD_RANK");
  check_below("OMPI_COMM_WORLD_RANK", job.rank, "OMPI_COMM_WORLD_SIZE", job.world);
  check_below("OMPI_COMM_WORLD_LOCAL_RANK", job.local_rank, "OMPI_COMM_WORLD_LOCAL_SIZE", job.local_world);
  check_at_most("OMPI_COMM_WORLD_LOCAL_SIZE", job.local_world, "OMPI_COMM_WORLD_SIZE", job.world);
  if (job.local_world < job.world) {
    job.node_rank.reset();  // ranks may be assigned to the machines in any order
    read_master(variables, &job,
                fmt::format("mpirun started {} processes, {} of them on this machine", job.world, job.local_world));
    return job;
  }
  const char* name = variables.first_set({"PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "OMPI_MCA_orte_hnp_uri"});
  job.master_addr = master_addr(variables).value_or("127.0.0.1");
  job.master_port = master_port(variables).value_or(name ? port_from(hash_text(*variables.text(name))) : 29500);
  return job;
}

// A batch script has SLURM_PROCID=0 and the whole job's SLURM_NTASKS, but is one process: only srun starts the tasks.
bool is_slurm_task(const Variables& variables) {
  if (!variables.has("SLURM_PROCID")) return false;
  return variables.has("SLURM_STEP_ID") || variables.text("ENVIRONMENT") != "BATCH";
}

struct TaskRun {
  int64_t tasks;     // per machine
  int64_t machines;  // number of consecutive machines
};

std::vector<TaskRun> parse_task_runs(std::string_view tasks_per_node) {
  std::vector<TaskRun> runs;
  for (size_t begin = 0; begin <= tasks_per_node.size();) {
    const size_t end = std::min(tasks_per_node.find(',', begin), tasks_per_node.size());
    const std::string_view item = tasks_per_node.substr(begin, end - begin);
    const size_t repeat = item.find("(x");
    const bool repeats = repeat != std::string_view::npos && item.back() == ')';
    const std::optional<int64_t> tasks = to_number(repeats ? item.substr(0, repeat) : item);
    const std::optional<int64_t> machines = repeats ? to_number(item.substr(repeat + 2, item.size() - repeat - 3)) : 1;
    const auto sane = [](const std::optional<int64_t>& count) {
      return count && *count >= 1 && *count <= int64_t{1} << 31;
    };
    if (!sane(tasks) || !sane(machines)) {
      throw ConfigError(fmt::format(
          "tasks per node '{}' has the item '{}'; items must be a number, or \"4(x2)\" for two machines with 4 each",
          tasks_per_node, item));
    }
    runs.push_back({*tasks, *machines});
    begin = end + 1;
  }
  return runs;
}

// Returns the number of tasks of this machine from a list such as "4(x2),3", which must add up to the world size.
int64_t tasks_from_list(const Variables& variables, const char* list_name, const JobEnvironment& job,
                        const char* world_name) {
  const std::string list = *variables.text(list_name);
  int64_t total = 0;
  for (const TaskRun& run : parse_task_runs(list)) total += run.tasks * run.machines;
  if (total != job.world) {
    throw ConfigError(fmt::format("{}={} is {} tasks but {}={}; srun sets both, so one was changed: unset it",
                                  list_name, list, total, world_name, job.world));
  }
  const std::optional<int64_t> tasks = slurm_tasks_on_node(list, *job.node_rank);
  if (!tasks) {
    throw ConfigError(
        fmt::format("SLURM_NODEID={} is past the end of {}={}; srun sets both, so one was changed: unset it",
                    *job.node_rank, list_name, list));
  }
  return *tasks;
}

int64_t slurm_local_world(const Variables& variables, const JobEnvironment& job, const char* world_name) {
  const char* list_name = variables.first_set({"SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"});
  if (list_name) return tasks_from_list(variables, list_name, job, world_name);
  if (const std::optional<int64_t> tasks = variables.number("SLURM_NTASKS_PER_NODE", 1)) return *tasks;
  const char* nodes_name = variables.first_set({"SLURM_STEP_NUM_NODES", "SLURM_NNODES", "SLURM_JOB_NUM_NODES"});
  if (job.world == 1 || (nodes_name && variables.number(nodes_name, 1) == 1)) return job.world;
  throw ConfigError(
      fmt::format("{}={} is set but SLURM_TASKS_PER_NODE is not; start the processes with srun, or set it (\"4(x2)\" "
                  "is two machines with 4 each)",
                  world_name, job.world));
}

void read_slurm_master(const Variables& variables, JobEnvironment* job) {
  const char* nodes = variables.first_set({"SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST"});
  if (const std::optional<std::string> addr = master_addr(variables)) {
    job->master_addr = *addr;
  } else if (nodes) {
    job->master_addr = first_slurm_host(*variables.text(nodes));
  } else if (job->local_world < job->world) {
    throw ConfigError("neither MASTER_ADDR nor SLURM_JOB_NODELIST is set; set MASTER_ADDR to the machine of rank 0");
  }
  if (const std::optional<int> port = master_port(variables)) {
    job->master_port = *port;
  } else if (const std::optional<int64_t> id = variables.number("SLURM_JOB_ID", 0)) {
    const auto step = static_cast<uint64_t>(variables.number("SLURM_STEP_ID", 0).value_or(0));
    job->master_port = port_from(static_cast<uint64_t>(*id) + 131 * step);  // two steps of one job may run in parallel
  } else if (job->world > 1) {
    throw ConfigError(
        "neither MASTER_PORT nor SLURM_JOB_ID is set; set MASTER_PORT to a port that is free on the machine of rank 0");
  }
}

JobEnvironment read_slurm(const Variables& variables) {
  JobEnvironment job;
  job.source = JobSource::slurm;
  const char* world_name = variables.first_set({"SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "SLURM_NPROCS"});
  if (!world_name) world_name = "SLURM_NTASKS";
  job.rank = variables.needed("SLURM_PROCID", 0, world_name);
  job.world = variables.needed(world_name, 1, "SLURM_PROCID");
  check_below("SLURM_PROCID", job.rank, world_name, job.world);
  job.local_rank = variables.needed("SLURM_LOCALID", 0, "SLURM_PROCID");
  job.node_rank = variables.number("SLURM_NODEID", 0).value_or(0);
  job.local_world = slurm_local_world(variables, job, world_name);
  if (job.local_world < job.world) variables.needed("SLURM_NODEID", 0, "SLURM_PROCID");
  check_below("SLURM_LOCALID", job.local_rank, "tasks on this machine", job.local_world);
  check_at_most("tasks on this machine", job.local_world, world_name, job.world);
  read_slurm_master(variables, &job);
  return job;
}

std::string job_token(const Variables& variables) {
  constexpr size_t kMinToken = 16;
  const std::string token = variables.text(kJobToken).value_or("");
  if (token.empty() || token.size() >= kMinToken) return token;
  throw ConfigError(fmt::format("{} has {} characters; must be random text of at least {}, the same on all ranks",
                                kJobToken, token.size(), kMinToken));
}

// Outside torchrun its variables alone have no use; if they contradict the launcher's, one of them is stale.
void check_leftovers(const Variables& variables, const JobEnvironment& job) {
  const std::optional<int64_t> world = variables.number("WORLD_SIZE", 1);
  if (world && *world != job.world) {
    if (job.source == JobSource::single) variables.needed("RANK", 0, "WORLD_SIZE");
    throw ConfigError(fmt::format("WORLD_SIZE={} but {} started {} processes; unset WORLD_SIZE or start that many",
                                  *world, to_string(job.source), job.world));
  }
  if (job.source == JobSource::single && variables.has("LOCAL_RANK")) variables.needed("RANK", 0, "LOCAL_RANK");
}

}  // namespace

std::string_view to_string(JobSource source) {
  switch (source) {
    case JobSource::single: return "single";
    case JobSource::torchrun: return "torchrun";
    case JobSource::slurm: return "slurm";
    case JobSource::openmpi: return "openmpi";
  }
  return "unknown";
}

JobEnvironment read_job_environment(const EnvironmentLookup& lookup) {
  const Variables variables(lookup);
  JobEnvironment job;
  if (variables.has("RANK")) {
    job = read_torchrun(variables);
  } else if (variables.has("OMPI_COMM_WORLD_RANK") || variables.has("OMPI_COMM_WORLD_SIZE")) {
    job = read_openmpi(variables);
  } else if (is_slurm_task(variables)) {
    job = read_slurm(variables);
  }
  if (job.source != JobSource::torchrun) check_leftovers(variables, job);
  job.token = job_token(variables);
  return job;
}

JobEnvironment read_job_environment() {
  return read_job_environment([](const char* name) -> std::optional<std::string> {
    const char* value = std::getenv(name);
    if (!value) return std::nullopt;
    return std::string(value);
  });
}

std::string first_slurm_host(std::string_view node_list) {
  const auto malformed = [&](const char* why) {
    return ConfigError(
        fmt::format("the Slurm node list '{}' {}; set MASTER_ADDR to the machine of rank 0", node_list, why));
  };
  std::string host;
  for (size_t i = 0; i < node_list.size() && node_list[i] != ','; ++i) {
    if (node_list[i] == ']') throw malformed("has an unmatched closing bracket");
    if (node_list[i] != '[') {
      host += node_list[i];
      continue;
    }
    const size_t close = node_list.find(']', i);
    if (close == std::string_view::npos) throw malformed("has an unmatched opening bracket");
    const std::string_view ranges = node_list.substr(i + 1, close - i - 1);
    const std::string_view first = ranges.substr(0, ranges.find_first_of(",-"));
    if (!to_number(first)) throw malformed("has no number in its brackets");
    host += first;
    i = close;
  }
  if (host.empty() || host == "(null)") throw malformed("contains no host name");
  return host;
}

std::optional<int64_t> slurm_tasks_on_node(std::string_view tasks_per_node, int64_t node) {
  for (const TaskRun& run : parse_task_runs(tasks_per_node)) {
    if (node < run.machines) return run.tasks;
    node -= run.machines;
  }
  return std::nullopt;
}

}  // namespace concord
