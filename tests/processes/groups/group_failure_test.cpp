// The errors of a group if a rank is killed, does not join, or makes a different call.
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <sys/mman.h>

#include <atomic>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "core/mesh/store/rendezvous.h"
#include "platform/cpp/concord.hpp"
#include "tests/processes/groups/group_job.h"

namespace concord::tests {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

at::Tensor filled(int64_t count, double value) { return at::full({count}, value, at::kFloat); }

template <class Body>
std::pair<concord_status, std::string> error_of(Body body) {
  try {
    body();
  } catch (const Error& error) {
    return {error.status(), error.what()};
  }
  return {CONCORD_STATUS_OK, "no error"};
}

json flight_of(const std::string& folder, int rank) {
  std::ifstream file(folder + "/concord-flight-" + std::to_string(rank) + ".json");
  return json::parse(file, nullptr, false);
}

// A barrier for ranks, forked after its creation, with their platforms loaded: a timeout of some seconds then covers
// only the tested code, and not the start of processes on a busy machine.
class StartingLine {
 public:
  explicit StartingLine(int world) : world_(world) {
    void* const shared = mmap(nullptr, sizeof(*ready_), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED) throw std::system_error(errno, std::generic_category(), "mmap");
    ready_ = new (shared) std::atomic<int>(0);
  }
  ~StartingLine() { munmap(ready_, sizeof(*ready_)); }
  StartingLine(const StartingLine&) = delete;
  StartingLine& operator=(const StartingLine&) = delete;

  void wait() const {
    (void)current_platform();
    ready_->fetch_add(1);
    while (ready_->load() < world_) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }

 private:
  int world_;
  std::atomic<int>* ready_ = nullptr;
};

// Runs a job whose ranks exit without finalize, each after |body|.
void expect_broken_job(int world, const InitializeArgs& args, const JobBody& body, std::vector<int> killed = {}) {
  const int port = free_port();
  const StartingLine start(world);
  const auto outcomes = run_ranks(world, [&](int rank) {
    enter_job(rank, world, port);
    start.wait();
    ParallelContext& job = initialize(args);
    body(job);
    // Rank 0 serves the store, so it exits last.
    job.store().set("ended/" + std::to_string(rank), "1");
    for (int other = 1; rank == 0 && other < world; ++other) {
      if (std::find(killed.begin(), killed.end(), other) != killed.end()) continue;
      job.store().get("ended/" + std::to_string(other), std::chrono::seconds(60));
    }
    job.stop_watching();
  });
  for (const Outcome& outcome : outcomes) {
    const bool dead = std::find(killed.begin(), killed.end(), outcome.rank) != killed.end();
    EXPECT_TRUE(dead ? outcome.signal == SIGKILL : outcome.ok()) << outcome.describe();
  }
}

TEST(BrokenGroup, AKilledRankIsNamedWithItsLastCall) {
  const TemporaryFolder folder;
  expect_broken_job(
      3, {.ddp_timeout = 60, .flight_folder = folder.path()},
      [](ParallelContext& job) {
        ProcessGroup& group = job.world_group();
        for (int i = 0; i < 4; ++i) group.all_reduce(filled(10, 1)).wait();
        if (job.rank() == 2) raise(SIGKILL);
        const auto [status, words] = error_of([&] { group.all_reduce(filled(1024, 1)).wait(); });
        EXPECT_EQ(status, CONCORD_STATUS_PEER_LOST) << words;
        EXPECT_THAT(words, AllOf(HasSubstr("group world (ranks 0,1,2): all_reduce sum f32 x 1024 (call 5) failed"),
                                 StartsWith("rank 2 is behind in group world: no answer (pid "),
                                 HasSubstr(" has ended); the others are at call 5")));
        const auto [again, same] = error_of([&] { group.barrier().wait(); });
        EXPECT_EQ(again, CONCORD_STATUS_PEER_LOST);
        EXPECT_EQ(same, words) << "the failure stays";
      },
      {2});
  for (const int rank : {0, 1}) {
    const json flight = flight_of(folder.path(), rank);
    ASSERT_TRUE(flight.is_object()) << rank;
    ASSERT_EQ(flight["calls"].size(), 5u);
    EXPECT_EQ(flight["calls"][3]["state"], "done");
    EXPECT_EQ(flight["calls"][4]["state"], "failed");
    EXPECT_EQ(flight["calls"][4]["count"], 1024);
    EXPECT_THAT(flight["why"].get<std::string>(), HasSubstr("rank 2 is behind"));
  }
}

TEST(BrokenGroup, ARankThatDoesNotComeIsNamedWithItsLastCall) {
  const TemporaryFolder folder;
  expect_broken_job(
      4, {.tensor_model_parallel_size = 4, .ddp_timeout = 4, .flight_folder = folder.path()}, [](ParallelContext& job) {
        ProcessGroup& tp = job.group(GroupKind::tp);
        for (int i = 0; i < 17; ++i) tp.all_reduce(filled(1024, 1)).wait();
        if (job.rank() == 3) {  // busy with something else, but alive
          for (int other = 0; other < 3; ++other)
            job.store().get("done/" + std::to_string(other), std::chrono::seconds(60));
          return;
        }
        const auto [status, words] = error_of([&] { tp.reduce_scatter(filled(2, 0), filled(8, 1)).wait(); });
        job.store().set("done/" + std::to_string(job.rank()), "1");
        EXPECT_EQ(status, CONCORD_STATUS_TIMEOUT) << words;
        EXPECT_THAT(
            words,
            HasSubstr("rank 3 is behind in group tp: it finished call 17 (all_reduce sum f32 x 1024) and not call "
                      "18; the others are at call 18 (reduce_scatter sum f32 x 2)"));
      });
  EXPECT_EQ(flight_of(folder.path(), 0)["calls"].size(), 18u);
  const json behind = flight_of(folder.path(), 3);
  ASSERT_TRUE(behind.is_object()) << "the rank that is behind writes its calls, too";
  EXPECT_EQ(behind["calls"].size(), 17u);
  EXPECT_EQ(behind["calls"][16]["group"], "tp");
  EXPECT_THAT(behind["why"].get<std::string>(), HasSubstr("asked by another rank: rank "));
}

// At some moment of a loop of calls, usually in the middle of one.
TEST(BrokenGroup, ARankKilledDuringACallIsNamed) {
  for (const int moment : {1, 13, 57}) {
    const TemporaryFolder folder;
    expect_broken_job(3, {.ddp_timeout = 60, .flight_folder = folder.path()},
                      [moment](ParallelContext& job) {
                        ProcessGroup& group = job.world_group();
                        const at::Tensor large = filled(1 << 20, 1);
                        group.barrier().wait();
                        std::thread killer;
                        if (job.rank() == 1) {
                          killer = std::thread([moment] {
                            std::this_thread::sleep_for(std::chrono::milliseconds(moment));
                            raise(SIGKILL);
                          });
                        }
                        const auto [status, words] = error_of([&] {
                          for (;;) group.all_reduce(large, ReduceOp::kMax).wait();
                        });
                        EXPECT_EQ(status, CONCORD_STATUS_PEER_LOST) << words;
                        EXPECT_THAT(words, AllOf(HasSubstr("all_reduce max f32 x 1048576 (call "),
                                                 HasSubstr("rank 1 is behind in group world: no answer")));
                      },
                      {1});
  }
}

// Rank 0 serves the store, so it cannot be queried; the plugin's error still names the rank.
TEST(BrokenGroup, RankZeroKilledIsNamedByTheOthers) {
  const TemporaryFolder folder;
  const int port = free_port();
  const auto outcomes = run_ranks(3, [&](int rank) {
    enter_job(rank, 3, port);
    ParallelContext& job = initialize({.ddp_timeout = 60, .flight_folder = folder.path()});
    job.world_group().barrier().wait();
    if (rank == 0) raise(SIGKILL);
    const auto [status, words] = error_of([&] { job.world_group().all_reduce(filled(4, 1)).wait(); });
    EXPECT_EQ(status, CONCORD_STATUS_PEER_LOST) << words;
    EXPECT_THAT(words,
                AllOf(HasSubstr("all_reduce sum f32 x 4 (call 2) failed"), HasSubstr("rank 0"),
                      HasSubstr("positions of the other ranks are not available"), HasSubstr("concord-flight-")));
    finalize();  // returns, although the store has no server
  });
  EXPECT_EQ(outcomes[0].signal, SIGKILL);
  for (const int rank : {1, 2}) {
    EXPECT_TRUE(outcomes[static_cast<size_t>(rank)].ok()) << outcomes[static_cast<size_t>(rank)].describe();
    EXPECT_EQ(flight_of(folder.path(), rank)["calls"].size(), 2u);
  }
}

// A stopped process or a disconnected machine sends nothing and closes nothing.
TEST(BrokenGroup, AStoreThatDoesNotAnswerHoldsNobodyUp) {
  const TemporaryFolder folder;
  const int port = free_port();
  const StartingLine start(2);
  const auto outcomes = run_ranks(2, [&](int rank) {
    enter_job(rank, 2, port);
    start.wait();
    ParallelContext& job = initialize({.ddp_timeout = 4, .flight_folder = folder.path()});
    if (rank == 0) job.store().set("pid", std::to_string(getpid()));
    const pid_t server = std::stoi(job.store().get("pid", std::chrono::seconds(60)));
    job.world_group().barrier().wait();
    if (rank == 0) raise(SIGSTOP);
    const auto [status, words] = error_of([&] { job.world_group().all_reduce(filled(4, 1)).wait(); });
    EXPECT_EQ(status, CONCORD_STATUS_TIMEOUT) << words;
    EXPECT_THAT(words, AllOf(StartsWith("rank 0 does not answer (pid " + std::to_string(server) + " is stopped); "),
                             HasSubstr("all_reduce sum f32 x 4 (call 2) failed"),
                             HasSubstr("positions of the other ranks are not available"),
                             HasSubstr("has not answered for 5000 ms")));
    finalize();
    kill(server, SIGKILL);
  });
  EXPECT_EQ(outcomes[0].signal, SIGKILL) << outcomes[0].describe();
  EXPECT_TRUE(outcomes[1].ok()) << outcomes[1].describe();
}

TEST(BrokenGroup, WorkThatNobodyWaitsForFailsAtTheNextCall) {
  const TemporaryFolder folder;
  expect_broken_job(2, {.ddp_timeout = 60, .flight_folder = folder.path()},
                    [](ParallelContext& job) {
                      job.world_group().barrier().wait();
                      if (job.rank() == 1) raise(SIGKILL);
                      const Work work = job.world_group().all_reduce(filled(10, 1));
                      while (!job.failed())
                        std::this_thread::sleep_for(std::chrono::milliseconds(20));  // the watchdog finds it
                      EXPECT_EQ(error_of([&] { (void)job.world_group().barrier(); }).first, CONCORD_STATUS_PEER_LOST);
                      EXPECT_EQ(error_of([&] { work.synchronize(); }).first, CONCORD_STATUS_PEER_LOST);
                      EXPECT_EQ(error_of([&] { work.is_completed(); }).first, CONCORD_STATUS_PEER_LOST);
                    },
                    {1});
}

TEST(BrokenGroup, ATransferThatNobodyAnswersSaysWhereTheMembersAre) {
  const TemporaryFolder folder;
  expect_broken_job(
      2, {.pipeline_model_parallel_size = 2, .ddp_timeout = 4, .flight_folder = folder.path()},
      [](ParallelContext& job) {
        ProcessGroup& pp = job.group(GroupKind::pp);
        const at::Tensor x = filled(4, 1);
        pp.batch_p2p(std::vector{job.rank() == 0 ? send(x, 1) : recv(x, 0)}).wait();
        if (job.rank() == 0) {
          job.store().get("done", std::chrono::seconds(60));
          return;
        }
        const auto [status, words] = error_of([&] { pp.batch_p2p(std::vector{recv(x, 0)}).wait(); });
        job.store().set("done", "1");
        EXPECT_EQ(status, CONCORD_STATUS_TIMEOUT) << words;
        EXPECT_THAT(
            words,
            AllOf(HasSubstr("p2p f32 (recv 4 from 0) (call 2) failed"),
                  HasSubstr(
                      "rank 0 is past call 1 (p2p f32 (send 4 to 1)), rank 1 is at call 2 (p2p f32 (recv 4 from 0))")));
      });
}

TEST(BrokenGroup, ARankThatDoesNotJoinIsNamed) {
  const TemporaryFolder folder;
  expect_broken_job(
      3, {.tensor_model_parallel_size = 3, .ddp_timeout = 4, .flight_folder = folder.path()}, [](ParallelContext& job) {
        if (job.rank() == 1) {
          for (const int other : {0, 2}) job.store().get("done/" + std::to_string(other), std::chrono::seconds(60));
          return;
        }
        const auto [status, words] = error_of([&] { job.group(GroupKind::tp).barrier().wait(); });
        job.store().set("done/" + std::to_string(job.rank()), "1");
        EXPECT_EQ(status, CONCORD_STATUS_TIMEOUT) << words;
        EXPECT_THAT(
            words, AllOf(HasSubstr("group tp (ranks 0,1,2)"), HasSubstr("could not be created: not joined by rank 1")));
      });
}

// No part of a group exists yet that could detect it; the others would wait for the whole timeout.
TEST(BrokenGroup, ARankThatDiesBeforeTheFirstCallIsNotWaitedFor) {
  const TemporaryFolder folder;
  expect_broken_job(3, {.ddp_timeout = 100, .flight_folder = folder.path()},
                    [](ParallelContext& job) {
                      if (job.rank() == 1) raise(SIGKILL);
                      const auto [status, words] = error_of([&] { job.world_group().barrier().wait(); });
                      EXPECT_EQ(status, CONCORD_STATUS_PEER_LOST) << words;
                      EXPECT_THAT(words, AllOf(StartsWith("rank 1 is behind in group world: no answer (pid "),
                                               HasSubstr("could not be created: not joined by rank 1 (pid ")));
                    },
                    {1});
}

// All ranks join the rendezvous, and one has exited when it is complete.
TEST(BrokenGroup, ARankThatDiesWhileTheOthersStartIsNotWaitedFor) {
  const TemporaryFolder folder;
  const std::string pid_file = folder.path() + "/pid";
  const int port = free_port();
  const auto outcomes = run_ranks(3, [&](int rank) {
    enter_job(rank, 3, port);
    if (rank == 1) std::ofstream(pid_file) << getpid() << std::endl;
    if (rank == 2) {
      const auto store = connect_store(read_job_environment(), std::chrono::seconds(60));
      while (store->add("concord/0/1/rendezvous/arrived", 0) < 2)
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      pid_t other = 0;
      std::ifstream(pid_file) >> other;
      kill(other, SIGKILL);
      while (kill(other, 0) == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    ParallelContext& job = initialize({.ddp_timeout = 100, .flight_folder = folder.path()});
    const auto [status, words] = error_of([&] { job.world_group().barrier().wait(); });
    EXPECT_EQ(status, CONCORD_STATUS_PEER_LOST) << words;
    EXPECT_THAT(words, HasSubstr("not joined by rank 1 (pid "));
    finalize();
  });
  EXPECT_EQ(outcomes[1].signal, SIGKILL) << outcomes[1].describe();
  for (const size_t rank : {0, 2}) EXPECT_TRUE(outcomes[rank].ok()) << outcomes[rank].describe();
}

TEST(BrokenGroup, ARankThatIsStoppedIsTheFirstThatIsNamed) {
  const TemporaryFolder folder;
  expect_broken_job(3, {.ddp_timeout = 4, .flight_folder = folder.path()},
                    [](ParallelContext& job) {
                      job.store().set("pid/" + std::to_string(job.rank()), std::to_string(getpid()));
                      const pid_t stopped = std::stoi(job.store().get("pid/2", std::chrono::seconds(60)));
                      job.world_group().barrier().wait();
                      if (job.rank() == 2) raise(SIGSTOP);
                      const auto [status, words] = error_of([&] { job.world_group().all_reduce(filled(4, 1)).wait(); });
                      EXPECT_EQ(status, CONCORD_STATUS_TIMEOUT) << words;
                      EXPECT_THAT(words, StartsWith("rank 2 is behind in group world: no answer (pid " +
                                                    std::to_string(stopped) + " is stopped); "));
                      job.store().set("named/" + std::to_string(job.rank()), "1");
                      for (const char* other : {"named/0", "named/1"}) job.store().get(other, std::chrono::seconds(60));
                      if (job.rank() == 0) kill(stopped, SIGKILL);
                    },
                    {2});
}

// With the checks enabled, ranks that make different calls get an error that names both.
std::string validated(ParallelContext& job, const std::function<Work(ProcessGroup&)>& zero,
                      const std::function<Work(ProcessGroup&)>& one) {
  ProcessGroup& group = job.world_group();
  group.barrier().wait();
  const auto [status, words] = error_of([&] { (job.rank() == 0 ? zero(group) : one(group)).wait(); });
  EXPECT_EQ(status, CONCORD_STATUS_INVALID_ARGUMENT) << words;
  return words;
}

void with_checks(const JobBody& body) {
  set_variable("CONCORD_LAYERS", "validate");
  expect_broken_job(2, {.ddp_timeout = 20}, body);
  unsetenv("CONCORD_LAYERS");
}

Work reduce_of(ProcessGroup& group, int64_t count, at::ScalarType type, ReduceOp op = ReduceOp::kSum) {
  return group.all_reduce(at::zeros({count}, type), op);
}

TEST(CheckedGroup, NamesBothCallsWhereTheyDiffer) {
  with_checks([](ParallelContext& job) {
    const std::string count = validated(
        job, [](ProcessGroup& g) { return reduce_of(g, 4, at::kFloat); },
        [](ProcessGroup& g) { return reduce_of(g, 5, at::kFloat); });
    EXPECT_THAT(count, AllOf(HasSubstr("call 2 of group world"), HasSubstr("all_reduce sum f32 x 4"),
                             HasSubstr("all_reduce sum f32 x 5")));
    EXPECT_THAT(validated(
                    job, [](ProcessGroup& g) { return reduce_of(g, 4, at::kFloat); },
                    [](ProcessGroup& g) { return reduce_of(g, 4, at::kBFloat16); }),
                AllOf(HasSubstr("f32 x 4"), HasSubstr("bf16 x 4")));
    EXPECT_THAT(validated(
                    job, [](ProcessGroup& g) { return reduce_of(g, 4, at::kFloat); },
                    [](ProcessGroup& g) { return reduce_of(g, 4, at::kFloat, ReduceOp::kMax); }),
                AllOf(HasSubstr("sum f32"), HasSubstr("max f32")));
    EXPECT_THAT(validated(
                    job, [](ProcessGroup& g) { return g.barrier(); },
                    [](ProcessGroup& g) { return g.broadcast(filled(3, 1), 1); }),
                AllOf(HasSubstr("barrier"), HasSubstr("broadcast f32 x 3 from 1")));
    const at::Tensor right = filled(4, 1);
    job.world_group().all_reduce(right).wait();
    EXPECT_TRUE(right.equal(filled(4, 2))) << "nothing was sent, so the group is as good as before";
  });
}

TEST(CheckedGroup, NamesCountsThatDoNotMeet) {
  with_checks([](ParallelContext& job) {
    const std::vector<int64_t> good = {2, 2}, other = {1, 3};
    const at::Tensor four = filled(4, 1);
    const at::Tensor out = filled(4, 0);
    const std::string words = validated(
        job, [&](ProcessGroup& g) { return g.all_to_all_v(out, four, good, other); },
        [&](ProcessGroup& g) { return g.all_to_all_v(out, four, good, good); });
    EXPECT_THAT(words,
                HasSubstr("all_to_all_v f32, does not match: rank 0 sends 1 elements to rank 0, which expects 2"));
  });
}

TEST(CheckedGroup, NamesATransferThatDoesNotMeet) {
  with_checks([](ParallelContext& job) {
    ProcessGroup& group = job.world_group();
    group.barrier().wait();
    if (job.rank() == 0) {
      (void)group.batch_p2p(std::vector{send(filled(4, 1), 1)});
      job.store().get("seen", std::chrono::seconds(60));
      return;
    }
    const auto [status, words] = error_of([&] { group.batch_p2p(std::vector{recv(filled(5, 1), 0)}).wait(); });
    job.store().set("seen", "1");
    EXPECT_EQ(status, CONCORD_STATUS_INVALID_ARGUMENT);
    EXPECT_THAT(words, HasSubstr("rank 0 sends f32 x 4, rank 1 expects f32 x 5"));
  });
}

TEST(CheckedGroup, NamesARankThatDoesNotCome) {
  set_variable("CONCORD_LAYERS", "validate");
  const TemporaryFolder folder;
  expect_broken_job(2, {.ddp_timeout = 4, .flight_folder = folder.path()}, [](ParallelContext& job) {
    job.world_group().barrier().wait();
    if (job.rank() == 1) {
      job.store().get("seen", std::chrono::seconds(60));
      return;
    }
    const auto [status, words] = error_of([&] { job.world_group().all_reduce(filled(4, 1)).wait(); });
    job.store().set("seen", "1");
    EXPECT_EQ(status, CONCORD_STATUS_TIMEOUT);
    EXPECT_THAT(words,
                AllOf(HasSubstr("rank 1 has not made call 2 of group world within 4000 ms"),
                      HasSubstr("rank 0 makes all_reduce sum f32 x 4"),
                      HasSubstr("rank 1 is behind in group world: it finished call 1 (barrier) and not call 2")));
    EXPECT_TRUE(job.failed()) << "that rank may come later, when this one is gone";
  });
  unsetenv("CONCORD_LAYERS");
}

}  // namespace
}  // namespace concord::tests
