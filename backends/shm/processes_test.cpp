// What only real processes show: ranks that are killed or stopped, what is left behind, lack of memory.
#include <dirent.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <set>
#include <sstream>
#include <thread>
#include <vector>

#include "backends/shm/communicator.h"
#include "backends/shm/process.h"
#include "backends/shm/testing/ranks.hpp"
#include "platform/base/sanitizer.hpp"

namespace concord::shm::testing {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;
using ::testing::HasSubstr;

void sum_floats(Engine& comm, int64_t count) {
  std::vector<float> data(static_cast<size_t>(count), 1.0f);
  comm.all_reduce(data.data(), data.data(), count, CONCORD_DTYPE_F32, CONCORD_REDUCE_SUM);
}

// What a test's ranks tell it while they run: a pipe that any of them may write a byte to.
class Signal {
 public:
  Signal() {
    if (::pipe(ends_) != 0) std::abort();
  }
  ~Signal() {
    ::close(ends_[0]);
    ::close(ends_[1]);
  }
  void give() const { EXPECT_EQ(::write(ends_[1], "x", 1), 1); }
  void wait() const {
    char byte = 0;
    EXPECT_EQ(::read(ends_[0], &byte, 1), 1);
  }

 private:
  int ends_[2];
};

std::set<std::string> files_in(const std::string& folder) {
  std::set<std::string> names;
  DIR* directory = ::opendir(folder.c_str());
  while (const dirent* entry = directory != nullptr ? ::readdir(directory) : nullptr) names.insert(entry->d_name);
  if (directory != nullptr) ::closedir(directory);
  return names;
}

std::string read_file(const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

// ---------------------------------------------------------------------------------------------------------- identities

TEST(ProcessTest, AProcessIsKnownFromItsStartToItsEnd) {
  Signal go;
  tests::Ranks ranks(1, [&](int) { go.wait(); });
  const std::string stat = read_file("/proc/" + std::to_string(ranks.pid(0)) + "/stat");
  ProcessIdentity process = this_process();
  EXPECT_EQ(process.pid, ::getpid());
  EXPECT_EQ(state_of(process), ProcessState::kRunning);
  std::istringstream fields(stat.substr(stat.rfind(')') + 2));
  std::string field;
  for (int i = 3; i <= 22; ++i) fields >> field;  // its start time, by the manual
  process.pid = ranks.pid(0);
  process.start_time = std::stoull(field);
  EXPECT_EQ(state_of(process), ProcessState::kRunning);
  ranks.signal(0, SIGSTOP);
  while (state_of(process) == ProcessState::kRunning) std::this_thread::yield();
  EXPECT_EQ(state_of(process), ProcessState::kStopped);
  EXPECT_EQ(describe(process), "pid " + std::to_string(process.pid) + ", stopped");
  ranks.signal(0, SIGKILL);
  while (state_of(process) != ProcessState::kEnded) std::this_thread::yield();  // a zombie: nobody has waited for it
  ranks.wait();
  EXPECT_EQ(state_of(process), ProcessState::kEnded);
}

TEST(ProcessTest, ANumberThatWasUsedAgainIsAnotherProcess) {
  ProcessIdentity process = this_process();
  ++process.start_time;
  EXPECT_EQ(state_of(process), ProcessState::kEnded);
  process = this_process();
  ++process.pid_namespace;
  EXPECT_EQ(state_of(process), ProcessState::kUnknown);
}

// -------------------------------------------------------------------------------------------------------- killed peers

// Rank 1 is killed; every other rank has to report PEER_LOST, naming it. Prints how long that took.
void expect_peer_lost(int world, const Body& survivors, const Body& victim) {
  const Id id = new_id();
  Signal ready;
  Signal result;
  std::vector<pid_t> pids;
  tests::Ranks ranks(world, [&](int rank) {
    auto comm = connect(world, rank, id);
    comm->barrier();
    if (rank == 1) {
      ready.give();
      while (true) victim(*comm);
    }
    const Caught caught = failure_of([&] {
      while (true) survivors(*comm);
    });
    EXPECT_EQ(caught.status, CONCORD_STATUS_PEER_LOST) << caught.text;
    EXPECT_THAT(caught.text, HasSubstr("rank 1 (pid "));
    EXPECT_THAT(caught.text, HasSubstr("'test'"));
    EXPECT_EQ(failure_of([&] { comm->barrier(); }).text, caught.text);
    std::printf("%s\n", caught.text.c_str());
  });
  ready.wait();
  std::this_thread::sleep_for(milliseconds(100));  // let it get into the midst of things
  const auto start = Clock::now();
  ranks.signal(1, SIGKILL);
  const auto outcomes = ranks.wait();
  const auto took = std::chrono::duration_cast<milliseconds>(Clock::now() - start);
  for (const tests::Outcome& outcome : outcomes) {
    if (outcome.rank == 1) {
      EXPECT_EQ(outcome.signal, SIGKILL) << outcome.describe();
    } else {
      EXPECT_TRUE(outcome.ok()) << outcome.describe();
      EXPECT_THAT(outcome.output, HasSubstr(sdk::text("rank 1 (pid %d)", ranks.pid(1))));
    }
  }
  std::printf("all %d survivors had reported the loss and ended after %lld ms\n", world - 1,
              static_cast<long long>(took.count()));
  ::testing::Test::RecordProperty("milliseconds", static_cast<int>(took.count()));
}

void do_nothing(Communicator&) { std::this_thread::sleep_for(milliseconds(10)); }

TEST(KilledPeerTest, IsReportedByNameWhenKilledInSmallOperations) {
  const auto small = [](Communicator& comm) { sum_floats(comm, 100); };
  expect_peer_lost(4, small, small);
}

TEST(KilledPeerTest, IsReportedByNameWhenKilledInALargeOperation) {
  const auto large = [](Communicator& comm) { sum_floats(comm, 16 << 20); };
  expect_peer_lost(3, large, large);
}

TEST(KilledPeerTest, IsReportedByNameWhenItNeverArrived) {
  expect_peer_lost(3, [](Communicator& comm) { comm.barrier(); }, do_nothing);
}

TEST(KilledPeerTest, IsReportedByNameByWhoReceivesFromIt) {
  expect_peer_lost(
      2,
      [](Communicator& comm) {
        std::vector<char> data(1000);
        const concord_p2p_item item{CONCORD_P2P_RECV, 1, data.data(), 1000, CONCORD_DTYPE_I8, 0};
        comm.batch_p2p({&item, 1});
      },
      do_nothing);
}

TEST(KilledPeerTest, IsReportedByNameByWhoSendsMuchToIt) {
  expect_peer_lost(
      2,
      [](Communicator& comm) {
        std::vector<char> data(8 << 20);
        const concord_p2p_item item{CONCORD_P2P_SEND, 1, data.data(), 8 << 20, CONCORD_DTYPE_I8, 0};
        comm.batch_p2p({&item, 1});
      },
      do_nothing);
}

TEST(KilledPeerTest, WhoEndsRightAfterItsLastOperationHarmsNobody) {
  for (int i = 0; i < 20; ++i) {
    in_processes(4, [&](Communicator& comm) { sum_floats(comm, 300007 + i); });
  }
}

TEST(KilledPeerTest, WhatItSentBeforeItsEndStillArrives) {
  in_processes(2, [](Communicator& comm) {
    std::vector<char> data(5000, comm.rank() == 0 ? 'a' : 'b');
    const concord_p2p_kind kind = comm.rank() == 0 ? CONCORD_P2P_SEND : CONCORD_P2P_RECV;
    const concord_p2p_item item{kind, 1 - comm.rank(), data.data(), 5000, CONCORD_DTYPE_I8, 0};
    if (comm.rank() == 1) std::this_thread::sleep_for(milliseconds(400));  // rank 0 has ended by then
    comm.batch_p2p({&item, 1});
    EXPECT_EQ(data, std::vector<char>(5000, 'a'));
  });
}

TEST(KilledPeerTest, InSetUpIsReportedByName) {
  for (const int victim : {0, 1}) {  // world of 3; rank 2 never joins
    const Id id = new_id();
    Signal connecting;
    tests::Ranks ranks(2, [&](int rank) {
      if (rank == victim) connecting.give();
      const Caught caught = failure_of([&] { connect(3, rank, id); });
      EXPECT_EQ(caught.status, CONCORD_STATUS_PEER_LOST) << caught.text;
      EXPECT_THAT(caught.text, HasSubstr(sdk::text("rank %d (pid", victim)));
      EXPECT_THAT(caught.text, HasSubstr("has ended during set-up"));
    });
    connecting.wait();
    std::this_thread::sleep_for(milliseconds(500));
    ranks.signal(victim, SIGKILL);
    const auto outcomes = ranks.wait();
    EXPECT_TRUE(outcomes[static_cast<size_t>(1 - victim)].ok()) << outcomes[static_cast<size_t>(1 - victim)].describe();
  }
}

TEST(StoppedPeerTest, IsATimeoutThatSaysSo) {
  const Id id = new_id();
  Signal ready;
  tests::Ranks ranks(2, [&](int rank) {
    auto comm = connect(2, rank, id, test_options("test", milliseconds(1500)));
    if (rank == 1) {
      ready.give();
      while (true) do_nothing(*comm);
    }
    const Caught caught = failure_of([&] { comm->barrier(); });
    EXPECT_EQ(caught.status, CONCORD_STATUS_TIMEOUT);
    EXPECT_THAT(caught.text, HasSubstr("rank 1 (pid"));
    EXPECT_THAT(caught.text, HasSubstr(", stopped"));
  });
  ready.wait();
  ranks.signal(1, SIGSTOP);
  while (read_file("/proc/" + std::to_string(ranks.pid(0)) + "/stat").find(") Z") == std::string::npos) {
    std::this_thread::sleep_for(milliseconds(20));
  }
  ranks.signal(1, SIGKILL);
  const auto outcomes = ranks.wait();
  EXPECT_TRUE(outcomes[0].ok()) << outcomes[0].describe();
}

TEST(StoppedPeerTest, GoesOnWhenItIsContinuedInTime) {
  const Id id = new_id();
  Signal ready;
  tests::Ranks ranks(2, [&](int rank) {
    auto comm = connect(2, rank, id);
    if (rank == 1) ready.give();
    for (int i = 0; i < 20000; ++i) comm->barrier();
  });
  ready.wait();
  ranks.signal(1, SIGSTOP);
  std::this_thread::sleep_for(milliseconds(400));
  ranks.signal(1, SIGCONT);
  for (const tests::Outcome& outcome : ranks.wait()) EXPECT_TRUE(outcome.ok()) << outcome.describe();
}

// ------------------------------------------------------------------------------------------------- what is left behind

TEST(LeftBehindTest, NothingHasANameNotEvenAfterKill) {
  const auto before = files_in("/dev/shm");
  const Id id = new_id();
  Signal ready;
  tests::Ranks ranks(3, [&](int rank) {
    auto comm = connect(3, rank, id);
    if (rank == 0) ready.give();
    while (true) sum_floats(*comm, 1000);
  });
  ready.wait();
  const std::string maps = read_file("/proc/" + std::to_string(ranks.pid(0)) + "/maps");
  EXPECT_THAT(maps, HasSubstr("/memfd:concord-shm (deleted)"));
  EXPECT_EQ(maps.find("/dev/shm/"), std::string::npos) << maps;
  for (int rank = 0; rank < 3; ++rank) ranks.signal(rank, SIGKILL);
  ranks.wait();
  for (const std::string& name : files_in("/dev/shm")) {  // other programs may put theirs there meanwhile
    EXPECT_TRUE(before.count(name) == 1 || name.find("concord") == std::string::npos) << name;
  }
  std::string name = "concord-shm-";
  for (size_t i = 0; i < 32; ++i) name += sdk::text("%02x", static_cast<unsigned>(id[i]));
  EXPECT_EQ(read_file("/proc/net/unix").find(name), std::string::npos);
}

// Mappings of communicators' memory. (Others come and go: allocators' and sanitizers'.)
int64_t shared_mappings() {
  std::ifstream maps("/proc/self/maps");
  int64_t count = 0;
  for (std::string line; std::getline(maps, line);) count += line.find("/memfd:") != std::string::npos ? 1 : 0;
  return count;
}

TEST(LeftBehindTest, ThousandCyclesLeakNeitherFilesNorMappings) {
  const Id id = new_id();
  tests::expect_ranks(2, [&](int rank) {
    auto comm = connect(2, rank, id);
    const int32_t all[] = {0, 1};
    const auto cycle = [&] {
      auto part = comm->split(all);
      sum_floats(*part, 10);
    };
    for (int i = 0; i < 10; ++i) cycle();
    const size_t files = files_in("/proc/self/fd").size();
    const int64_t mapped = shared_mappings();
    ASSERT_GT(mapped, 0);
    for (int i = 0; i < 1000; ++i) cycle();
    EXPECT_EQ(files_in("/proc/self/fd").size(), files);
    EXPECT_EQ(shared_mappings(), mapped);
  });
}

TEST(LeftBehindTest, AChildMadeByForkDoesNotSpeakForItsParent) {
  const Id id = new_id();
  tests::expect_ranks(2, [&](int rank) {
    auto comm = connect(2, rank, id, test_options("test", milliseconds(1000)));
    if (rank == 1) {
      const pid_t child = ::fork();
      if (child == 0) {
        comm.reset();  // as exit handlers would
        ::_exit(0);
      }
      ::waitpid(child, nullptr, 0);
    }
    sum_floats(*comm, 1000);
    while (rank == 1 && comm->error(nullptr) == CONCORD_STATUS_OK) std::this_thread::sleep_for(milliseconds(5));
    const Caught caught = failure_of([&] { comm->barrier(); });
    EXPECT_EQ(caught.status, CONCORD_STATUS_TIMEOUT);
    EXPECT_THAT(caught.text, HasSubstr("it is not in an operation"));  // and not: has destroyed its communicator
  });
}

// ------------------------------------------------------------------------------------------------------ lack of memory

TEST(OutOfMemoryTest, IsAnErrorOnEveryRankAndNotASignal) {
  const Id id = new_id();
  tests::expect_ranks(3, [&](int rank) {
    if (rank == 0) {
      const rlimit limit{1 << 20, 1 << 20};
      ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &limit), 0);
    }
    const Caught caught = failure_of([&] { connect(3, rank, id); });
    EXPECT_EQ(caught.status, CONCORD_STATUS_OUT_OF_MEMORY) << caught.text;
    EXPECT_THAT(caught.text, HasSubstr("bytes of shared memory"));
  });
}

TEST(OutOfMemoryTest, OfAddressSpaceOnOneRankIsAnErrorOnEveryRank) {
#if CONCORD_UNDER_ASAN || CONCORD_UNDER_TSAN
  GTEST_SKIP() << "a sanitizer needs address space of its own while it runs";
#endif
  const Id id = new_id();
  tests::expect_ranks(3, [&](int rank) {
    if (rank == 2) {
      long pages = 0;
      std::ifstream("/proc/self/statm") >> pages;
      const auto now = static_cast<rlim_t>(pages) * 4096;
      const rlimit limit{now + (1 << 20), now + (1 << 20)};
      ASSERT_EQ(::setrlimit(RLIMIT_AS, &limit), 0);
    }
    const Caught caught = failure_of([&] { connect(3, rank, id); });
    EXPECT_EQ(caught.status, CONCORD_STATUS_OUT_OF_MEMORY) << caught.text;
    EXPECT_THAT(caught.text, HasSubstr("cannot map"));
  });
}

}  // namespace
}  // namespace concord::shm::testing
