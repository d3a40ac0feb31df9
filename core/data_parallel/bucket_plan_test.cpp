#include "core/data_parallel/bucket_plan.h"

#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "core/base/config_error.h"

namespace concord {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// (g++ 12 warns about "p" + to_string.)
std::string name_of(size_t number) { return std::string("p").append(std::to_string(number)); }

std::vector<PlannedParameter> sized(std::initializer_list<int64_t> sizes) {
  std::vector<PlannedParameter> parameters;
  for (const int64_t size : sizes) parameters.push_back({name_of(parameters.size()), size});
  return parameters;
}

std::string error_of(const std::vector<PlannedParameter>& parameters, const BucketOptions& options) {
  try {
    plan_buckets(parameters, options);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "no error";
}

TEST(BucketPlan, ParametersLieInReverseOrderAndBeginAtMultiplesOf64) {
  const BucketPlan plan = plan_buckets(sized({100, 64, 10}), {});
  ASSERT_EQ(plan.buffers.size(), 1u);
  ASSERT_EQ(plan.buffers[0].buckets.size(), 1u);
  EXPECT_THAT(plan.buffers[0].buckets[0].slots,
              ElementsAre(BucketPlan::Slot{2, 0, 10}, BucketPlan::Slot{1, 64, 128}, BucketPlan::Slot{0, 128, 228}));
  EXPECT_EQ(plan.buffers[0].elements, 256);
}

TEST(BucketPlan, VectorsFollowTheMatricesOfTheirBucket) {
  std::vector<PlannedParameter> parameters = sized({64, 10, 100, 10, 64, 70});
  for (const size_t vector : {1, 3, 5}) parameters[vector].is_vector = true;
  const BucketPlan plan = plan_buckets(parameters, {.bucket_elements = 300});
  ASSERT_EQ(plan.buffers[0].buckets.size(), 2u);  // p5 to p2 end at 356 of 300, in the order of their arrival too
  EXPECT_THAT(plan.buffers[0].buckets[0].slots,
              ElementsAre(BucketPlan::Slot{4, 0, 64}, BucketPlan::Slot{2, 64, 164}, BucketPlan::Slot{5, 192, 262},
                          BucketPlan::Slot{3, 320, 330}));
  EXPECT_EQ(plan.buffers[0].buckets[0].end, 384);
  EXPECT_THAT(plan.buffers[0].buckets[1].slots,
              ElementsAre(BucketPlan::Slot{0, 384, 448}, BucketPlan::Slot{1, 448, 458}));
  EXPECT_THAT(plan.order, ElementsAre(BucketPlan::Place{0, 0}, BucketPlan::Place{0, 1}));
}

TEST(BucketPlan, ABucketIsClosedOnceItHasItsElements) {
  const BucketPlan plan = plan_buckets(sized({64, 64, 64, 64, 64}), {.bucket_elements = 128});
  std::vector<size_t> slots;
  for (const auto& bucket : plan.buffers[0].buckets) slots.push_back(bucket.slots.size());
  EXPECT_THAT(slots, ElementsAre(2, 2, 1));
  EXPECT_THAT(plan.order, ElementsAre(BucketPlan::Place{0, 0}, BucketPlan::Place{0, 1}, BucketPlan::Place{0, 2}));
}

// Megatron: max(40e6, 1e6 * dp).
TEST(BucketPlan, TheSizeOfABucketGrowsWithTheRanks) {
  const auto buckets = [](int64_t dp) {
    return plan_buckets(sized({20'000'000, 20'000'000, 20'000'000, 20'000'000}), {.dp = dp}).buffers[0].buckets.size();
  };
  EXPECT_EQ(buckets(1), 2u);
  EXPECT_EQ(buckets(40), 2u);
  EXPECT_EQ(buckets(41), 2u);  // 60e6, then 20e6
  EXPECT_EQ(buckets(80), 1u);
}

TEST(BucketPlan, ShardsAreEqualForTheDistributedOptimizer) {
  for (const int64_t dp : {1, 2, 3, 6, 7, 64}) {
    const BucketPlan plan =
        plan_buckets(sized({1000, 77, 501, 3}), {.dp = dp, .bucket_elements = 500, .distributed_optimizer = true});
    ASSERT_EQ(plan.buffers[0].shards, dp);
    int64_t end = 0;
    for (const BucketPlan::Bucket& bucket : plan.buffers[0].buckets) {
      EXPECT_EQ(bucket.begin, end);
      end = bucket.end;
      EXPECT_EQ((bucket.end - bucket.begin) % dp, 0) << dp;
      EXPECT_EQ(bucket.end % 128, 0) << dp;
      EXPECT_LE(bucket.slots.back().end, bucket.end);
    }
    EXPECT_EQ(plan.buffers[0].elements, end);
  }
}

TEST(BucketPlan, TypesAndExpertsHaveBuffersOfTheirOwn) {
  std::vector<PlannedParameter> parameters = sized({64, 64, 64, 64});
  parameters[1].dtype = DType::kBF16;
  parameters[2].expert = true;
  const BucketPlan plan =
      plan_buckets(parameters, {.dp = 4, .edp = 2, .distributed_optimizer = true, .fp32_grads = false});
  ASSERT_EQ(plan.buffers.size(), 3u);
  EXPECT_EQ(plan.buffers[0].dtype, DType::kF32);
  EXPECT_EQ(plan.buffers[1].expert, true);
  EXPECT_EQ(plan.buffers[1].shards, 2);
  EXPECT_EQ(plan.buffers[2].dtype, DType::kBF16);
  EXPECT_EQ(plan.buffers[2].grad_dtype, DType::kBF16);
}

// The buffer of p0 and p3 is complete last, although p3 comes first.
TEST(BucketPlan, BucketsAreReducedInTheOrderInWhichTheyAreComplete) {
  std::vector<PlannedParameter> parameters = sized({64, 64, 64, 64});
  parameters[1].dtype = parameters[2].dtype = DType::kBF16;
  const BucketPlan plan = plan_buckets(parameters, {.bucket_elements = 64 * 4});
  EXPECT_THAT(plan.order, ElementsAre(BucketPlan::Place{1, 0}, BucketPlan::Place{0, 0}));
}

TEST(BucketPlan, AParameterThatStandsAloneHasItsOwnBucket) {
  std::vector<PlannedParameter> parameters = sized({64, 64, 64});
  parameters[1].alone = true;
  EXPECT_EQ(plan_buckets(parameters, {}).buffers[0].buckets.size(), 3u);
  EXPECT_EQ(plan_buckets(parameters, {.one_bucket = true}).buffers[0].buckets.size(), 3u);
  parameters[1].alone = false;
  EXPECT_EQ(plan_buckets(parameters, {.bucket_elements = 1, .one_bucket = true}).buffers[0].buckets.size(), 1u);
}

// The numbers of the ZeRO paper: 2 + 4 + 12 / dp bytes per bf16 parameter with fp32 gradients.
TEST(BucketPlan, MemoryFollowsTheFormulaOfZero1) {
  std::vector<PlannedParameter> parameters = sized({1024});
  EXPECT_EQ(memory_of(plan_buckets(parameters, {.dp = 4})).total(), 1024 * (4 + 4 + 8));
  parameters[0].dtype = DType::kBF16;
  const BucketMemory memory = memory_of(plan_buckets(parameters, {.dp = 4, .distributed_optimizer = true}));
  EXPECT_EQ(memory.parameters, 1024 * 2);
  EXPECT_EQ(memory.gradients, 1024 * 4);
  EXPECT_EQ(memory.optimizer, 1024 * 12 / 4);
}

TEST(BucketPlan, WhatIsPrintedIsThePlan) {
  const auto parameters = sized({100, 64});
  const BucketPlan plan = plan_buckets(parameters, {.dp = 2, .distributed_optimizer = true});
  const auto document = nlohmann::json::parse(to_json(plan, parameters));
  EXPECT_EQ(document["buffers"][0]["buckets"][0]["parameters"][1]["name"], "p0");
  EXPECT_EQ(document["buffers"][0]["buckets"][0]["parameters"][1]["end"], 164);
  EXPECT_EQ(document["buffers"][0]["elements"], 256);
  EXPECT_EQ(document["bytes"]["total"], memory_of(plan).total());
  EXPECT_THAT(to_text(plan, parameters), HasSubstr("256 elements in 1 bucket, 2 shards per bucket"));
}

TEST(BucketPlan, RefusesWhatCannotBeMeant) {
  EXPECT_THAT(error_of(sized({8}), {.dp = 0}), HasSubstr("dp is 0"));
  EXPECT_THAT(error_of(sized({8}), {.bucket_elements = -1}), HasSubstr("the bucket size is -1"));
  EXPECT_THAT(error_of(sized({0}), {}), HasSubstr("parameter 'p0' has 0 elements"));
  EXPECT_THAT(error_of({{"ids", 4, DType::kI64}}, {}), HasSubstr("parameter 'ids' has dtype"));
}

}  // namespace
}  // namespace concord
