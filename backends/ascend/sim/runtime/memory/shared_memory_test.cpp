// Memory between processes. A separate program: ranks are forked, and the other tests have threads.
#include "backends/ascend/sim/runtime/testing/sim_test.h"
#include "tests/processes/spawn.hpp"

namespace concord::ascend::sim::testing {
namespace {

// Rank 0 exports, rank 1 imports; files of the pipe carry the key and the word that it is done.
TEST(SharedMemoryTest, AProcessWritesIntoTheMemoryOfAnother) {
  int keys[2];
  int done[2];
  ASSERT_EQ(::pipe(keys), 0);
  ASSERT_EQ(::pipe(done), 0);
  tests::expect_ranks(2, [&](int rank) {
    char key[65] = {};
    ASSERT_OK(aclInit(nullptr));
    ASSERT_OK(aclrtSetDevice(rank));
    if (rank == 0) {
      device_memory(100);  // so that the offset is not 0
      auto* memory = static_cast<char*>(device_memory(8192));
      write_word(memory + 4096, 11);
      ASSERT_OK(aclrtIpcMemGetExportKey(memory + 4096, 64, key, sizeof key, 0));
      ASSERT_EQ(::write(keys[1], key, sizeof key), static_cast<ssize_t>(sizeof key));
      ASSERT_EQ(::read(done[0], key, 1), 1);
      EXPECT_EQ(read_word(memory + 4096), 22);
    } else {
      ASSERT_EQ(::read(keys[0], key, sizeof key), static_cast<ssize_t>(sizeof key));
      void* memory = nullptr;
      ASSERT_OK(aclrtIpcMemImportByKey(&memory, key, 0));
      EXPECT_EQ(read_word(memory), 11);
      write_word(memory, 22);
      EXPECT_FAILS(aclrtMemset(memory, 128, 0, 65), kRtParamInvalid, "nothing is mapped");
      EXPECT_OK(aclrtIpcMemClose(key));
      EXPECT_FAILS(aclrtIpcMemClose(key), kRtParamInvalid, "not open");
      ASSERT_EQ(::write(done[1], key, 1), 1);
    }
  });
}

}  // namespace
}  // namespace concord::ascend::sim::testing
