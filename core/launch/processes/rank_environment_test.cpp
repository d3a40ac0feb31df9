#include "core/launch/processes/rank_environment.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>

#include "core/mesh/job_environment.h"

namespace concord {
namespace {

using testing::Contains;
using testing::Not;
using testing::StartsWith;

const RankPlace kPlace{1, 4, 2, 3, "10.0.0.7", 29400, 1, 5, 16, 8, 12};

TEST(RankEnvironment, HasEveryVariableOfTorchrun) {
  const std::vector<std::string> environment = rank_environment({}, kPlace);
  EXPECT_THAT(environment,
              testing::UnorderedElementsAre(
                  "RANK=9", "WORLD_SIZE=12", "LOCAL_RANK=1", "LOCAL_WORLD_SIZE=4", "GROUP_RANK=2", "GROUP_WORLD_SIZE=3",
                  "ROLE_NAME=default", "ROLE_RANK=9", "ROLE_WORLD_SIZE=12", "MASTER_ADDR=10.0.0.7", "MASTER_PORT=29400",
                  "TORCHELASTIC_RESTART_COUNT=1", "TORCHELASTIC_MAX_RESTARTS=5", "TORCHELASTIC_RUN_ID=none",
                  "TORCHELASTIC_USE_AGENT_STORE=False", "OMP_NUM_THREADS=4"));
}

TEST(RankEnvironment, KeepsTheOtherVariablesAndReplacesItsOwn) {
  const std::vector<std::string> base = {"PATH=/bin", "RANK=77", "RANKING=kept", "EMPTY=", "odd", "OMP_NUM_THREADS=3"};
  const std::vector<std::string> environment = rank_environment(base, kPlace);
  EXPECT_THAT(environment, testing::IsSupersetOf({"PATH=/bin", "RANKING=kept", "EMPTY=", "odd", "OMP_NUM_THREADS=3"}));
  EXPECT_THAT(environment, Not(Contains("RANK=77")));
  EXPECT_THAT(environment, Not(Contains("OMP_NUM_THREADS=4")));
}

TEST(RankEnvironment, ThreadsAreAnEvenShareOfTheCores) {
  RankPlace place = kPlace;
  place.cores = 2;
  EXPECT_THAT(rank_environment({}, place), Contains("OMP_NUM_THREADS=1"));
  place.nproc = 1;
  place.local_rank = 0;
  EXPECT_THAT(rank_environment({}, place), Not(Contains(StartsWith("OMP_NUM_THREADS"))));
}

TEST(RankEnvironment, EveryRankGetsItsOwnOfSeveralPlatformsAndTheFirstDevicesOfIt) {
  const std::vector<std::string> base = {"CONCORD_PLATFORM=cuda,ascend,cpu"};  // four ranks each
  RankPlace place = kPlace;
  place.first_rank = 6;
  std::vector<std::string> platforms;
  std::vector<int> devices;
  for (place.local_rank = 0; place.local_rank < place.nproc; ++place.local_rank) {
    const std::vector<std::string> environment = rank_environment(base, place);
    std::ranges::copy_if(environment, std::back_inserter(platforms),
                         [](const std::string& entry) { return entry.starts_with("CONCORD_PLATFORM="); });
    devices.push_back(device_index(base, place));
  }
  EXPECT_THAT(platforms, testing::ElementsAre("CONCORD_PLATFORM=ascend", "CONCORD_PLATFORM=ascend",
                                              "CONCORD_PLATFORM=cpu", "CONCORD_PLATFORM=cpu"));
  EXPECT_THAT(devices, testing::ElementsAre(0, 1, 0, 1));
}

TEST(RankEnvironment, OnePlatformAndTheLocalRankAreKept) {
  const std::vector<std::string> base = {"CONCORD_PLATFORM=ascend"};
  EXPECT_THAT(rank_environment(base, kPlace), Contains("CONCORD_PLATFORM=ascend"));
  EXPECT_EQ(device_index(base, kPlace), 1);
}

TEST(RankEnvironment, IsWhatTheReaderOfJobEnvironmentsExpects) {
  const std::vector<std::string> environment = rank_environment({}, kPlace);
  const JobEnvironment job = read_job_environment([&](const char* name) -> std::optional<std::string> {
    const std::string start = std::string(name) + "=";
    for (const std::string& entry : environment) {
      if (entry.starts_with(start)) return entry.substr(start.size());
    }
    return std::nullopt;
  });
  EXPECT_EQ(job.source, JobSource::torchrun);
  EXPECT_EQ(job.rank, 9);
  EXPECT_EQ(job.world, 12);
  EXPECT_EQ(job.node_rank, 2);
  EXPECT_EQ(job.master_addr, "10.0.0.7");
  EXPECT_FALSE(job.agent_store);
}

}  // namespace
}  // namespace concord
