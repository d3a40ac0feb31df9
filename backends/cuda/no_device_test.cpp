// The real plugin, on whatever machine this is: without a driver it reports an error, with one it has a device.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "platform/sdk/testing/test_host.hpp"

namespace concord::cuda {
namespace {

using testing::AnyOf;
using testing::HasSubstr;

TEST(CudaPlugin, WithoutADriverIsUnavailableInTheVendorsWords) {
  const sdk::TestHost host(CUDA_PLUGIN_PATH);
  if (host.status() == CONCORD_STATUS_OK) GTEST_SKIP() << "this machine has a CUDA device";
  EXPECT_EQ(host.status(), CONCORD_STATUS_UNAVAILABLE);
  EXPECT_EQ(host.plugin(), nullptr);
  EXPECT_THAT(sdk::TestHost::detail(), HasSubstr("cudaGetDeviceCount failed with "));
  EXPECT_THAT(sdk::TestHost::detail(), AnyOf(HasSubstr("cudaErrorInsufficientDriver: CUDA driver version"),
                                             HasSubstr("cudaErrorNoDevice: no CUDA-capable device")));
}

TEST(CudaPlugin, CanBeAskedAgainAfterAFailedOpen) {
  sdk::TestHost host(CUDA_PLUGIN_PATH);
  if (host.status() == CONCORD_STATUS_OK) GTEST_SKIP() << "this machine has a CUDA device";
  sdk::TestHost::detail().clear();
  EXPECT_EQ(host.reopen(), CONCORD_STATUS_UNAVAILABLE);
  EXPECT_THAT(sdk::TestHost::detail(), HasSubstr("cudaGetDeviceCount"));
}

}  // namespace
}  // namespace concord::cuda
