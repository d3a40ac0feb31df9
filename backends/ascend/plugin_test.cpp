// The plugin through its C tables on the simulated CANN, where the kit has no test: what it says it is, devices side by
// side, graphs, failures that the simulator is asked for.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <dlfcn.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

#include "backends/ascend/sim/runtime/sim.h"
#include "platform/sdk/testing/test_host.hpp"

namespace concord::ascend {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;

const sdk::TestHost& host() {
  static const sdk::TestHost* opened = [] {
    setenv("CONCORD_SIM_NPU_MEMORY", "512M", 0);  // the thread sanitizer leaves few addresses
    sdk::TestHost::set_config("ascend.acl", SIM_ACL);
    sdk::TestHost::set_config("ascend.hccl", SIM_HCCL);
    sdk::TestHost::set_config("ascend.mspti", SIM_MSPTI);
    sdk::TestHost::set_config("ascend.mstx", SIM_MSTX);
    sdk::TestHost::set_config("comm.timeout", "900");
    return new sdk::TestHost(ASCEND_PLUGIN);
  }();
  return *opened;
}

const std::string& detail() { return sdk::TestHost::detail(); }

::testing::AssertionResult ok(concord_status status) {
  if (status == CONCORD_STATUS_OK) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << "status " << status << ": " << detail();
}

// A stream and 1 KiB of a device.
class Work {
 public:
  static constexpr int64_t kBytes = 1024;

  explicit Work(int32_t device) : device_(device) {
    EXPECT_TRUE(ok(host().stream().create(host().stream().self, device, 0, &stream_)));
    EXPECT_TRUE(ok(host().memory().allocate(host().memory().self, device, kBytes, &data_)));
  }
  ~Work() {
    EXPECT_TRUE(ok(host().stream().destroy(host().stream().self, stream_)));
    EXPECT_TRUE(ok(host().memory().release(host().memory().self, device_, data_)));
  }
  Work(const Work&) = delete;
  Work& operator=(const Work&) = delete;

  concord_status fill(int32_t value) {
    return host().memory().fill_on_stream(host().memory().self, data_, value, kBytes, stream_);
  }
  concord_status synchronize() { return host().stream().synchronize(host().stream().self, stream_); }
  std::vector<uint8_t> read() {
    std::vector<uint8_t> bytes(kBytes);
    EXPECT_TRUE(
        ok(host().memory().copy(host().memory().self, bytes.data(), data_, kBytes, CONCORD_COPY_DEVICE_TO_HOST)));
    return bytes;
  }
  concord_stream stream() const { return stream_; }
  void* data() const { return data_; }

 private:
  int32_t device_;
  concord_stream stream_ = nullptr;
  void* data_ = nullptr;
};

int32_t current_device() {
  int32_t device = -1;
  EXPECT_TRUE(ok(host().device().get_current(host().device().self, &device)));
  return device;
}

// What the simulator is asked to do, for the length of a test.
class Faults {
 public:
  explicit Faults(const char* rules) { concord_sim_set_faults(rules); }
  ~Faults() { concord_sim_set_faults(""); }
};

TEST(AscendPluginTest, PassesTheTimeoutOfTheJobOnToHccl) {
  ASSERT_TRUE(ok(host().status()));
  EXPECT_STREQ(std::getenv("HCCL_CONNECT_TIMEOUT"), "900");
  EXPECT_STREQ(std::getenv("HCCL_EXEC_TIMEOUT"), "900");
}

TEST(AscendPluginTest, OnASimulatorItSaysSoAndIsNeverChosenByItself) {
  const concord_core_table& core = host().core();
  EXPECT_STREQ(core.name, "ascend");
  EXPECT_STREQ(core.label, "sim-npu");
  EXPECT_LT(core.priority, 0);
  EXPECT_THAT(core.version, AllOf(HasSubstr("CANN 8.5.0"), HasSubstr("sim-npu")));
  EXPECT_STREQ(core.torch_device_type, "privateuseone");
  EXPECT_STREQ(core.torch_device_name, "npu");
  EXPECT_STREQ(core.visible_devices_variable, "ASCEND_RT_VISIBLE_DEVICES");
  concord_device_info info{};
  info.struct_size = sizeof info;
  ASSERT_TRUE(ok(host().device().info(host().device().self, 1, &info)));
  EXPECT_STREQ(info.name, "Ascend910B2 (sim-npu)");
  EXPECT_STREQ(info.architecture, "Ascend910B2");
}

TEST(AscendPluginTest, WorkOfTwoDevicesLeavesTheThreadsDeviceAlone) {
  ASSERT_TRUE(ok(host().device().set_current(host().device().self, 0)));
  Work here(0);
  Work there(1);
  for (int value = 1; value < 20; ++value) {
    ASSERT_TRUE(ok(there.fill(value)));
    EXPECT_EQ(current_device(), 0);
    ASSERT_TRUE(ok(here.fill(value + 100)));
    ASSERT_TRUE(ok(there.synchronize()));
    ASSERT_TRUE(ok(here.synchronize()));
    EXPECT_THAT(there.read(), Each(value));
    EXPECT_THAT(here.read(), Each(value + 100));
  }
}

TEST(AscendPluginTest, QueuedCopiesBetweenHostBuffersKeepTheirPlace) {
  Work work(0);
  static std::atomic<bool> open;
  open = false;
  const auto gate = [](void*) {
    while (!open) std::this_thread::yield();
  };
  ASSERT_TRUE(ok(host().stream().launch_host(host().stream().self, work.stream(), gate, nullptr)));
  const int from = 7;
  int to = 0;
  ASSERT_TRUE(ok(host().memory().copy_on_stream(host().memory().self, &to, &from, sizeof to, CONCORD_COPY_HOST_TO_HOST,
                                                work.stream())));
  EXPECT_EQ(to, 0);
  open = true;
  ASSERT_TRUE(ok(work.synchronize()));
  EXPECT_EQ(to, 7);
}

// ------------------------------------------------------------------------------------------------------------ graphs

template <class Table>
const Table& extension(const char* name) {
  const concord_plugin* plugin = host().plugin();
  const auto* table = plugin->find_table(plugin->self, name);
  if (table == nullptr) throw std::runtime_error(std::string("there is no table ") + name);
  return *reinterpret_cast<const Table*>(table);
}

const concord_graph_table& graphs() { return extension<concord_graph_table>(CONCORD_GRAPH_TABLE); }

TEST(AscendGraphTest, CapturedWorkRunsAtEveryLaunchAndNotBefore) {
  Work work(0);
  ASSERT_TRUE(ok(work.fill(1)));
  ASSERT_TRUE(ok(work.synchronize()));
  ASSERT_TRUE(ok(graphs().begin_capture(graphs().self, work.stream())));
  ASSERT_TRUE(ok(work.fill(2)));
  concord_graph graph = nullptr;
  ASSERT_TRUE(ok(graphs().end_capture(graphs().self, work.stream(), &graph)));
  ASSERT_NE(graph, nullptr);
  EXPECT_THAT(work.read(), Each(1));
  for (int round = 0; round < 3; ++round) {
    ASSERT_TRUE(ok(work.fill(9)));
    ASSERT_TRUE(ok(graphs().launch(graphs().self, graph, work.stream())));
    ASSERT_TRUE(ok(work.synchronize()));
    EXPECT_THAT(work.read(), Each(2));
  }
  EXPECT_TRUE(ok(graphs().destroy(graphs().self, graph)));
  EXPECT_EQ(graphs().destroy(graphs().self, graph), CONCORD_STATUS_INVALID_ARGUMENT) << "destroyed twice";
}

TEST(AscendGraphTest, ACaptureThatWasSpoiltFailsAtItsEndAndTheStreamWorksAgain) {
  Work work(0);
  ASSERT_TRUE(ok(graphs().begin_capture(graphs().self, work.stream())));
  EXPECT_FALSE(ok(work.synchronize())) << "a captured stream cannot be waited for";
  int something = 0;
  auto graph = reinterpret_cast<concord_graph>(&something);
  EXPECT_NE(graphs().end_capture(graphs().self, work.stream(), &graph), CONCORD_STATUS_OK);
  EXPECT_EQ(graph, nullptr);
  ASSERT_TRUE(ok(work.fill(3)));
  ASSERT_TRUE(ok(work.synchronize()));
  EXPECT_THAT(work.read(), Each(3));
}

TEST(AscendGraphTest, WithoutACaptureThereIsNothingToEnd) {
  Work work(0);
  concord_graph graph = nullptr;
  EXPECT_NE(graphs().end_capture(graphs().self, work.stream(), &graph), CONCORD_STATUS_OK);
  EXPECT_EQ(graphs().begin_capture(graphs().self, nullptr), CONCORD_STATUS_INVALID_ARGUMENT);
}

// ---------------------------------------------------------------------------------------------- ranges and activities

TEST(AscendProfilerTest, RangesOfAThreadReachMstxInOrder) {
  const auto& profiler = extension<concord_profiler_table>(CONCORD_PROFILER_TABLE);
  EXPECT_TRUE(ok(profiler.range_push(profiler.self, "step 1")));
  EXPECT_TRUE(ok(profiler.range_push(profiler.self, "layers.0")));
  EXPECT_TRUE(ok(profiler.mark(profiler.self, "here")));
  EXPECT_TRUE(ok(profiler.range_pop(profiler.self)));
  std::thread([&] {
    EXPECT_EQ(profiler.range_pop(profiler.self), CONCORD_STATUS_FAILED_PRECONDITION) << "another thread's range";
  }).join();
  EXPECT_TRUE(ok(profiler.range_pop(profiler.self)));
  EXPECT_EQ(profiler.range_pop(profiler.self), CONCORD_STATUS_FAILED_PRECONDITION);
  EXPECT_EQ(profiler.range_push(profiler.self, nullptr), CONCORD_STATUS_INVALID_ARGUMENT);
  EXPECT_TRUE(ok(profiler.start(profiler.self)));
  EXPECT_TRUE(ok(profiler.stop(profiler.self)));
  void* const library = dlopen(SIM_MSTX, RTLD_NOW | RTLD_NOLOAD);
  ASSERT_NE(library, nullptr);
  const auto recorded = reinterpret_cast<const char* (*)()>(dlsym(library, "concord_sim_ranges"));
  EXPECT_STREQ(recorded(), "start 1 step 1\nstart 2 layers.0\nmark here\nend 2\nend 1\n");
}

int64_t monotonic_ns() { return std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count(); }

TEST(AscendActivityTest, WhatADeviceDidIsReportedWithItsTimes) {
  const auto& table = extension<concord_activity_table>(CONCORD_ACTIVITY_TABLE);
  std::vector<concord_activity> seen;
  std::vector<std::string> names;
  struct Seen {
    std::vector<concord_activity>* activities;
    std::vector<std::string>* names;
  } const lists{&seen, &names};
  const auto visit = [](void* user, const concord_activity* activity) {
    const auto* into = static_cast<const Seen*>(user);
    into->activities->push_back(*activity);
    into->names->emplace_back(activity->name);
  };
  int64_t dropped = -1;
  EXPECT_EQ(table.stop(table.self, visit, nullptr, &dropped), CONCORD_STATUS_FAILED_PRECONDITION);
  Work work(1);
  ASSERT_TRUE(ok(work.fill(1)));
  ASSERT_TRUE(ok(work.synchronize()));
  for (int round = 0; round < 2; ++round) {
    seen.clear();
    names.clear();
    const int64_t before = monotonic_ns();
    ASSERT_TRUE(ok(table.start(table.self)));
    EXPECT_EQ(table.start(table.self), CONCORD_STATUS_FAILED_PRECONDITION);
    ASSERT_TRUE(ok(work.fill(2)));
    ASSERT_TRUE(ok(work.fill(3)));
    ASSERT_TRUE(ok(work.synchronize()));
    ASSERT_TRUE(ok(table.stop(table.self, visit, const_cast<Seen*>(&lists), &dropped)));
    const int64_t after = monotonic_ns();
    EXPECT_EQ(dropped, 0);
    EXPECT_THAT(names, ::testing::ElementsAre("fill", "fill"));
    for (const concord_activity& each : seen) {
      EXPECT_EQ(each.kind, CONCORD_ACTIVITY_FILL);
      EXPECT_EQ(each.device, 1);
      EXPECT_LE(each.begin_ns, each.end_ns);
      // The two clocks are read one after the other, some microseconds apart at most.
      EXPECT_GT(each.begin_ns, before - 1'000'000'000);
      EXPECT_LT(each.end_ns, after + 1'000'000'000);
    }
    EXPECT_LE(seen[0].end_ns, seen[1].begin_ns);
  }
}

// ---------------------------------------------------------------------------------------------------------- failures

TEST(AscendFailureTest, WhatFailsOnTheDeviceIsToldWhenTheStreamIsWaitedFor) {
  Work work(0);
  const Faults faults("aclrtMemsetAsync@1=async:507015");
  ASSERT_TRUE(ok(work.fill(1)));
  EXPECT_EQ(work.synchronize(), CONCORD_STATUS_VENDOR_ERROR);
  EXPECT_THAT(detail(), AllOf(HasSubstr("aclrtSynchronizeStream failed with 507015"), HasSubstr("AICORE_EXCEPTION")));
}

TEST(AscendFailureTest, EveryCodeOfACallBecomesItsStatusAndUnknownOnesAreErrors) {
  Work work(0);
  const std::pair<const char*, concord_status> cases[] = {
      {"aclrtMemsetAsync@*=107000", CONCORD_STATUS_INVALID_ARGUMENT},
      {"aclrtMemsetAsync@*=207001", CONCORD_STATUS_OUT_OF_MEMORY},
      {"aclrtMemsetAsync@*=107020", CONCORD_STATUS_TIMEOUT},
      {"aclrtMemsetAsync@*=599999", CONCORD_STATUS_VENDOR_ERROR},
      {"aclrtMemsetAsync@*=1", CONCORD_STATUS_VENDOR_ERROR}};
  for (const auto& [rules, status] : cases) {
    const Faults faults(rules);
    EXPECT_EQ(work.fill(1), status) << rules;
    EXPECT_THAT(detail(), HasSubstr("aclrtMemsetAsync failed with"));
  }
}

TEST(AscendFailureTest, MemoryThatRunsOutHalfwayThroughASetUpLeavesNothingBehind) {
  const auto used = [] {
    int64_t free = 0;
    int64_t total = 0;
    EXPECT_TRUE(ok(host().memory().info(host().memory().self, 0, &free, &total)));
    return total - free;
  };
  const int64_t before = used();
  std::vector<char> id(4108);
  ASSERT_TRUE(ok(host().comm().unique_id_create(host().comm().self, id.data(), 4108)));
  concord_comm comm = nullptr;
  const Faults faults("HcclCommInitRootInfo@1=24");
  EXPECT_EQ(host().comm().init(host().comm().self, 0, 2, 0, id.data(), 4108, nullptr, &comm),
            CONCORD_STATUS_OUT_OF_MEMORY);
  EXPECT_THAT(detail(), HasSubstr("HCCL_BUFFSIZE"));
  EXPECT_EQ(comm, nullptr);
  EXPECT_EQ(used(), before);
}

// ------------------------------------------------------------------------------------------------- ranks as threads

TEST(AscendCommOnThreadsTest, RanksOnDevicesOfOneProcessMeetAndReduce) {
  constexpr int32_t kWorld = 4;
  std::vector<char> id(4108);
  ASSERT_TRUE(ok(host().comm().unique_id_create(host().comm().self, id.data(), 4108)));
  std::vector<std::thread> threads;
  for (int32_t rank = 0; rank < kWorld; ++rank) {
    threads.emplace_back([&, rank] {
      const auto& comm = host().comm();
      Work work(rank);
      concord_comm group = nullptr;
      ASSERT_TRUE(ok(comm.init(comm.self, rank, kWorld, rank, id.data(), 4108, nullptr, &group)));
      ASSERT_TRUE(ok(work.fill(rank)));
      ASSERT_TRUE(ok(comm.all_reduce(comm.self, group, work.data(), work.data(), Work::kBytes, CONCORD_DTYPE_I8,
                                     CONCORD_REDUCE_SUM, work.stream())));
      ASSERT_TRUE(ok(work.synchronize()));
      EXPECT_THAT(work.read(), Each(0 + 1 + 2 + 3));
      EXPECT_TRUE(ok(comm.destroy(comm.self, group)));
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace concord::ascend
