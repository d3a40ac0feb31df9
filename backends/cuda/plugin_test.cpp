// Devices, memory, streams, events, random numbers, graphs and the profiler through the C tables, on the fake CUDA.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <map>

#include "backends/cuda/fake/control.h"
#include "backends/cuda/testing/fake_host.h"
#include "platform/sdk/philox.hpp"

namespace concord::cuda {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

const std::string& detail() { return sdk::TestHost::detail(); }

template <class Table>
const Table& extension(const char* name) {
  const concord_plugin* plugin = fake_host().plugin();
  return *reinterpret_cast<const Table*>(plugin->find_table(plugin->self, name));
}

TEST(CudaPlugin, NamesItselfItsLibtorchSideAndItsVersions) {
  const concord_core_table& core = fake_host().core();
  EXPECT_STREQ(core.name, "cuda");
  EXPECT_STREQ(core.label, "sim-cuda");
  EXPECT_EQ(core.priority, 100);
  EXPECT_STREQ(core.torch_device_type, "cuda");
  EXPECT_EQ(core.torch_device_name, nullptr);
  EXPECT_STREQ(core.torch_libraries[0], "libtorch_cuda.so");
  EXPECT_EQ(core.torch_libraries[1], nullptr);
  EXPECT_STREQ(core.visible_devices_variable, "CUDA_VISIBLE_DEVICES");
  EXPECT_THAT(core.version, HasSubstr("NCCL 2."));
}

// Runs in its own process, because a process opens the plugin only once.
TEST(CudaPlugin, MakesEachProcessAHostOfItsOwnWhereADeviceIsShared) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");  // a process that runs nothing else
  const auto open_and_tell = [] {
    setenv("NCCL_HOSTID", "of a launcher", 1);
    setenv("FAKE_CUDA_DEVICES", "1", 1);
    sdk::TestHost::set_config("cuda.nccl", FAKE_NCCL_PATH);
    sdk::TestHost::set_config("cuda.shared_device", "1");
    const sdk::TestHost host(FAKE_PLUGIN_PATH);
    const concord_core_table& core = host.core();
    int64_t shared = -1;
    for (int64_t i = 0; i < core.capability_count; ++i) {
      if (std::string(core.capabilities[i].name) == CONCORD_CAP_COMM_SHARED_DEVICE) shared = core.capabilities[i].value;
    }
    const std::string id = getenv("NCCL_HOSTID"), own = "concord-" + std::to_string(getpid());
    std::_Exit(shared == 1 && id == own && std::string(getenv("NCCL_SOCKET_IFNAME")) == "lo" ? 0 : 1);
  };
  EXPECT_EXIT(open_and_tell(), testing::ExitedWithCode(0), "");
}

// In a separate process, for the same reason. A choice of the user's stays.
TEST(CudaPlugin, FixesTheOrderOfSumsInDeterministicMode) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto open_and_tell = [] {
    setenv("CUBLAS_WORKSPACE_CONFIG", ":16:8", 1);
    unsetenv("NCCL_ALGO");
    setenv("FAKE_CUDA_DEVICES", "1", 1);
    sdk::TestHost::set_config("cuda.nccl", FAKE_NCCL_PATH);
    sdk::TestHost::set_config("deterministic", "1");
    const sdk::TestHost host(FAKE_PLUGIN_PATH);
    const concord_core_table& core = host.core();
    bool declared = false;
    for (int64_t i = 0; i < core.capability_count; ++i) {
      const concord_capability& each = core.capabilities[i];
      declared |= std::string(each.name) == CONCORD_CAP_COMM_DETERMINISTIC && each.value == 1;
    }
    std::_Exit(declared && std::string(getenv("NCCL_ALGO")) == "^NVLS,NVLSTree" &&
                       std::string(getenv("CUBLAS_WORKSPACE_CONFIG")) == ":16:8"
                   ? 0
                   : 1);
  };
  EXPECT_EXIT(open_and_tell(), testing::ExitedWithCode(0), "");
}

TEST(CudaPlugin, EveryCapabilityItDoesNotHaveSaysWhy) {
  const concord_core_table& core = fake_host().core();
  std::map<std::string, int64_t> listed;
  for (int64_t i = 0; i < core.capability_count; ++i) {
    const concord_capability& capability = core.capabilities[i];
    EXPECT_TRUE(listed.emplace(capability.name, capability.value).second) << capability.name << " is listed twice";
    if (capability.value == 0) {
      EXPECT_NE(capability.note, nullptr) << capability.name;
    }
  }
  EXPECT_EQ(listed.size(), 18U);
  EXPECT_EQ(listed[CONCORD_CAP_TORCH_BF16], 1);
  EXPECT_EQ(listed[CONCORD_CAP_COMM_TIMEOUT], 1);
  EXPECT_EQ(listed[CONCORD_CAP_COMM_SPLIT], 2);
}

TEST(CudaDevice, InfoHasNameArchitectureAndALowerCasePciId) {
  const auto& device = fake_host().device();
  concord_device_info info{};
  info.struct_size = sizeof info;
  ASSERT_TRUE(ok(device.info(device.self, 0, &info)));
  EXPECT_STREQ(info.name, "fake device");
  EXPECT_STREQ(info.architecture, "sm_90");
  EXPECT_STREQ(info.pci_bus_id, "0000:0a:00.0");
  EXPECT_EQ(device.info(device.self, 7, &info), CONCORD_STATUS_INVALID_ARGUMENT);
  EXPECT_THAT(detail(), HasSubstr("device 7 does not exist; there are 2"));
}

TEST(CudaDevice, WorkForAnotherDeviceLeavesTheCurrentOneAlone) {
  const auto& device = fake_host().device();
  const auto& memory = fake_host().memory();
  ASSERT_TRUE(ok(device.set_current(device.self, 0)));
  void* pointer = nullptr;
  ASSERT_TRUE(ok(memory.allocate(memory.self, 1, 64, &pointer)));
  concord_pointer_info info{sizeof info, 0, 0, 0};
  ASSERT_TRUE(ok(memory.describe_pointer(memory.self, static_cast<char*>(pointer) + 10, &info)));
  EXPECT_EQ(info.kind, CONCORD_MEMORY_DEVICE);
  EXPECT_EQ(info.device, 1);
  int32_t current = -1;
  ASSERT_TRUE(ok(device.get_current(device.self, &current)));
  EXPECT_EQ(current, 0);
  EXPECT_EQ(memory.release(memory.self, 0, pointer), CONCORD_STATUS_INVALID_ARGUMENT) << "it is of device 1";
  EXPECT_TRUE(ok(memory.release(memory.self, 1, pointer)));
  EXPECT_EQ(memory.release(memory.self, 1, pointer), CONCORD_STATUS_INVALID_ARGUMENT) << "it was released";
}

TEST(CudaDevice, PeerAccessThatIsOnAlreadyIsFine) {
  const auto& device = fake_host().device();
  EXPECT_TRUE(ok(device.enable_peer_access(device.self, 0, 1)));
  EXPECT_TRUE(ok(device.enable_peer_access(device.self, 0, 0)));
}

TEST(CudaMemory, ExhaustedSaysWhatWasAskedAndWhatIsFree) {
  const auto& memory = fake_host().memory();
  void* pointer = &pointer;
  EXPECT_EQ(memory.allocate(memory.self, 0, int64_t{1} << 40, &pointer), CONCORD_STATUS_OUT_OF_MEMORY);
  EXPECT_EQ(pointer, nullptr);
  EXPECT_THAT(detail(), HasSubstr("cudaMalloc failed with 2, cudaErrorMemoryAllocation: out of memory"));
  EXPECT_THAT(detail(), HasSubstr("requested 1099511627776 bytes on device 0"));
}

TEST(CudaMemory, CopiesBetweenHostBuffersKeepTheirPlaceInTheStream) {
  const auto& memory = fake_host().memory();
  const auto& stream = fake_host().stream();
  concord_stream queue = nullptr;
  ASSERT_TRUE(ok(stream.create(stream.self, 0, 0, &queue)));
  static std::atomic<bool> open;
  open = false;
  const auto gate = [](void*) {
    while (!open) std::this_thread::yield();
  };
  ASSERT_TRUE(ok(stream.launch_host(stream.self, queue, gate, nullptr)));
  const int from = 7;
  int to = 0;
  ASSERT_TRUE(ok(memory.copy_on_stream(memory.self, &to, &from, sizeof to, CONCORD_COPY_HOST_TO_HOST, queue)));
  EXPECT_EQ(to, 0);
  open = true;
  ASSERT_TRUE(ok(stream.synchronize(stream.self, queue)));
  EXPECT_EQ(to, 7);
  EXPECT_TRUE(ok(stream.destroy(stream.self, queue)));
}

TEST(CudaMemory, StreamOrderedMemoryIsFilledCopiedAndReleasedInOrder) {
  const auto& memory = fake_host().memory();
  const auto& stream = fake_host().stream();
  concord_stream queue = nullptr;
  ASSERT_TRUE(ok(stream.create(stream.self, 0, -9, &queue)));
  void* device = nullptr;
  void* host = nullptr;
  ASSERT_TRUE(ok(memory.allocate_on_stream(memory.self, 0, 4, queue, &device)));
  ASSERT_TRUE(ok(memory.allocate_host(memory.self, 4, &host)));
  ASSERT_TRUE(ok(memory.fill_on_stream(memory.self, device, 0x1ab, 4, queue)));
  ASSERT_TRUE(ok(memory.copy_on_stream(memory.self, host, device, 4, CONCORD_COPY_DEVICE_TO_HOST, queue)));
  ASSERT_TRUE(ok(memory.release_on_stream(memory.self, 0, device, queue)));
  ASSERT_TRUE(ok(stream.synchronize(stream.self, queue)));
  EXPECT_EQ(std::memcmp(host, "\xab\xab\xab\xab", 4), 0);
  EXPECT_TRUE(ok(memory.release_host(memory.self, host)));
  EXPECT_EQ(memory.release_host(memory.self, host), CONCORD_STATUS_INVALID_ARGUMENT);
  EXPECT_TRUE(ok(stream.destroy(stream.self, queue)));
}

TEST(CudaMemory, LargeHostMemoryIsRegistered) {
  const auto& memory = fake_host().memory();
  constexpr int64_t kBytes = (int64_t{256} << 20) + 1;
  void* host = nullptr;
  ASSERT_TRUE(ok(memory.allocate_host(memory.self, kBytes, &host)));
  concord_pointer_info info{.struct_size = sizeof info, .kind = 0, .device = 0, .reserved = 0};
  ASSERT_TRUE(ok(memory.describe_pointer(memory.self, static_cast<char*>(host) + kBytes - 1, &info)));
  EXPECT_EQ(info.kind, CONCORD_MEMORY_PINNED_HOST);
  std::memset(host, 7, kBytes);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(host) % 4096, 0u) << "mapped";
  EXPECT_TRUE(ok(memory.release_host(memory.self, host)));
  EXPECT_EQ(memory.release_host(memory.self, host), CONCORD_STATUS_INVALID_ARGUMENT);
}

TEST(CudaStream, ASecondDestroyIsRefused) {
  const auto& stream = fake_host().stream();
  concord_stream queue = nullptr;
  ASSERT_TRUE(ok(stream.create(stream.self, 0, 0, &queue)));
  EXPECT_TRUE(ok(stream.destroy(stream.self, queue)));
  EXPECT_EQ(stream.destroy(stream.self, queue), CONCORD_STATUS_INVALID_ARGUMENT);
  EXPECT_THAT(detail(), HasSubstr("is not a live stream"));
  EXPECT_EQ(stream.destroy(stream.self, nullptr), CONCORD_STATUS_INVALID_ARGUMENT);
}

TEST(CudaEvent, ElapsedNeedsTimingRecordsAndTheirEnd) {
  const auto& event = fake_host().event();
  concord_event plain = nullptr;
  concord_event timed = nullptr;
  ASSERT_TRUE(ok(event.create(event.self, 0, 0, &plain)));
  ASSERT_TRUE(ok(event.create(event.self, 0, CONCORD_EVENT_TIMING, &timed)));
  double milliseconds = 0;
  EXPECT_EQ(event.elapsed(event.self, timed, timed, &milliseconds), CONCORD_STATUS_FAILED_PRECONDITION);
  ASSERT_TRUE(ok(event.record(event.self, timed, nullptr)));
  ASSERT_TRUE(ok(event.record(event.self, plain, nullptr)));
  ASSERT_TRUE(ok(event.synchronize(event.self, plain)));
  EXPECT_TRUE(ok(event.elapsed(event.self, timed, timed, &milliseconds)));
  EXPECT_EQ(event.elapsed(event.self, plain, timed, &milliseconds), CONCORD_STATUS_FAILED_PRECONDITION);
  EXPECT_THAT(detail(), HasSubstr("CONCORD_EVENT_TIMING"));
  EXPECT_EQ(event.create(event.self, 0, 0x80, &plain), CONCORD_STATUS_INVALID_ARGUMENT);
  EXPECT_TRUE(ok(event.destroy(event.self, timed)));
  EXPECT_EQ(event.destroy(event.self, timed), CONCORD_STATUS_INVALID_ARGUMENT);
}

TEST(CudaRng, FillsWhatPhiloxDefines) {
  const auto& rng = fake_host().rng();
  DeviceArray<float> values(std::vector<float>(5, 0.0f));
  concord_rng_request request{};
  request.struct_size = sizeof request;
  request.kind = CONCORD_RNG_NORMAL;
  request.dtype = CONCORD_DTYPE_F32;
  request.destination = values.data();
  request.count = 5;
  request.key = 42;
  request.offset = 3;
  request.high = 2.0;
  ASSERT_TRUE(ok(rng.fill(rng.self, &request, nullptr)));
  ASSERT_TRUE(ok(fake_host().stream().synchronize(fake_host().stream().self, nullptr)));
  for (uint64_t i = 0; i < 5; ++i) {
    EXPECT_EQ(values.values()[i], sdk::value_at(sdk::NormalF32(0.0, 2.0), 42, 0, 3 + i));
  }
  request.run_length = 2;
  request.run_stride = 10;
  ASSERT_TRUE(ok(rng.fill(rng.self, &request, nullptr)));
  ASSERT_TRUE(ok(fake_host().stream().synchronize(fake_host().stream().self, nullptr)));
  const uint64_t positions[] = {3, 4, 13, 14, 23};
  for (uint64_t i = 0; i < 5; ++i) {
    EXPECT_EQ(values.values()[i], sdk::value_at(sdk::NormalF32(0.0, 2.0), 42, 0, positions[i]));
  }
  request.dtype = CONCORD_DTYPE_I8;
  EXPECT_EQ(rng.fill(rng.self, &request, nullptr), CONCORD_STATUS_INVALID_ARGUMENT);
}

TEST(CudaGraph, CapturesOnceAndRunsAtEachLaunch) {
  const auto& graph = extension<concord_graph_table>(CONCORD_GRAPH_TABLE);
  const auto& stream = fake_host().stream();
  concord_stream queue = nullptr;
  concord_graph captured = nullptr;
  static std::atomic<int> runs;
  runs = 0;
  ASSERT_TRUE(ok(stream.create(stream.self, 0, 0, &queue)));
  ASSERT_TRUE(ok(graph.begin_capture(graph.self, queue)));
  ASSERT_TRUE(ok(stream.launch_host(stream.self, queue, [](void*) { ++runs; }, nullptr)));
  ASSERT_TRUE(ok(graph.end_capture(graph.self, queue, &captured)));
  EXPECT_EQ(runs, 0);
  ASSERT_TRUE(ok(graph.launch(graph.self, captured, queue)));
  ASSERT_TRUE(ok(graph.launch(graph.self, captured, queue)));
  ASSERT_TRUE(ok(stream.synchronize(stream.self, queue)));
  EXPECT_EQ(runs, 2);
  EXPECT_TRUE(ok(graph.destroy(graph.self, captured)));
  EXPECT_EQ(graph.destroy(graph.self, captured), CONCORD_STATUS_INVALID_ARGUMENT);
  EXPECT_EQ(graph.begin_capture(graph.self, nullptr), CONCORD_STATUS_INVALID_ARGUMENT);
  EXPECT_TRUE(ok(stream.destroy(stream.self, queue)));
}

TEST(CudaProfiler, APopWithoutAPushIsRefused) {
  const auto& profiler = extension<concord_profiler_table>(CONCORD_PROFILER_TABLE);
  EXPECT_TRUE(ok(profiler.range_push(profiler.self, "step")));
  EXPECT_TRUE(ok(profiler.mark(profiler.self, "here")));
  EXPECT_TRUE(ok(profiler.range_pop(profiler.self)));
  EXPECT_EQ(profiler.range_pop(profiler.self), CONCORD_STATUS_FAILED_PRECONDITION);
  EXPECT_EQ(profiler.range_push(profiler.self, nullptr), CONCORD_STATUS_INVALID_ARGUMENT);
  EXPECT_TRUE(ok(profiler.start(profiler.self)));
  EXPECT_TRUE(ok(profiler.stop(profiler.self)));
}

#if defined(FAKE_CUPTI_PATH)
class CudaActivity : public testing::Test {
 protected:
  struct Seen {
    concord_activity activity;
    std::string name;
  };

  // The table, whose CUPTI is the fake one. A path that has none comes first: it is looked for at each start until it
  // is found.
  static const concord_activity_table& table() {
    static const concord_activity_table* found = [] {
      const auto& activity = extension<concord_activity_table>(CONCORD_ACTIVITY_TABLE);
      sdk::TestHost::set_config("cuda.cupti", "/nowhere/libcupti.so");
      EXPECT_EQ(activity.start(activity.self), CONCORD_STATUS_UNAVAILABLE);
      EXPECT_THAT(detail(), HasSubstr("CUPTI was not found: tried /nowhere/libcupti.so ("));
      EXPECT_THAT(detail(), HasSubstr("CONCORD_CUDA_CUPTI"));
      sdk::TestHost::set_config("cuda.cupti", FAKE_CUPTI_PATH);
      return &activity;
    }();
    return *found;
  }
  template <class Function, class... Arguments>
  static void fake(const char* name, Arguments... arguments) {
    fake_control<Function>(name, FAKE_CUPTI_PATH)(arguments...);
  }
  static std::vector<Seen> stop(int64_t* dropped) {
    std::vector<Seen> seen;
    const auto keep = [](void* user, const concord_activity* activity) {
      static_cast<std::vector<Seen>*>(user)->push_back({*activity, activity->name});
    };
    EXPECT_TRUE(ok(table().stop(table().self, keep, &seen, dropped)));
    return seen;
  }
  static int64_t now() {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
        .count();
  }
};

TEST_F(CudaActivity, IsWhatTheDeviceDidBetweenStartAndStopInTheHostsTime) {
  ASSERT_TRUE(ok(table().start(table().self)));
  const int64_t begin = now();
  fake<decltype(fake_cupti_fill)>("fake_cupti_fill", 1u, 7u, begin + 3000, begin + 3500);
  fake<decltype(fake_cupti_kernel)>("fake_cupti_kernel", "_ZN7concord4gemmEi", 0u, 13u, begin, begin + 1000);
  fake<decltype(fake_cupti_copy)>("fake_cupti_copy", 1, 0u, 14u, begin + 500, begin + 2000);
  fake<decltype(fake_cupti_kernel)>("fake_cupti_kernel", "sm90_xmma_gemm", 0u, 13u, begin + 2000, begin + 2001);
  fake<decltype(fake_cupti_kernel)>("fake_cupti_kernel", "unfinished", 0u, 13u, int64_t{0}, int64_t{0});
  int64_t dropped = -1;
  const std::vector<Seen> seen = stop(&dropped);
  EXPECT_EQ(dropped, 0);
  ASSERT_EQ(seen.size(), 4u);
  const std::vector<std::string> names = {seen[0].name, seen[1].name, seen[2].name, seen[3].name};
  EXPECT_THAT(names, ElementsAre("concord::gemm(int)", "copy host to device", "sm90_xmma_gemm", "fill"));
  const concord_activity_kind kinds[] = {CONCORD_ACTIVITY_KERNEL, CONCORD_ACTIVITY_COPY, CONCORD_ACTIVITY_KERNEL,
                                         CONCORD_ACTIVITY_FILL};
  const int64_t streams[] = {13, 14, 13, 7}, begins[] = {0, 500, 2000, 3000}, lengths[] = {1000, 1500, 1, 500};
  for (size_t i = 0; i < 4; ++i) {
    const concord_activity& one = seen[i].activity;
    EXPECT_EQ(one.struct_size, sizeof one);
    EXPECT_EQ(one.kind, kinds[i]);
    EXPECT_EQ(one.device, i == 3 ? 1 : 0);
    EXPECT_EQ(one.stream, streams[i]);
    EXPECT_EQ(one.begin_ns - seen[0].activity.begin_ns, begins[i]);
    EXPECT_EQ(one.end_ns - one.begin_ns, lengths[i]);
  }
  // The clocks are 500,000,000 s apart; how well they are matched depends on how long reading them takes.
  EXPECT_NEAR(static_cast<double>(seen[0].activity.begin_ns - begin), 0.0, 10e9);
}

TEST_F(CudaActivity, IsNotKeptBeforeAStartAndAfterAStop) {
  ASSERT_TRUE(ok(table().start(table().self)));
  EXPECT_EQ(table().start(table().self), CONCORD_STATUS_FAILED_PRECONDITION);
  fake<decltype(fake_cupti_kernel)>("fake_cupti_kernel", "first", 0u, 1u, now(), now());
  int64_t dropped = -1;
  EXPECT_EQ(stop(&dropped).size(), 1u);
  fake<decltype(fake_cupti_kernel)>("fake_cupti_kernel", "between", 0u, 1u, now(), now());
  ASSERT_TRUE(ok(table().start(table().self)));
  fake<decltype(fake_cupti_kernel)>("fake_cupti_kernel", "second", 0u, 1u, now(), now());
  fake<decltype(fake_cupti_drop)>("fake_cupti_drop", 3);
  const std::vector<Seen> seen = stop(&dropped);
  ASSERT_EQ(seen.size(), 1u);
  EXPECT_EQ(seen[0].name, "second");
  EXPECT_EQ(dropped, 3);
  const auto ignore = [](void*, const concord_activity*) {};
  EXPECT_EQ(table().stop(table().self, ignore, nullptr, &dropped), CONCORD_STATUS_FAILED_PRECONDITION);
  EXPECT_EQ(table().stop(table().self, nullptr, nullptr, &dropped), CONCORD_STATUS_INVALID_ARGUMENT);
}

TEST_F(CudaActivity, ThatCuptiRefusesSaysWhyAndCanBeTriedAgain) {
  ASSERT_TRUE(ok(table().start(table().self)));
  int64_t dropped = -1;
  stop(&dropped);
  fake<decltype(fake_cupti_fail_enable)>("fake_cupti_fail_enable", 35);
  EXPECT_EQ(table().start(table().self), CONCORD_STATUS_VENDOR_ERROR);
  EXPECT_THAT(detail(), HasSubstr("cuptiActivityEnable failed with 35, CUPTI_ERROR_OF_THE_FAKE"));
  fake<decltype(fake_cupti_fail_enable)>("fake_cupti_fail_enable", 0);
  fake<decltype(fake_cupti_kernel)>("fake_cupti_kernel", "while it was refused", 0u, 1u, now(), now());
  ASSERT_TRUE(ok(table().start(table().self)));
  EXPECT_TRUE(stop(&dropped).empty());
}
#else
TEST(CudaActivity, IsWhatTheDeviceDid) { GTEST_SKIP() << "compiled without cupti.h"; }
#endif

}  // namespace
}  // namespace concord::cuda
