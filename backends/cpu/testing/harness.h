// Helpers of the tests of this folder: the plugin opened once with three devices, and small things to order threads
// with.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <string>
#include <thread>

#include "platform/sdk/testing/test_host.hpp"

namespace concord::cpu::testing {

inline constexpr int32_t kDevices = 3;
inline constexpr int64_t kMemoryLimit = int64_t{1} << 30;

inline const sdk::TestHost& host() {
  static const sdk::TestHost opened = [] {
    sdk::TestHost::set_config("cpu.devices", std::to_string(kDevices));
    sdk::TestHost::set_config("cpu.memory_limit", std::to_string(kMemoryLimit));
    return sdk::TestHost(CONCORD_TEST_PLUGIN);
  }();
  return opened;
}

inline const concord_device_table& device() { return host().device(); }
inline const concord_memory_table& memory() { return host().memory(); }
inline const concord_stream_table& stream() { return host().stream(); }
inline const concord_event_table& event() { return host().event(); }
inline const concord_comm_table& comm() { return host().comm(); }
inline const concord_rng_table& rng() { return host().rng(); }

// Calls slot |function| of |table|, a function of this file's that returns one.
#define CALL(table, function, ...) table().function(table().self __VA_OPT__(, ) __VA_ARGS__)
#define EXPECT_OK(call) EXPECT_EQ((call), CONCORD_STATUS_OK) << ::concord::sdk::TestHost::detail()
#define ASSERT_OK(call) ASSERT_EQ((call), CONCORD_STATUS_OK) << ::concord::sdk::TestHost::detail()
// The call fails with |status| and a message that contains |part|.
#define EXPECT_FAILS(call, status, part) \
  EXPECT_EQ((call), status);             \
  EXPECT_THAT(::concord::sdk::TestHost::detail(), ::testing::HasSubstr(part))
#define EXPECT_REFUSED(call, part) EXPECT_FAILS(call, CONCORD_STATUS_INVALID_ARGUMENT, part)

// A stream that ends with its scope.
class TestStream {
 public:
  explicit TestStream(int32_t on = 0) { EXPECT_OK(CALL(stream, create, on, 0, &handle_)); }
  ~TestStream() { EXPECT_OK(CALL(stream, destroy, handle_)); }
  TestStream(const TestStream&) = delete;
  TestStream& operator=(const TestStream&) = delete;

  operator concord_stream() const { return handle_; }
  concord_status synchronize() const { return CALL(stream, synchronize, handle_); }
  bool done() const {
    int32_t answer = -1;
    EXPECT_OK(CALL(stream, query, handle_, &answer));
    return answer == 1;
  }

 private:
  concord_stream handle_ = nullptr;
};

class TestEvent {
 public:
  explicit TestEvent(uint32_t flags = 0) { EXPECT_OK(CALL(event, create, 0, flags, &handle_)); }
  ~TestEvent() { EXPECT_OK(CALL(event, destroy, handle_)); }
  TestEvent(const TestEvent&) = delete;
  TestEvent& operator=(const TestEvent&) = delete;

  operator concord_event() const { return handle_; }
  void record(concord_stream on) { EXPECT_OK(CALL(event, record, handle_, on)); }
  bool done() const {
    int32_t answer = -1;
    EXPECT_OK(CALL(event, query, handle_, &answer));
    return answer == 1;
  }

 private:
  concord_event handle_ = nullptr;
};

// Work that holds a stream up from the moment it runs until the gate is opened, at the latest when the gate goes away.
class Gate {
 public:
  ~Gate() {
    open();
    while (left_.load() != queued_) std::this_thread::yield();
  }
  void block(concord_stream on) {
    ++queued_;
    EXPECT_OK(CALL(stream, launch_host, on, [](void* user) { static_cast<Gate*>(user)->pass(); }, this));
  }
  void await_entry() const {
    while (entered_.load() != queued_) std::this_thread::yield();
  }
  void open() { open_.store(true); }

 private:
  void pass() {
    entered_.fetch_add(1);
    while (!open_.load()) std::this_thread::sleep_for(std::chrono::microseconds(50));
    left_.fetch_add(1);
  }

  int queued_ = 0;
  std::atomic<int> entered_{0}, left_{0};
  std::atomic<bool> open_{false};
};

// Queues a step that adds one to |counter|.
inline void count_up(concord_stream on, std::atomic<int>& counter) {
  const auto step = [](void* user) { static_cast<std::atomic<int>*>(user)->fetch_add(1); };
  EXPECT_OK(CALL(stream, launch_host, on, step, &counter));
}

// Long enough for a wrong implementation to run ahead in; a right one passes whatever the time.
inline void give_others_time() { std::this_thread::sleep_for(std::chrono::milliseconds(20)); }

}  // namespace concord::cpu::testing
