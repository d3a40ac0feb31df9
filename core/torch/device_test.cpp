#include "core/torch/device.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <thread>

#include "core/torch/library.h"
#include "platform/cpp/concord.hpp"

namespace concord {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// The cpu plugin with a different libtorch device.
struct FakeSide {
  explicit FakeSide(const char* type, const char* name = nullptr, const char* const* libraries = nullptr)
      : plugin(loader::open_plugin("cpu")) {
    plugin.path = CONCORD_TEST_FOLDER "/libconcord_fake.so";
    plugin.tables.core.torch_device_type = type;
    plugin.tables.core.torch_device_name = name;
    plugin.tables.core.torch_libraries = libraries;
  }
  Platform platform() const { return Platform(plugin); }
  loader::Plugin plugin;
};

template <class Body>
std::string error_of(concord_status status, Body body) {
  try {
    body();
  } catch (const Error& error) {
    EXPECT_EQ(status_name(error.status()), status_name(status));
    return error.what();
  }
  ADD_FAILURE() << "nothing was thrown";
  return {};
}

Communicator alone(const Device& device) { return {device, 1, 0, create_unique_id(device.platform())}; }

TEST(TorchDevice, OfTheCpuPlatformIsTheCpu) {
  const Platform platform = open_platform("cpu");
  EXPECT_EQ(torch_device(platform, 0), c10::Device(c10::kCPU));
  EXPECT_EQ(torch_device(platform, platform.device_count() - 1), c10::Device(c10::kCPU));
}

TEST(TorchDevice, RefusesAnIndexThatIsNotThere) {
  const Platform platform = open_platform("cpu");
  const std::string count = std::to_string(platform.device_count());
  for (const int32_t index : {-1, platform.device_count()}) {
    EXPECT_THAT(error_of(CONCORD_STATUS_INVALID_ARGUMENT, [&] { torch_device(platform, index); }),
                AllOf(HasSubstr("device " + std::to_string(index)), HasSubstr("'cpu', which has " + count)));
  }
}

TEST(TorchDevice, TensorsShareTheirMemoryWithThePlatformsCollectives) {
  const Device device(open_platform("cpu"), 0);
  const auto options = c10::TensorOptions().dtype(c10::kFloat).device(torch_device(device.platform(), 0));
  const at::Tensor send = at::arange(1000, options);
  const at::Tensor recv = at::zeros({1000}, options);
  alone(device).all_reduce(torch_stream(device), send.data_ptr(), recv.data_ptr(), 1000, DType::kF32, ReduceOp::kSum);
  EXPECT_TRUE(recv.equal(send));
}

TEST(TorchDevice, WorkOnAPlatformsStreamIsOrderedWithTensorsThroughEvents) {
  const Device device(open_platform("cpu"), 0);
  const auto options = c10::TensorOptions().dtype(c10::kFloat).device(torch_device(device.platform(), 0));
  const at::Tensor value = at::full({64}, 7.0F, options);
  const at::Tensor copy = at::zeros({64}, options);
  std::atomic<bool> open = false;
  const Stream producer(device);
  const Stream side(device);
  const Communicator comm = alone(device);
  // The producer is blocked, so the collective on the side stream cannot have run before the gate opens.
  producer.launch_host([](void* gate) { static_cast<std::atomic<bool>*>(gate)->wait(false); }, &open);
  Event produced(device);
  produced.record(producer);
  side.wait(produced.native());
  comm.all_reduce(side, value.data_ptr(), copy.data_ptr(), 64, DType::kF32, ReduceOp::kSum);
  EXPECT_FALSE(side.done());
  EXPECT_TRUE(copy.equal(at::zeros({64}, options)));
  open = true;
  open.notify_all();
  side.synchronize();
  EXPECT_TRUE(copy.equal(value));
}

TEST(TorchDevice, StreamOfTheCpuPlatformIsTheNullStream) {
  EXPECT_EQ(torch_stream(Device(open_platform("cpu"), 0)).native(), nullptr);
}

// The next test must be the first one that loads the fake library: libtorch does not know the device before.
TEST(TorchDevice, LoadsTheLibrariesThatThePlatformNamesAndRenamesTheDevice) {
  ASSERT_FALSE(c10::impl::hasDeviceGuardImpl(c10::DeviceType::PrivateUse1));
  const char* const libraries[] = {"libfake_torch_library.so", nullptr};
  const FakeSide side("privateuseone", "fake", libraries);
  EXPECT_EQ(torch_device(side.platform(), 0).str(), "fake:0");
  EXPECT_TRUE(c10::impl::hasDeviceGuardImpl(c10::DeviceType::PrivateUse1));
  EXPECT_EQ(c10::Device("fake:3").type(), c10::DeviceType::PrivateUse1);
}

TEST(TorchDevice, StreamIsTheNativeHandleOfLibtorchsCurrentStream) {
  const char* const libraries[] = {"libfake_torch_library.so", nullptr};
  const FakeSide side("privateuseone", "fake", libraries);
  EXPECT_EQ(torch_stream(Device(side.platform(), 0)).native(), reinterpret_cast<concord_stream>(0x1000));
}

TEST(TorchDevice, LetsALibraryLoadOthersWhereItWouldBeLookedForItself) {
  const std::string plugin = CONCORD_TEST_FOLDER "/libconcord_fake.so";
  ::setenv("FAKE_TORCH_LOADS", "libc10.so", 1);
  EXPECT_NO_THROW(torch_side::load_library("libfake_torch_library.so", plugin));
  ::setenv("FAKE_TORCH_LOADS", "libno_such_torch.so", 1);
  EXPECT_THAT(
      error_of(CONCORD_STATUS_UNAVAILABLE, [&] { torch_side::load_library("libfake_torch_library.so", plugin); }),
      AllOf(HasSubstr("libfake_torch_library.so: libtorch in /"), HasSubstr("cannot load libno_such_torch.so"),
            HasSubstr(CONCORD_TEST_FOLDER "/libno_such_torch.so: no such file")));
  ::unsetenv("FAKE_TORCH_LOADS");
}

TEST(TorchDevice, SaysEveryPlaceTriedForALibraryThatIsMissing) {
  const char* const libraries[] = {"libno_such_torch.so", nullptr};
  const FakeSide side("privateuseone", "fake", libraries);
  EXPECT_THAT(error_of(CONCORD_STATUS_UNAVAILABLE, [&] { torch_device(side.platform(), 0); }),
              AllOf(HasSubstr("cannot load libno_such_torch.so"), HasSubstr("/lib/libno_such_torch.so: no such file"),
                    HasSubstr("/no_such_torch/lib/libno_such_torch.so: no such file"),
                    HasSubstr(CONCORD_TEST_FOLDER "/libno_such_torch.so: no such file"),
                    HasSubstr("\n  libno_such_torch.so: libno_such_torch.so: cannot open shared object file")));
}

TEST(TorchDevice, LooksBesideLibtorchFirst) {
  const std::string first = torch_side::library_places("libc10.so", "/nowhere/libconcord_x.so").front();
  EXPECT_TRUE(std::filesystem::exists(first)) << first;
}

TEST(TorchDevice, RefusesADeviceTypeThatLibtorchDoesNotKnow) {
  const FakeSide side("abacus");
  EXPECT_THAT(error_of(CONCORD_STATUS_UNAVAILABLE, [&] { torch_device(side.platform(), 0); }),
              AllOf(HasSubstr("platform 'cpu'"), HasSubstr("abacus")));
}

TEST(TorchDevice, RefusesADeviceTypeThatThisLibtorchWasBuiltWithout) {
  const FakeSide side("hpu");
  EXPECT_THAT(error_of(CONCORD_STATUS_UNAVAILABLE, [&] { torch_device(side.platform(), 0); }),
              AllOf(HasSubstr("'hpu'"), HasSubstr("built without")));
}

TEST(TorchDevice, IsFoundOnceWhenSeveralThreadsAskAtOnce) {
  const Platform platform = open_platform("cpu");
  std::vector<std::thread> threads;
  std::atomic<int> right = 0;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&] { right += torch_device(platform, 0).is_cpu() ? 1 : 0; });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(right, 8);
}

}  // namespace
}  // namespace concord
