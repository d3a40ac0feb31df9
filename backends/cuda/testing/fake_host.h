// Helpers of tests on the fake CUDA: the opened plugin, ranks as threads, device buffers, the fake NCCL's switches.
#pragma once

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "platform/sdk/testing/test_host.hpp"

namespace concord::cuda {

// Returns the plugin, opened once, on the fake CUDA.
inline const sdk::TestHost& fake_host() {
  static const sdk::TestHost* host = [] {
    setenv("FAKE_CUDA_DEVICES", "2", 1);
    sdk::TestHost::set_config("cuda.nccl", FAKE_NCCL_PATH);
    return new sdk::TestHost(FAKE_PLUGIN_PATH);
  }();
  return *host;
}

// Looks up a function of control.h by name in the fake NCCL, or another library, that the plugin has loaded.
template <class Function>
Function* fake_control(const char* name, const char* path = FAKE_NCCL_PATH) {
  fake_host();
  void* library = dlopen(path, RTLD_NOW | RTLD_NOLOAD);
  return reinterpret_cast<Function*>(dlsym(library, name));
}

inline testing::AssertionResult ok(concord_status status) {
  if (status == CONCORD_STATUS_OK) return testing::AssertionSuccess();
  return testing::AssertionFailure() << "status " << status << ": " << sdk::TestHost::detail();
}

// One rank in one thread: its communicator and a stream.
struct Rank {
  int32_t rank = 0;
  int32_t world = 0;
  concord_comm comm = nullptr;
  concord_stream stream = nullptr;

  concord_status synchronize() const { return fake_host().stream().synchronize(fake_host().stream().self, stream); }
};

using RankBody = std::function<void(Rank&)>;

// Runs |body| for |world| ranks, each in a thread with its own communicator, which it destroys at the end.
inline void run_ranks(int32_t world, int64_t timeout_ms, const RankBody& body) {
  const auto& comm = fake_host().comm();
  const auto& stream = fake_host().stream();
  std::vector<char> id(128);
  ASSERT_TRUE(ok(comm.unique_id_create(comm.self, id.data(), 128)));
  std::vector<std::thread> threads;
  for (int32_t rank = 0; rank < world; ++rank) {
    threads.emplace_back([&, rank] {
      Rank mine{rank, world, nullptr, nullptr};
      concord_comm_config config{sizeof config, 0, "test", timeout_ms};
      ASSERT_TRUE(ok(comm.init(comm.self, 0, world, rank, id.data(), 128, &config, &mine.comm)));
      ASSERT_TRUE(ok(stream.create(stream.self, 0, 0, &mine.stream)));
      body(mine);
      EXPECT_TRUE(ok(comm.destroy(comm.self, mine.comm)));
      EXPECT_TRUE(ok(stream.destroy(stream.self, mine.stream)));
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// Device memory that holds |values|.
template <class T>
class DeviceArray {
 public:
  explicit DeviceArray(const std::vector<T>& values) : count_(values.size()) {
    const auto& memory = fake_host().memory();
    EXPECT_TRUE(ok(memory.allocate(memory.self, 0, bytes(), reinterpret_cast<void**>(&data_))));
    EXPECT_TRUE(ok(memory.copy(memory.self, data_, values.data(), bytes(), CONCORD_COPY_HOST_TO_DEVICE)));
  }
  ~DeviceArray() {
    const auto& memory = fake_host().memory();
    EXPECT_TRUE(ok(memory.release(memory.self, 0, data_)));
  }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;

  T* data() const { return data_; }
  std::vector<T> values() const {
    std::vector<T> result(count_);
    const auto& memory = fake_host().memory();
    EXPECT_TRUE(ok(memory.copy(memory.self, result.data(), data_, bytes(), CONCORD_COPY_DEVICE_TO_HOST)));
    return result;
  }

 private:
  int64_t bytes() const { return static_cast<int64_t>(count_ * sizeof(T)); }

  size_t count_;
  T* data_ = nullptr;
};

}  // namespace concord::cuda
