// A C++ program on torch_npu whose operators fail: the failure is reported by libtorch or by the platform, and no value
// comes back in its place. Each case is a separate process, because a device is not usable after one.
#include <ATen/TensorOperators.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "core/torch/device.h"
#include "platform/cpp/concord.hpp"
#include "tests/processes/spawn.hpp"

namespace concord {
namespace {

// 2 * 2 * 2, computed on libtorch's stream and read back.
at::Tensor compute(const Device& device) {
  const at::Tensor x = at::full({64}, 2.0, at::TensorOptions().device(torch_device(device.platform(), device.index())));
  const at::Tensor y = x * x * x;
  torch_stream(device).synchronize();
  return y.cpu();
}

// Where |rule| is empty nothing is injected and the value has to be right.
void run_with_fault(const std::string& rule) {
  ::setenv("CONCORD_SIM_NPU_FAULT", rule.c_str(), 1);
  const Device device(current_platform(), 0);
  const DeviceGuard current(device);
  if (rule.empty()) {
    EXPECT_TRUE(compute(device).equal(at::full({64}, 8.0)));
    return;
  }
  try {
    const at::Tensor value = compute(device);
    ADD_FAILURE() << rule << " was not reported; the value was " << value[0].item<float>();
  } catch (const std::exception& error) {
    std::printf("%s: reported: %.300s\n", rule.c_str(), error.what());
  }
}

class Failure : public ::testing::TestWithParam<const char*> {};

TEST_P(Failure, IsReportedAndNotTurnedIntoAValue) {
  const auto outcomes = tests::run_ranks(1, [](int) { run_with_fault(GetParam()); });
  EXPECT_TRUE(outcomes[0].ok()) << outcomes[0].describe();
  std::printf("%s", outcomes[0].output.c_str());
}

INSTANTIATE_TEST_SUITE_P(OfAnOperator, Failure,
                         ::testing::Values("", "aclnnMul@1=561000", "aclnnMul@2=161002", "aclnnMul@1=async:507015",
                                           "aclnnMul@2=async:507015", "aclnnInplaceFillScalar@1=async:507015",
                                           "aclrtSynchronizeStream@1=507000", "aclrtMemcpy@1=507000"));

}  // namespace
}  // namespace concord
