#include "trainer/health/loss_check.h"

#include <ATen/ops/tensor.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>

#include "core/mesh/initialize.h"
#include "platform/loader/error.h"

namespace concord {
namespace {

using ::testing::HasSubstr;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();

template <class Check>
std::string complaint(Check check) {
  try {
    check();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

class LossCheckTest : public ::testing::Test {
 protected:
  std::string said_of(const at::Tensor& losses) {
    const LossCheck check(losses, job_);
    return complaint([&] { check.require_finite(7); });
  }

  ParallelContext& job_ = initialize({});
};

TEST_F(LossCheckTest, NamesTheFirstMicroBatchWhoseLossIsNoNumber) {
  EXPECT_THAT(said_of(at::tensor({1.0f, kNan, kInf})), HasSubstr("rank 0: the loss of micro-batch 1 of step 7 is NaN"));
  EXPECT_THAT(said_of(at::tensor({-kInf})), HasSubstr("micro-batch 0 of step 7 is infinite"));
}

TEST_F(LossCheckTest, SaysNothingOfNumbersNorWhereThereAreNone) {
  EXPECT_EQ(said_of(at::tensor({0.0f, 1e38f, -1.0f})), "");
  EXPECT_EQ(said_of(at::tensor(std::vector<float>{})), "");
}

TEST_F(LossCheckTest, AStepThatFailedIsSearchedAsFarAsItCame) {
  const std::vector<at::Tensor> losses = {at::tensor({1.0f, 2.0f}), at::Tensor(), at::tensor({3.0f, kNan})};
  EXPECT_THAT(complaint([&] { require_finite_losses(losses, 3, job_); }), HasSubstr("micro-batch 2 of step 3 is NaN"));
  EXPECT_EQ(complaint([&] { require_finite_losses(std::span(losses).first(2), 3, job_); }), "");
}

}  // namespace
}  // namespace concord
