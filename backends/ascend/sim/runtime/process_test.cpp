#include "backends/ascend/sim/runtime/process.h"

#include <unistd.h>

#include <array>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "backends/ascend/sim/runtime/testing/sim_test.h"

namespace concord::ascend::sim::testing {
namespace {

class ProcessTest : public SimTest {};

TEST_F(ProcessTest, RepeatedInitSaysSoAndOneFinalizeEndsAll) {
  EXPECT_FAILS(aclInit(nullptr), kAclRepeatInitialize, "already called");
  EXPECT_FAILS(aclInit(nullptr), kAclRepeatInitialize, "already called");
  EXPECT_OK(aclFinalize());
  EXPECT_FAILS(aclrtSetDevice(0), kAclUninitialize, "aclInit");
  EXPECT_FAILS(aclFinalize(), kAclRepeatFinalize, "without aclInit");
  EXPECT_OK(aclInit(nullptr));
  EXPECT_OK(aclrtSetDevice(0));
}

TEST_F(ProcessTest, FinalizeReferenceEndsOneInit) {
  aclInit(nullptr);
  EXPECT_OK(aclFinalizeReference(nullptr));
  EXPECT_OK(aclrtSetDevice(0));
}

TEST_F(ProcessTest, NothingWorksWithoutInit) {
  TestStream stream;
  void* memory = device_memory(64);
  ASSERT_OK(aclFinalize());
  void* out = nullptr;
  int32_t word = 0;
  EXPECT_EQ(aclrtMalloc(&out, 64, kMallocHugeFirst), kAclUninitialize);
  EXPECT_EQ(aclrtFree(memory), kAclUninitialize);
  EXPECT_EQ(aclrtMemcpy(memory, 4, &word, 4, kMemcpyHostToDevice), kAclUninitialize);
  EXPECT_EQ(aclrtMemcpyAsync(memory, 4, &word, 4, kMemcpyHostToDevice, stream), kAclUninitialize);
  EXPECT_EQ(aclrtCreateStream(&out), kAclUninitialize);
  EXPECT_EQ(aclrtSynchronizeStream(stream), kAclUninitialize);
  EXPECT_EQ(aclrtCreateEventExWithFlag(&out, kEventSync), kAclUninitialize);
  EXPECT_EQ(aclrtGetDevice(&word), kAclUninitialize);
  EXPECT_EQ(launch(stream, "work", []() -> int32_t { return 0; }), kAclUninitialize);
  ASSERT_OK(aclInit(nullptr));
  EXPECT_OK(aclrtSynchronizeStream(stream));
}

TEST_F(ProcessTest, AMessageIsGivenOnceAndToItsThread) {
  EXPECT_EQ(aclrtMalloc(nullptr, 1, kMallocHugeFirst), kAclInvalidParam);
  on_fresh_thread([] { EXPECT_STREQ(aclGetRecentErrMsg(), ""); });
  EXPECT_THAT(std::string(aclGetRecentErrMsg()), ::testing::HasSubstr("aclrtMalloc: the argument 'devPtr' is null"));
  EXPECT_STREQ(aclGetRecentErrMsg(), "");
  EXPECT_EQ(aclrtPeekAtLastError(0), kAclInvalidParam);
  EXPECT_EQ(aclrtGetLastError(0), kAclInvalidParam);
  EXPECT_EQ(aclrtGetLastError(0), kAclSuccess);
}

TEST_F(ProcessTest, SaysWhatItIs) {
  EXPECT_STREQ(concord_sim_label(), "sim-npu");
  EXPECT_STREQ(aclrtGetSocName(), "Ascend910B2");
  aclCANNPackageVersion version{};
  EXPECT_OK(aclsysGetCANNVersion(kPackageCann, &version));
  EXPECT_STREQ(version.version, "8.5.0");
  EXPECT_STREQ(version.majorVersion, "8");
  EXPECT_STREQ(version.minorVersion, "5");
}

// Runs in a new process, which has not announced itself yet.
TEST(ProcessDeathTest, AnnouncesItselfOnceOnStandardError) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        aclInit(nullptr);
        aclInit(nullptr);
        aclFinalize();
        aclInit(nullptr);
        std::_Exit(0);
      },
      ::testing::ExitedWithCode(0),
      ::testing::MatchesRegex("\\[sim-npu\\] simulated CANN 8.5.0, SOC Ascend910B2, 3 devices of 64 MiB: no hardware "
                              "is used\n"));
}

// What work uses may be destroyed at the end of the process; so streams stop before.
TEST(ProcessDeathTest, StreamsStopWhenTheProcessEnds) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        static std::atomic<bool> running{false};
        struct AtExit {
          ~AtExit() { std::fputs(running.load() ? "work runs on\n" : "all has stopped\n", stderr); }
        };
        static const AtExit at_exit;  // older than the runtime, so destroyed after it has stopped
        aclInit(nullptr);
        aclrtSetDevice(0);
        void* stream = nullptr;
        aclrtCreateStream(&stream);
        for (int i = 0; i < 1000; ++i) {
          launch(stream, "work", []() -> int32_t {
            running.store(true);
            std::this_thread::sleep_for(std::chrono::milliseconds(20));
            running.store(false);
            return 0;
          });
        }
        std::exit(0);
      },
      ::testing::ExitedWithCode(0), "all has stopped");
}

TEST(ProcessDeathTest, AMachineWithoutDevicesSaysSo) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        ::setenv("CONCORD_SIM_NPU_DEVICES", "0", 1);
        aclInit(nullptr);
        uint32_t count = 9;
        const bool right =
            aclrtGetDeviceCount(&count) == kRtNoDevice && count == 0 && aclrtSetDevice(0) == kRtInvalidDeviceId;
        std::_Exit(right ? 0 : 1);
      },
      ::testing::ExitedWithCode(0), "0 devices");
}

TEST(ProcessDeathTest, CallsThatFailArePrintedOnRequest) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        ::setenv("CONCORD_SIM_NPU_LOG", "errors", 1);
        aclInit(nullptr);
        aclrtSetDevice(99);
        std::_Exit(0);
      },
      ::testing::ExitedWithCode(0),
      "aclrtSetDevice: device 99 does not exist; there are 3, numbered from 0 \\(107001\\)");
  EXPECT_EXIT(
      {
        ::setenv("CONCORD_SIM_NPU_LOG", "all", 1);
        aclInit(nullptr);
      },
      ::testing::ExitedWithCode(2), "CONCORD_SIM_NPU_LOG is 'all'; it must be errors");
}

// Two fills of 48 bytes and a copy of 32 to the host; the host's memory does not count.
void do_some_work() {
  aclInit(nullptr);
  aclrtSetDevice(0);
  void *stream = nullptr, *memory = nullptr;
  aclrtCreateStream(&stream);
  aclrtMalloc(&memory, 64, kMallocHugeFirst);
  aclrtMemsetAsync(memory, 64, 1, 48, stream);
  aclrtMemsetAsync(memory, 64, 2, 48, stream);
  aclrtSynchronizeStream(stream);
  std::array<char, 32> host{};
  aclrtMemcpy(host.data(), host.size(), memory, host.size(), kMemcpyDeviceToHost);
  aclrtResetDevice(0);
}

bool is_work_counted() {
  int64_t read = 0, written = 0;
  if (concord_sim_work_of("aclrtMemsetAsync", &read, &written) != 2 || read != 0 || written != 96) return false;
  if (concord_sim_work_of("aclrtMemcpy", &read, &written) != 1 || read != 32 || written != 0) return false;
  return concord_sim_work_of(nullptr, nullptr, nullptr) == 3;
}

TEST(ProcessDeathTest, WorkIsCounted) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        do_some_work();
        std::_Exit(is_work_counted() ? 0 : 1);
      },
      ::testing::ExitedWithCode(0), "");
}

TEST(ProcessDeathTest, AReportOfTheWorkIsWrittenAtTheEnd) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        ::setenv("CONCORD_SIM_NPU_REPORT", "-", 1);
        do_some_work();
        std::exit(0);
      },
      ::testing::ExitedWithCode(0), "work by count(.|\n)*aclrtMemsetAsync +2 (.|\n)*total of 2 operators +3 ");
}

// The process that dies runs this test from the start, so the environment tells it the file.
TEST(ProcessDeathTest, EachRankWritesItsReport) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const std::string name = ::testing::TempDir() + "concord_sim_work_report." + std::to_string(::getpid());
  ::setenv("CONCORD_SIM_NPU_REPORT", name.c_str(), 0);
  EXPECT_EXIT(
      {
        ::setenv("RANK", "3", 1);
        do_some_work();
        std::exit(0);
      },
      ::testing::ExitedWithCode(0), "");
  ::unsetenv("CONCORD_SIM_NPU_REPORT");
  std::stringstream text;
  text << std::ifstream(name + ".3").rdbuf();
  EXPECT_THAT(text.str(), ::testing::HasSubstr("\"aclrtMemsetAsync\": {\"launches\": 2, \"bytes_read\": 0, "
                                               "\"bytes_written\": 96,"));
  std::filesystem::remove(name + ".3");
}

TEST(ProcessDeathTest, AWrongSettingEndsTheProcess) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        ::setenv("CONCORD_SIM_NPU_MEMORY", "plenty", 1);
        aclInit(nullptr);
      },
      ::testing::ExitedWithCode(2), "CONCORD_SIM_NPU_MEMORY is 'plenty'; it must be a size such as 512M or 8G");
}

}  // namespace
}  // namespace concord::ascend::sim::testing
