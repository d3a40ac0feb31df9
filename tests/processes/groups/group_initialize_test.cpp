// initialize, finalize and the seeds, in real processes.
#include <ATen/Context.h>
#include <ATen/ops/full.h>
#include <ATen/ops/rand.h>
#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <sys/socket.h>

#include <thread>

#include "core/base/config_error.h"
#include "core/mesh/channel.h"
#include "core/torch/device.h"
#include "platform/loader/host.h"
#include "platform/loader/text.h"
#include "tests/processes/groups/group_job.h"

namespace concord::tests {
namespace {

using loader::cat;
using ::testing::AllOf;
using ::testing::HasSubstr;

template <class Body>
std::string words_of(Body body) {
  try {
    body();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "no error";
}

// Checks the error of initialize on each rank of a job whose ranks differ in |enter|; all must fail.
void expect_refused(int world, const std::function<InitializeArgs(int rank)>& enter, const std::string& words) {
  const int port = free_port();
  expect_ranks(world, [&](int rank) {
    enter_job(rank, world, port);
    const InitializeArgs args = enter(rank);
    EXPECT_THAT(words_of([&] { initialize(args); }), HasSubstr(words));
    EXPECT_FALSE(is_initialized());
  });
}

double sum_over(ProcessGroup& group, double value) {
  const at::Tensor tensor = at::full({1}, value, at::kDouble);
  group.all_reduce(tensor).wait();
  return tensor.item<double>();
}

TEST(Initialize, IsIdempotentAndResetsTheSeeds) {
  const InitializeArgs args{.tensor_model_parallel_size = 2, .seed = 7, .ddp_timeout = 900};
  expect_job(2, args, [&](ParallelContext& job) {
    EXPECT_TRUE(is_initialized());
    EXPECT_STREQ(loader::config("comm.timeout"), "900");  // passed to plugins
    EXPECT_STREQ(loader::config("comm.master"), "127.0.0.1");
    EXPECT_EQ(&parallel_context(), &job);
    const std::vector<RngState> fresh = job.rng().save();
    const at::Tensor first = at::rand({8});
    job.rng().current().restore({1, 2, 3});
    EXPECT_EQ(&initialize(args), &job);
    EXPECT_EQ(job.rng().save(), fresh);
    EXPECT_TRUE(at::rand({8}).equal(first)) << "libtorch's generator starts afresh, too";
  });
}

TEST(Initialize, TellsLibtorchAndThePluginOfDeterministicMode) {
  expect_job(1, {.deterministic_mode = true}, [](ParallelContext&) {
    EXPECT_TRUE(at::globalContext().deterministicAlgorithms());
    EXPECT_FALSE(at::globalContext().deterministicAlgorithmsWarnOnly());
    EXPECT_FALSE(at::globalContext().deterministicFillUninitializedMemory());
    EXPECT_STREQ(loader::config("deterministic"), "1");
  });
  expect_job(1, {}, [](ParallelContext&) {
    EXPECT_FALSE(at::globalContext().deterministicAlgorithms());
    EXPECT_EQ(loader::config("deterministic"), nullptr);
  });
}

TEST(Initialize, WithOtherArgumentsNamesTheDifference) {
  expect_job(2, {.tensor_model_parallel_size = 2}, [](ParallelContext& job) {
    EXPECT_THAT(words_of([] { initialize({.tensor_model_parallel_size = 1}); }),
                AllOf(HasSubstr("tensor_model_parallel_size 2 and now with 1"), HasSubstr("finalize first")));
    EXPECT_THAT(words_of([] { initialize({.tensor_model_parallel_size = 2, .seed = 9}); }),
                HasSubstr("seed 42 and now with 9"));
    EXPECT_EQ(sum_over(job.group(GroupKind::tp), 1), 2);
  });
}

TEST(Initialize, AgainAfterFinalizeTakesOtherArguments) {
  const int port = free_port();
  expect_ranks(4, [&](int rank) {
    enter_job(rank, 4, port);
    for (const int64_t tp : {2, 4, 1}) {
      ParallelContext& job = initialize({.tensor_model_parallel_size = tp});
      EXPECT_EQ(sum_over(job.group(GroupKind::tp), 1), static_cast<double>(tp));
      EXPECT_EQ(sum_over(job.world_group(), 1), 4);
      finalize();
      EXPECT_FALSE(is_initialized());
    }
    finalize();  // nothing to do
    EXPECT_THAT(words_of([] { parallel_context(); }), HasSubstr("call concord::initialize first"));
  });
}

TEST(Initialize, AgainInAnotherJobMeetsItsRanks) {
  const int whole = free_port();
  const int halves[] = {free_port(), free_port()};
  expect_ranks(4, [&](int rank) {
    enter_job(rank, 4, whole);
    EXPECT_EQ(sum_over(initialize({}).world_group(), rank), 6);
    finalize();
    enter_job(rank % 2, 2, halves[rank / 2]);
    EXPECT_EQ(sum_over(initialize({}).world_group(), rank), rank < 2 ? 1 : 5);
    finalize();
  });
}

TEST(Initialize, FromSeveralThreadsGivesOneContext) {
  const int port = free_port();
  expect_ranks(2, [&](int rank) {
    enter_job(rank, 2, port);
    std::vector<std::thread> threads;
    std::vector<ParallelContext*> seen(4);
    for (size_t i = 0; i < seen.size(); ++i) threads.emplace_back([&seen, i] { seen[i] = &initialize({}); });
    for (std::thread& thread : threads) thread.join();
    for (const ParallelContext* context : seen) EXPECT_EQ(context, seen.front());
    finalize();
  });
}

TEST(Initialize, WithoutALauncherIsAJobOfOne) {
  expect_ranks(1, [](int) {
    for (const char* name : {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"})
      unsetenv(name);
    EXPECT_EQ(sum_over(initialize({}).world_group(), 5), 5);
    finalize();
  });
}

TEST(Initialize, ReadsTheEnvironmentOfSrunAndMpirun) {
  const int port = free_port();
  expect_ranks(2, [&](int rank) {
    set_variable("SLURM_PROCID", cat(rank));
    set_variable("SLURM_NTASKS", "2");
    set_variable("SLURM_LOCALID", cat(rank));
    set_variable("SLURM_NODEID", "0");
    set_variable("SLURM_TASKS_PER_NODE", "2");
    set_variable("SLURM_JOB_NODELIST", "localhost");
    set_variable("MASTER_PORT", cat(port));
    EXPECT_EQ(sum_over(initialize({}).world_group(), rank + 1), 3);
    finalize();
  });
  const int other = free_port();
  expect_ranks(2, [&](int rank) {
    set_variable("OMPI_COMM_WORLD_RANK", cat(rank));
    set_variable("OMPI_COMM_WORLD_SIZE", "2");
    set_variable("OMPI_COMM_WORLD_LOCAL_RANK", cat(rank));
    set_variable("OMPI_COMM_WORLD_LOCAL_SIZE", "2");
    set_variable("MASTER_ADDR", "localhost");
    set_variable("MASTER_PORT", cat(other));
    EXPECT_EQ(sum_over(initialize({}).world_group(), rank + 1), 3);
    finalize();
  });
}

TEST(Initialize, RefusesArgumentsThatCannotBeMeant) {
  const auto all = [](const InitializeArgs& args) { return [args](int) { return args; }; };
  expect_refused(2, all({.tensor_model_parallel_size = 3}),
                 "tensor 3 x context 1 x pipeline 1 does not divide world size 2");
  expect_refused(2, all({.virtual_pipeline_model_parallel_size = 2}),
                 "interleaved schedule needs at least 2 pipeline stages");
  expect_refused(2, all({.expert_model_parallel_size = 4}), "does not divide world size 2");
  expect_refused(2, all({.order = "tp-xp"}), "unknown axis 'xp'");
  expect_refused(2, all({.order = "tp-tp"}), "contains the axis tp twice");
  expect_refused(1, all({.seed = 0}), "seed is 0; must be positive");
  expect_refused(1, all({.ddp_timeout = 0}), "ddp_timeout is 0");
}

TEST(Initialize, TellsEveryRankThatOneHasOtherArguments) {
  expect_refused(
      3, [](int rank) { return InitializeArgs{.seed = rank == 2 ? 8 : 7}; },
      "rank 2 was started with seed 8, rank 0 with seed 7; start all ranks with the same settings");
}

TEST(Initialize, TellsEveryRankOfTwoProcessesWithOneRank) {
  expect_refused(
      3,
      [](int rank) {
        if (rank == 2) set_variable("RANK", "1");
        return InitializeArgs{};
      },
      "two processes have rank 1 of 3");
}

TEST(Initialize, RefusesHalfAnEnvironment) {
  expect_ranks(1, [](int) {
    set_variable("RANK", "0");
    EXPECT_THAT(words_of([] { initialize({}); }), HasSubstr("WORLD_SIZE"));
  });
}

TEST(Initialize, SaysThatThePortIsInUse) {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  socklen_t length = sizeof address;
  ASSERT_EQ(bind(fd, reinterpret_cast<sockaddr*>(&address), length), 0);
  ASSERT_EQ(listen(fd, 1), 0);
  getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length);
  expect_ranks(1, [&](int) {
    enter_job(0, 2, ntohs(address.sin_port));
    set_variable("CONCORD_JOB_TOKEN", "a token, so that it needs the port");
    EXPECT_THAT(words_of([] { initialize({}); }),
                AllOf(HasSubstr("cannot serve the job's store at port"), HasSubstr("in use")));
  });
  close(fd);
}

TEST(Initialize, SaysThatThereMayBeASecondRankZero) {
  const int port = free_port();
  const auto outcomes = run_ranks(2, [&](int) {
    enter_job(0, 2, port);
    std::printf("%s\n", words_of([] { initialize({.ddp_timeout = 3}); }).c_str());
  });
  EXPECT_THAT(outcomes[0].output + outcomes[1].output,
              AllOf(HasSubstr("another process is listening there: a second process with rank 0"),
                    HasSubstr("only 1 of 2 ranks joined within 3000 ms; rank 0 waited for rank 1")));
}

TEST(Initialize, GivesUpOnAMasterOrARankThatNeverComes) {
  const int port = free_port();
  expect_ranks(1, [&](int) {
    enter_job(1, 2, port);
    EXPECT_THAT(words_of([] { initialize({.ddp_timeout = 1}); }), HasSubstr("rank 1 found no store at 127.0.0.1"));
  });
  expect_ranks(1, [&](int) {
    enter_job(0, 3, port);
    EXPECT_THAT(words_of([] { initialize({.ddp_timeout = 1}); }),
                HasSubstr("only 1 of 3 ranks joined within 1000 ms; rank 0 waited for ranks 1, 2"));
  });
}

TEST(Initialize, TakesTheDeviceOfTheLocalRank) {
  set_variable("CONCORD_CPU_DEVICES", "3");
  expect_job(4, {}, [](ParallelContext& job) { EXPECT_EQ(job.device().index(), job.rank() % 3); });
  unsetenv("CONCORD_CPU_DEVICES");
}

// Returns a dropout mask: 1 for kept elements.
at::Tensor mask(ParallelContext& job) {
  const at::Tensor uniform = at::full({64}, 0.0, at::kFloat);
  job.rng().current().uniform(torch_stream(job.device()), uniform.data_ptr(), 64, DType::kF32);
  return uniform.lt(0.5);
}

at::Tensor gathered(ProcessGroup& group, const at::Tensor& part) {
  const at::Tensor all = at::full({group.size(), part.numel()}, false, at::kBool);
  group.all_gather(all, part).wait();
  return all;
}

TEST(Seeds, GiveTensorParallelRanksDifferentMasksAndTheSameOnesAfterARestart) {
  for (int run = 0; run < 2; ++run) {
    expect_job(4, {.tensor_model_parallel_size = 2, .seed = 1234}, [](ParallelContext& job) {
      ProcessGroup& tp = job.group(GroupKind::tp);
      const at::Tensor shared = gathered(tp, mask(job));
      EXPECT_TRUE(shared[0].equal(shared[1])) << "the default stream is the same on all tensor-parallel ranks";
      const std::vector<RngState> before = job.rng().save();
      at::Tensor own;
      {
        const auto scope = job.rng().fork(kModelParallelRng);
        own = mask(job);
      }
      const at::Tensor all = gathered(tp, own);
      EXPECT_FALSE(all[0].equal(all[1]));
      // Counted with another implementation of Philox: the 32-bit words whose first bit is 0, at key 1234 + 2718 + tp.
      const at::Tensor counted = all.sum(1);
      EXPECT_EQ(cat(counted[0].item<int64_t>(), " ", counted[1].item<int64_t>()), "32 26");
      const auto replay = job.rng().replay(before);
      const auto scope = job.rng().fork(kModelParallelRng);
      EXPECT_TRUE(mask(job).equal(own)) << "recomputation draws the same mask";
    });
  }
}

}  // namespace
}  // namespace concord::tests
