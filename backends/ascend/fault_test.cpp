// Ranks that die or never join, on the simulated CANN: HCCL's own timeouts end the waiting, and the failure is
// reported, sticks to its communicator and to no other.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <atomic>
#include <cstdlib>
#include <new>

#include "platform/sdk/testing/test_host.hpp"
#include "tests/processes/spawn.hpp"

namespace concord::ascend {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;

constexpr int64_t kIdBytes = 4108;

// What the ranks share: the ids that rank 0 makes.
struct Board {
  std::atomic<int> ids{0};
  char id[2][kIdBytes];
};

Board& new_board() {
  void* memory = mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  return *new (memory) Board();
}

// One rank's plugin, opened in its own process, on the device of its number.
class Rank {
 public:
  Rank(Board& board, int world, int rank) : board_(board), world_(world), rank_(rank) {
    setenv("CONCORD_SIM_NPU_MEMORY", "512M", 0);  // the thread sanitizer leaves few addresses
    setenv("HCCL_BUFFSIZE", "16", 0);
    sdk::TestHost::set_config("ascend.acl", SIM_ACL);
    sdk::TestHost::set_config("ascend.hccl", SIM_HCCL);
    host_ = new sdk::TestHost(ASCEND_PLUGIN);
    require(host_->stream().create(host_->stream().self, rank, 0, &stream_), "stream.create");
    require(host_->memory().allocate(host_->memory().self, rank, 1024, &data_), "memory.allocate");
  }

  // The communicator number |which| of all ranks.
  concord_comm join(int which) {
    if (rank_ == 0) {
      require(comm().unique_id_create(comm().self, board_.id[which], kIdBytes), "unique_id_create");
      board_.ids = which + 1;
    }
    while (board_.ids <= which) std::this_thread::yield();
    concord_comm made = nullptr;
    require(comm().init(comm().self, rank_, world_, rank_, board_.id[which], kIdBytes, nullptr, &made), "init");
    return made;
  }

  concord_status all_reduce(concord_comm group) {
    const concord_status called =
        comm().all_reduce(comm().self, group, data_, data_, 16, CONCORD_DTYPE_F32, CONCORD_REDUCE_SUM, stream_);
    return called != CONCORD_STATUS_OK ? called : host_->stream().synchronize(host_->stream().self, stream_);
  }

  // A new stream for what comes after a failure: ACL's streams may stay failed.
  void take_new_stream() { require(host_->stream().create(host_->stream().self, rank_, 0, &stream_), "stream.create"); }

  const concord_comm_table& comm() const { return host_->comm(); }
  static const std::string& detail() { return sdk::TestHost::detail(); }

  static void require(concord_status status, const char* what) {
    if (status != CONCORD_STATUS_OK) throw std::runtime_error(std::string(what) + ": " + detail());
  }

 private:
  Board& board_;
  const int world_;
  const int rank_;
  sdk::TestHost* host_;  // never freed: a plugin stays
  concord_stream stream_ = nullptr;
  void* data_ = nullptr;
};

// After a failure: async_error reports it, later calls fail with it immediately, destroy works.
void expect_failed_for_good(Rank& rank, concord_comm group, concord_status status) {
  concord_status error = CONCORD_STATUS_OK;
  Rank::require(rank.comm().async_error(rank.comm().self, group, &error), "async_error");
  EXPECT_EQ(error, status) << Rank::detail();
  EXPECT_EQ(rank.all_reduce(group), status);
  EXPECT_THAT(Rank::detail(), HasSubstr("communicator 'comm', rank"));
  Rank::require(rank.comm().destroy(rank.comm().self, group), "destroy");
}

TEST(AscendFaultTest, ADeadRankIsAFailureWithinTheTimeoutAndNotAHang) {
  setenv("HCCL_EXEC_TIMEOUT", "5", 1);
  Board& board = new_board();
  const auto outcomes = tests::run_ranks(3, [&](int number) {
    Rank rank(board, 3, number);
    const concord_comm group = rank.join(0);
    Rank::require(rank.all_reduce(group), "all_reduce");
    if (number == 2) ::kill(::getpid(), SIGKILL);
    const concord_status status = rank.all_reduce(group);
    EXPECT_THAT(status, AnyOf(CONCORD_STATUS_PEER_LOST, CONCORD_STATUS_TIMEOUT)) << Rank::detail();
    expect_failed_for_good(rank, group, status);
  });
  for (int number : {0, 1})
    EXPECT_TRUE(outcomes[static_cast<size_t>(number)].ok()) << outcomes[static_cast<size_t>(number)].describe();
  EXPECT_EQ(outcomes[2].signal, SIGKILL);
}

TEST(AscendFaultTest, ASilentRankIsATimeoutThatHarmsNoOtherCommunicator) {
  setenv("HCCL_EXEC_TIMEOUT", "2", 1);
  Board& board = new_board();
  tests::expect_ranks(2, [&](int number) {
    Rank rank(board, 2, number);
    const concord_comm bad = rank.join(0);
    setenv("HCCL_EXEC_TIMEOUT", "60", 1);
    const concord_comm good = rank.join(1);
    Rank::require(rank.all_reduce(bad), "all_reduce");
    if (number == 0) {
      EXPECT_EQ(rank.all_reduce(bad), CONCORD_STATUS_TIMEOUT) << Rank::detail();
      expect_failed_for_good(rank, bad, CONCORD_STATUS_TIMEOUT);
      rank.take_new_stream();
    }
    EXPECT_EQ(rank.all_reduce(good), CONCORD_STATUS_OK) << Rank::detail();
    Rank::require(rank.comm().destroy(rank.comm().self, good), "destroy");
  });
}

TEST(AscendFaultTest, ARankThatNeverJoinsIsATimeoutOfInit) {
  setenv("HCCL_CONNECT_TIMEOUT", "2", 1);
  Board& board = new_board();
  tests::expect_ranks(1, [&](int) {
    Rank rank(board, 2, 0);
    try {
      rank.join(0);
      ADD_FAILURE() << "a communicator of two ranks was made by one";
    } catch (const std::runtime_error& error) {
      EXPECT_THAT(error.what(), HasSubstr("HCCL_E_TIMEOUT"));
      EXPECT_THAT(error.what(), HasSubstr("HCCL_CONNECT_TIMEOUT"));
    }
  });
}

}  // namespace
}  // namespace concord::ascend
