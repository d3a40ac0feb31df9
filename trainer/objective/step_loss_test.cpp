#include "trainer/objective/step_loss.h"

#include <ATen/ops/full.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "trainer/metrics/loss_log.h"

namespace concord {
namespace {

using ::testing::DoubleEq;
using ::testing::ElementsAre;

MicroBatch with_counted(int64_t counted, int64_t length) {
  MicroBatch batch;
  batch.labels = at::full({1, length}, kIgnoredLabel, at::TensorOptions().dtype(at::kLong));
  if (counted > 0) batch.labels.narrow(1, 0, counted).fill_(7);
  return batch;
}

TEST(StepLoss, PerTokenEveryTokenWeighsOne) {
  const std::vector<MicroBatch> batches = {with_counted(3, 8), with_counted(8, 8)};
  EXPECT_THAT(loss_weights(batches, {.per_token = true, .cp = 2, .dp = 4}), ElementsAre(1, 1));
}

// Summed over the cp ranks of a micro-batch and averaged over dp x cp, the weights are 1 / (n * micro-batches * dp).
TEST(StepLoss, PerMicroBatchAMeanIsAMeanUnderContextParallelismToo) {
  const std::vector<MicroBatch> batches = {with_counted(2, 8), with_counted(8, 8)};
  const LossRule rule{.per_token = false, .cp = 2, .dp = 4};
  const std::vector<double> weights = loss_weights(batches, rule);
  const double reduction = 1.0 / static_cast<double>(rule.dp * rule.cp);
  EXPECT_DOUBLE_EQ(weights[0] * reduction, 1.0 / (2 * 2 * 4));
  EXPECT_DOUBLE_EQ(weights[1] * reduction, 1.0 / (8 * 2 * 4));
}

TEST(StepLoss, AMicroBatchWithoutCountedTokensIsNoDivisionByZero) {
  const std::vector<MicroBatch> batches = {with_counted(0, 8)};
  EXPECT_TRUE(std::isfinite(loss_weights(batches, {.per_token = false})[0]));
}

TEST(MeanLoss, LeavesOutWhatIsNoNumberOnlyIfAsked) {
  const double nan = std::numeric_limits<double>::quiet_NaN(), inf = std::numeric_limits<double>::infinity();
  EXPECT_THAT(mean_loss({1, nan, 3, inf}, true), DoubleEq(2));
  EXPECT_TRUE(std::isnan(mean_loss({1, nan, 3}, false)));
  EXPECT_TRUE(std::isnan(mean_loss({nan}, true)));
  EXPECT_TRUE(std::isnan(mean_loss({}, true)));
}

}  // namespace
}  // namespace concord
