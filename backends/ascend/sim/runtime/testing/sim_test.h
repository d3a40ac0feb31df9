// Helpers of tests of the simulated CANN: three devices of 64 MiB, a thread with a device, and gates to order streams
// by. The tests call the exported C functions, like a program.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <deque>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "backends/ascend/sim/runtime/acl/acl.h"
#include "backends/ascend/sim/runtime/error.h"

namespace concord::ascend::sim::testing {

using namespace concord::ascend::abi;

inline constexpr int32_t kDevices = 3;
inline constexpr size_t kMemory = size_t{64} << 20;

// Sets the environment before the first call of the runtime, which reads it once.
inline const bool environment_is_set = [] {
  ::setenv("CONCORD_SIM_NPU_DEVICES", "3", 1);
  ::setenv("CONCORD_SIM_NPU_MEMORY", "64M", 1);
  ::unsetenv("CONCORD_SIM_NPU_FAULT");
  ::unsetenv("CONCORD_SIM_NPU_JITTER");
  ::unsetenv("CONCORD_SIM_NPU_LOG");
  ::unsetenv("ASCEND_RT_VISIBLE_DEVICES");
  return true;
}();

#define EXPECT_OK(call) EXPECT_EQ((call), 0) << ::aclGetRecentErrMsg()
#define ASSERT_OK(call) ASSERT_EQ((call), 0) << ::aclGetRecentErrMsg()
// Expects that the call fails with |code| and a message that contains |part|.
#define EXPECT_FAILS(call, code, part) \
  EXPECT_EQ((call), code);             \
  EXPECT_THAT(std::string(::aclGetRecentErrMsg()), ::testing::HasSubstr(part))

// A test with ACL initialised and device 0 set for the thread; both are undone at its end.
class SimTest : public ::testing::Test {
 protected:
  SimTest() {  // not SetUp(), so that the members of a fixture can be streams
    ::aclInit(nullptr);
    EXPECT_OK(::aclrtSetDevice(0));
  }
  void TearDown() override {
    ::concord_sim_set_faults(nullptr);
    for (int32_t device = 0; device < kDevices; ++device) ::aclrtResetDeviceForce(device);
    ::aclGetRecentErrMsg();
  }
};

class TestStream {
 public:
  TestStream() { EXPECT_OK(::aclrtCreateStream(&handle_)); }
  ~TestStream() {
    if (handle_ != nullptr) ::aclrtDestroyStreamForce(handle_);
  }
  TestStream(const TestStream&) = delete;
  TestStream& operator=(const TestStream&) = delete;
  operator void*() const { return handle_; }
  void* release() { return std::exchange(handle_, nullptr); }

 private:
  void* handle_ = nullptr;
};

// A task at which a stream waits until the gate is opened.
class Gate {
 public:
  ~Gate() { open(); }
  void hold(void* stream) {
    EXPECT_OK(::aclrtLaunchHostFunc(
        stream,
        [](void* state) {
          auto* self = static_cast<State*>(state);
          self->reached.store(true);
          while (!self->open.load()) std::this_thread::sleep_for(std::chrono::microseconds(50));
          self->passed.store(true);
        },
        &state_));
    held_ = true;
  }
  void open() {
    state_.open.store(true);
    while (held_ && state_.reached.load() && !state_.passed.load()) std::this_thread::yield();
  }
  void await() const {
    while (!state_.reached.load()) std::this_thread::yield();
  }

 private:
  struct State {
    std::atomic<bool> open{false};
    std::atomic<bool> reached{false};
    std::atomic<bool> passed{false};
  };
  // Never destroyed: a stream may reach the gate after the object's end.
  static State& new_state() {
    static std::mutex mutex;
    static auto& all = *new std::deque<State>;
    const std::lock_guard lock(mutex);
    return all.emplace_back();
  }

  bool held_ = false;
  State& state_ = new_state();
};

inline void* device_memory(size_t bytes) {
  void* address = nullptr;
  EXPECT_OK(::aclrtMalloc(&address, bytes, kMallocHugeFirst));
  return address;
}

template <class Type>
std::vector<Type> read_back(const void* address, size_t count) {
  std::vector<Type> values(count);
  const size_t bytes = count * sizeof(Type);
  EXPECT_OK(::aclrtMemcpy(values.data(), bytes, address, bytes, kMemcpyDeviceToHost));
  return values;
}

inline int32_t read_word(const void* address) { return read_back<int32_t>(address, 1)[0]; }

inline void write_word(void* address, int32_t value) {
  EXPECT_OK(::aclrtMemcpy(address, sizeof value, &value, sizeof value, kMemcpyHostToDevice));
}

// Queues "*address = value" on |stream|.
inline void queue_word(void* address, int32_t value, void* stream) {
  EXPECT_OK(launch(stream, "queue_word", [=]() -> int32_t {
    *static_cast<int32_t*>(concord_sim_translate(address)) = value;
    return 0;
  }));
}

// Queues "*to = *from".
inline void queue_copy_word(void* to, void* from, void* stream) {
  EXPECT_OK(launch(stream, "queue_copy_word", [=]() -> int32_t {
    *static_cast<int32_t*>(concord_sim_translate(to)) = *static_cast<int32_t*>(concord_sim_translate(from));
    return 0;
  }));
}

inline bool stream_done(void* stream) {
  aclrtStreamStatus status{};
  EXPECT_OK(::aclrtStreamQuery(stream, &status));
  return status == kStreamComplete;
}

inline bool event_done(void* event) {
  aclrtEventRecordedStatus status{};
  EXPECT_OK(::aclrtQueryEventStatus(event, &status));
  return status == kEventRecordedComplete;
}

// Runs |body| on a thread without a context.
template <class Body>
void on_fresh_thread(Body&& body) {
  std::thread thread(body);
  thread.join();
}

}  // namespace concord::ascend::sim::testing
