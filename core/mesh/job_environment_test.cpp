#include "core/mesh/job_environment.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "core/base/config_error.h"

namespace concord {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using Environment = std::map<std::string, std::string>;

JobEnvironment read(const Environment& environment) {
  return read_job_environment([&](const char* name) -> std::optional<std::string> {
    const auto found = environment.find(name);
    if (found == environment.end()) return std::nullopt;
    return found->second;
  });
}

// Returns |base| with some variables changed; a value of "-" removes the variable.
Environment with(Environment base, const Environment& changes) {
  for (const auto& [name, value] : changes) {
    if (value == "-") {
      base.erase(name);
    } else {
      base[name] = value;
    }
  }
  return base;
}

std::string error_of(const Environment& environment) {
  try {
    read(environment);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "no error";
}

const Environment kTorchrun = {{"RANK", "5"},
                               {"WORLD_SIZE", "8"},
                               {"LOCAL_RANK", "1"},
                               {"LOCAL_WORLD_SIZE", "4"},
                               {"MASTER_ADDR", "10.0.0.7"},
                               {"MASTER_PORT", "29400"}};

const Environment kSlurm = {{"SLURM_PROCID", "9"},
                            {"SLURM_NTASKS", "11"},
                            {"SLURM_LOCALID", "1"},
                            {"SLURM_NODEID", "2"},
                            {"SLURM_TASKS_PER_NODE", "4(x2),3"},
                            {"SLURM_JOB_NODELIST", "node[03-05,9]"},
                            {"SLURM_JOB_ID", "4711"}};

const Environment kOpenMpi = {{"OMPI_COMM_WORLD_RANK", "1"},
                              {"OMPI_COMM_WORLD_SIZE", "4"},
                              {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                              {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"}};

TEST(JobEnvironment, WithoutALauncherItIsASingleProcess) {
  const JobEnvironment job = read({{"PATH", "/bin"}, {"MASTER_ADDR", "elsewhere"}});
  EXPECT_EQ(job.source, JobSource::single);
  EXPECT_EQ(job.rank, 0);
  EXPECT_EQ(job.world, 1);
  EXPECT_EQ(job.local_rank, 0);
  EXPECT_EQ(job.local_world, 1);
  EXPECT_EQ(job.node_rank, 0);
  EXPECT_EQ(job.master_addr, "127.0.0.1");
  EXPECT_EQ(job.master_port, 0);
  EXPECT_FALSE(job.agent_store);
}

TEST(JobEnvironment, TorchrunsVariablesAreRead) {
  const JobEnvironment job = read(kTorchrun);
  EXPECT_EQ(job.source, JobSource::torchrun);
  EXPECT_EQ(job.rank, 5);
  EXPECT_EQ(job.world, 8);
  EXPECT_EQ(job.local_rank, 1);
  EXPECT_EQ(job.local_world, 4);
  EXPECT_EQ(job.node_rank, 1);
  EXPECT_EQ(job.master_addr, "10.0.0.7");
  EXPECT_EQ(job.master_port, 29400);
  EXPECT_FALSE(job.agent_store);
  EXPECT_EQ(read(with(kTorchrun, {{"GROUP_RANK", "7"}})).node_rank, 7);
  EXPECT_EQ(read(with(kTorchrun, {{"RANK", "4"}})).node_rank, std::nullopt) << "local rank 1 cannot follow from rank 4";
}

TEST(JobEnvironment, TorchrunsAgentStoreIsSeen) {
  EXPECT_TRUE(read(with(kTorchrun, {{"TORCHELASTIC_USE_AGENT_STORE", "True"}})).agent_store);
  EXPECT_FALSE(read(with(kTorchrun, {{"TORCHELASTIC_USE_AGENT_STORE", "False"}})).agent_store);
  EXPECT_THAT(error_of(with(kTorchrun, {{"TORCHELASTIC_USE_AGENT_STORE", "perhaps"}})),
              HasSubstr("TORCHELASTIC_USE_AGENT_STORE=perhaps"));
}

TEST(JobEnvironment, AWorldOfOneNeedsNeitherMasterNorLocalRank) {
  const JobEnvironment job = read({{"RANK", "0"}, {"WORLD_SIZE", "1"}});
  EXPECT_EQ(job.source, JobSource::torchrun);
  EXPECT_EQ(job.local_world, 1);
  EXPECT_EQ(job.master_port, 0);
}

TEST(JobEnvironment, TorchrunWinsOverTheAllocationItRunsIn) {
  Environment both = kSlurm;
  both.insert(kTorchrun.begin(), kTorchrun.end());
  EXPECT_EQ(read(both).source, JobSource::torchrun);
  EXPECT_EQ(read(both).rank, 5);
}

TEST(JobEnvironment, MpirunWinsOverTheAllocationItRunsIn) {
  Environment both = kSlurm;
  both.insert(kOpenMpi.begin(), kOpenMpi.end());
  EXPECT_EQ(read(both).source, JobSource::openmpi);
}

TEST(JobEnvironment, PartialTorchrunSettingsAreRefused) {
  EXPECT_THAT(error_of({{"RANK", "3"}}),
              AllOf(HasSubstr("RANK=3 is set but WORLD_SIZE is not"), HasSubstr("concord launch")));
  EXPECT_THAT(error_of({{"WORLD_SIZE", "4"}}), HasSubstr("WORLD_SIZE=4 is set but RANK is not"));
  EXPECT_THAT(error_of({{"LOCAL_RANK", "1"}}), HasSubstr("LOCAL_RANK=1 is set but RANK is not"));
  EXPECT_THAT(error_of(with(kTorchrun, {{"LOCAL_RANK", "-"}})),
              HasSubstr("LOCAL_WORLD_SIZE=4 is set but LOCAL_RANK is not"));
  EXPECT_THAT(error_of(with(kTorchrun, {{"LOCAL_WORLD_SIZE", "-"}})),
              HasSubstr("LOCAL_RANK=1 is set but LOCAL_WORLD_SIZE is not"));
  EXPECT_THAT(error_of(with(kTorchrun, {{"LOCAL_RANK", "-"}, {"LOCAL_WORLD_SIZE", "-"}})),
              HasSubstr("LOCAL_WORLD_SIZE=1"));
  EXPECT_THAT(error_of(with(kTorchrun, {{"MASTER_ADDR", "-"}})), HasSubstr("but MASTER_ADDR is not set"));
  EXPECT_THAT(error_of(with(kTorchrun, {{"MASTER_PORT", "-"}})), HasSubstr("but MASTER_PORT is not set"));
  EXPECT_THAT(error_of(with(kTorchrun, {{"MASTER_ADDR", "-"}, {"MASTER_PORT", "-"}})),
              HasSubstr("neither MASTER_ADDR nor MASTER_PORT"));
}

TEST(JobEnvironment, ContradictoryTorchrunSettingsAreRefused) {
  EXPECT_THAT(error_of(with(kTorchrun, {{"RANK", "8"}})),
              AllOf(HasSubstr("RANK=8 with WORLD_SIZE=8"), HasSubstr("0 to 7")));
  EXPECT_THAT(error_of(with(kTorchrun, {{"LOCAL_RANK", "4"}})), HasSubstr("LOCAL_RANK=4 with LOCAL_WORLD_SIZE=4"));
  EXPECT_THAT(error_of(with(kTorchrun, {{"LOCAL_WORLD_SIZE", "9"}})),
              HasSubstr("LOCAL_WORLD_SIZE=9 with WORLD_SIZE=8"));
}

TEST(JobEnvironment, ValuesThatAreNoNumbersAreRefused) {
  for (const char* bad : {"three", "3x", "-1", " 3", "3 ", "+3", "0x3", "3.0", "99999999999999999999"}) {
    EXPECT_THAT(error_of(with(kTorchrun, {{"RANK", bad}})), HasSubstr(std::string("RANK=") + bad)) << bad;
  }
  EXPECT_THAT(error_of(with(kTorchrun, {{"WORLD_SIZE", "0"}})), HasSubstr(">= 1"));
  EXPECT_THAT(error_of(with(kSlurm, {{"SLURM_NTASKS", "many"}})), HasSubstr("SLURM_NTASKS=many"));
  EXPECT_THAT(error_of(with(kOpenMpi, {{"OMPI_COMM_WORLD_SIZE", "-4"}})), HasSubstr("OMPI_COMM_WORLD_SIZE=-4"));
}

TEST(JobEnvironment, MasterAddressAndPortAreChecked) {
  for (const char* bad : {"0", "65536", "-1", "http", "29500 "}) {
    EXPECT_THAT(error_of(with(kTorchrun, {{"MASTER_PORT", bad}})), HasSubstr("1 to 65535")) << bad;
    EXPECT_THAT(error_of(with(kSlurm, {{"MASTER_PORT", bad}})), HasSubstr("1 to 65535")) << bad;
  }
  for (const char* bad : {"two hosts", "a,b", "tcp://host"}) {
    EXPECT_THAT(error_of(with(kTorchrun, {{"MASTER_ADDR", bad}})), HasSubstr("MASTER_ADDR='")) << bad;
  }
}

TEST(JobEnvironment, AVariableSetToNothingCountsAsNotSet) {
  EXPECT_EQ(read({{"RANK", ""}, {"WORLD_SIZE", ""}}).source, JobSource::single);
  EXPECT_THAT(error_of(with(kTorchrun, {{"WORLD_SIZE", ""}})), HasSubstr("WORLD_SIZE is not"));
}

TEST(JobEnvironment, SrunsVariablesAreRead) {
  const JobEnvironment job = read(kSlurm);
  EXPECT_EQ(job.source, JobSource::slurm);
  EXPECT_EQ(job.rank, 9);
  EXPECT_EQ(job.world, 11);
  EXPECT_EQ(job.local_rank, 1);
  EXPECT_EQ(job.local_world, 3);
  EXPECT_EQ(job.node_rank, 2);
  EXPECT_EQ(job.master_addr, "node03");
  EXPECT_EQ(job.master_port, 15000 + 4711);
  EXPECT_FALSE(job.agent_store);
}

TEST(JobEnvironment, TheStepOfSrunWinsOverTheWholeJob) {
  const JobEnvironment job = read(with(kSlurm, {{"SLURM_PROCID", "1"},
                                                {"SLURM_NODEID", "0"},
                                                {"SLURM_STEP_NUM_TASKS", "2"},
                                                {"SLURM_STEP_TASKS_PER_NODE", "2"},
                                                {"SLURM_STEP_NODELIST", "node04"},
                                                {"SLURM_STEP_ID", "2"}}));
  EXPECT_EQ(job.world, 2);
  EXPECT_EQ(job.local_world, 2);
  EXPECT_EQ(job.master_addr, "node04");
  EXPECT_EQ(job.master_port, 15000 + 4711 + 2 * 131) << "two steps of one job may run side by side";
}

TEST(JobEnvironment, MasterVariablesWinOverSlurms) {
  const JobEnvironment job = read(with(kSlurm, {{"MASTER_ADDR", "head"}, {"MASTER_PORT", "6000"}}));
  EXPECT_EQ(job.master_addr, "head");
  EXPECT_EQ(job.master_port, 6000);
}

TEST(JobEnvironment, TasksPerMachineOfSlurmHaveSeveralSpellings) {
  const Environment two_by_four = with(
      kSlurm, {{"SLURM_NTASKS", "8"}, {"SLURM_PROCID", "5"}, {"SLURM_NODEID", "1"}, {"SLURM_TASKS_PER_NODE", "-"}});
  EXPECT_EQ(read(with(two_by_four, {{"SLURM_NTASKS_PER_NODE", "4"}})).local_world, 4);
  EXPECT_EQ(read(with(two_by_four, {{"SLURM_TASKS_PER_NODE", "4,4"}})).local_world, 4);
  EXPECT_EQ(read(with(two_by_four, {{"SLURM_NNODES", "1"}})).local_world, 8);
  EXPECT_THAT(error_of(two_by_four), AllOf(HasSubstr("SLURM_NTASKS=8"), HasSubstr("SLURM_TASKS_PER_NODE is not")));
}

TEST(JobEnvironment, PartialOrContradictorySlurmSettingsAreRefused) {
  EXPECT_THAT(error_of(with(kSlurm, {{"SLURM_NTASKS", "-"}})),
              HasSubstr("SLURM_PROCID=9 is set but SLURM_NTASKS is not"));
  EXPECT_THAT(error_of(with(kSlurm, {{"SLURM_LOCALID", "-"}})), HasSubstr("SLURM_LOCALID is not"));
  EXPECT_THAT(error_of(with(kSlurm, {{"SLURM_PROCID", "11"}})), HasSubstr("SLURM_PROCID=11 with SLURM_NTASKS=11"));
  EXPECT_THAT(error_of(with(kSlurm, {{"SLURM_LOCALID", "3"}})), HasSubstr("SLURM_LOCALID=3"));
  EXPECT_THAT(error_of(with(kSlurm, {{"SLURM_NODEID", "3"}})), HasSubstr("SLURM_NODEID=3 is past the end"));
  EXPECT_THAT(error_of(with(kSlurm, {{"SLURM_NODEID", "-"}})), HasSubstr("SLURM_NODEID is not"));
  EXPECT_THAT(error_of(with(kSlurm, {{"SLURM_NTASKS", "12"}})),
              HasSubstr("SLURM_TASKS_PER_NODE=4(x2),3 is 11 tasks but SLURM_NTASKS=12"));
  EXPECT_THAT(error_of(with(kSlurm, {{"SLURM_JOB_NODELIST", "-"}})), HasSubstr("set MASTER_ADDR"));
  EXPECT_THAT(error_of(with(kSlurm, {{"SLURM_JOB_ID", "-"}})), HasSubstr("set MASTER_PORT"));
  EXPECT_THAT(error_of(with(kSlurm, {{"WORLD_SIZE", "4"}})), HasSubstr("WORLD_SIZE=4 but slurm started 11"));
}

TEST(JobEnvironment, ABatchScriptOfSlurmIsASingleProcess) {
  const Environment batch = with(kSlurm, {{"SLURM_PROCID", "0"}, {"ENVIRONMENT", "BATCH"}});
  EXPECT_EQ(read(batch).source, JobSource::single);
  EXPECT_EQ(read(with(batch, {{"SLURM_STEP_ID", "0"}, {"SLURM_NODEID", "0"}})).source, JobSource::slurm)
      << "srun inside the script";
  EXPECT_EQ(read(with(kSlurm, {{"SLURM_PROCID", "-"}})).source, JobSource::single) << "a shell of salloc";
}

TEST(JobEnvironment, FirstHostOfASlurmListIsExpanded) {
  EXPECT_EQ(first_slurm_host("node03"), "node03");
  EXPECT_EQ(first_slurm_host("node[03-05,9]"), "node03");
  EXPECT_EQ(first_slurm_host("node[9,03-05],b"), "node9");
  EXPECT_EQ(first_slurm_host("login,node[03-05]"), "login");
  EXPECT_EQ(first_slurm_host("gpu-a[001-128]-ib0"), "gpu-a001-ib0");
  EXPECT_EQ(first_slurm_host("rack[2-3]node[00-15]"), "rack2node00");
  for (const char* bad : {"", "(null)", "node[03-05", "node03]", "node[]", "node[a-b]", ",a"}) {
    EXPECT_THROW(first_slurm_host(bad), ConfigError) << bad;
  }
}

TEST(JobEnvironment, TasksOfEachMachineAreExpanded) {
  const auto tasks = [](const char* list) {
    std::vector<int64_t> all;
    while (const auto count = slurm_tasks_on_node(list, static_cast<int64_t>(all.size()))) all.push_back(*count);
    return all;
  };
  EXPECT_THAT(tasks("4(x2),3"), testing::ElementsAre(4, 4, 3));
  EXPECT_THAT(tasks("8"), testing::ElementsAre(8));
  EXPECT_THAT(tasks("1,2(x3),5"), testing::ElementsAre(1, 2, 2, 2, 5));
  EXPECT_EQ(slurm_tasks_on_node("8(x100000),2", 100000), 2);
  for (const char* bad : {"", "4(x2", "4(x)", "x", "4,", ",4", "0", "4(x0)", "4(2)", "4)"}) {
    EXPECT_THROW(slurm_tasks_on_node(bad, 0), ConfigError) << bad;
  }
}

TEST(JobEnvironment, MpirunOnOneMachineNeedsNoMaster) {
  const Environment named = with(kOpenMpi, {{"PMIX_NAMESPACE", "prterun-host-17@1"}});
  const JobEnvironment job = read(named);
  EXPECT_EQ(job.source, JobSource::openmpi);
  EXPECT_EQ(job.rank, 1);
  EXPECT_EQ(job.world, 4);
  EXPECT_EQ(job.local_rank, 1);
  EXPECT_EQ(job.local_world, 4);
  EXPECT_EQ(job.node_rank, 0);
  EXPECT_EQ(job.master_addr, "127.0.0.1");
  EXPECT_GE(job.master_port, 15000);
  EXPECT_LT(job.master_port, 31384);
  EXPECT_EQ(read(with(named, {{"OMPI_COMM_WORLD_RANK", "2"}, {"OMPI_COMM_WORLD_LOCAL_RANK", "2"}})).master_port,
            job.master_port);
  EXPECT_NE(read(with(named, {{"PMIX_NAMESPACE", "prterun-host-18@1"}})).master_port, job.master_port) << "another job";
  EXPECT_EQ(read(kOpenMpi).master_port, 29500);
  EXPECT_EQ(read(with(named, {{"MASTER_PORT", "6000"}})).master_port, 6000);
}

TEST(JobEnvironment, MpirunOnSeveralMachinesNeedsAMaster) {
  const Environment several = with(kOpenMpi, {{"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}});
  EXPECT_THAT(error_of(several),
              AllOf(HasSubstr("mpirun started 4 processes, 2 of them on this machine"), HasSubstr("set MASTER_ADDR")));
  EXPECT_THAT(error_of(with(several, {{"MASTER_ADDR", "a"}})), HasSubstr("MASTER_PORT is not set"));
  const JobEnvironment job = read(with(several, {{"MASTER_ADDR", "a"}, {"MASTER_PORT", "6000"}}));
  EXPECT_EQ(job.master_addr, "a");
  EXPECT_EQ(job.node_rank, std::nullopt);
}

TEST(JobEnvironment, PartialOrContradictoryMpirunSettingsAreRefused) {
  for (const auto& [name, value] : kOpenMpi) {
    EXPECT_THAT(error_of(with(kOpenMpi, {{name, "-"}})), HasSubstr(name + " is not")) << name;
  }
  EXPECT_THAT(error_of(with(kOpenMpi, {{"OMPI_COMM_WORLD_RANK", "4"}})),
              HasSubstr("OMPI_COMM_WORLD_RANK=4 with OMPI_COMM_WORLD_SIZE=4"));
  EXPECT_THAT(error_of(with(kOpenMpi, {{"OMPI_COMM_WORLD_LOCAL_RANK", "4"}})),
              HasSubstr("OMPI_COMM_WORLD_LOCAL_RANK=4"));
  EXPECT_THAT(error_of(with(kOpenMpi, {{"OMPI_COMM_WORLD_LOCAL_SIZE", "5"}})),
              HasSubstr("OMPI_COMM_WORLD_LOCAL_SIZE=5"));
}

TEST(JobEnvironment, ThisProcessesOwnVariablesAreRead) {
  for (const auto& [name, value] : kTorchrun) ASSERT_EQ(setenv(name.c_str(), value.c_str(), 1), 0);
  EXPECT_EQ(read_job_environment().rank, 5);
  for (const auto& [name, value] : kTorchrun) unsetenv(name.c_str());
}

TEST(JobEnvironment, TakesATokenFromEveryLauncherAndNeverPrintsIt) {
  const std::string token = "c0ffee00c0ffee00c0ffee00c0ffee00";
  EXPECT_EQ(read(with(kTorchrun, {{"CONCORD_JOB_TOKEN", token}})).token, token);
  EXPECT_EQ(read(with(kSlurm, {{"CONCORD_JOB_TOKEN", token}})).token, token);
  EXPECT_EQ(read(kTorchrun).token, "");
  EXPECT_EQ(read(with(kTorchrun, {{"CONCORD_JOB_TOKEN", ""}})).token, "");
  EXPECT_THAT(error_of(with(kTorchrun, {{"CONCORD_JOB_TOKEN", "secret"}})),
              AllOf(HasSubstr("CONCORD_JOB_TOKEN has 6 characters"), testing::Not(HasSubstr("secret"))));
}

}  // namespace
}  // namespace concord
