#include "trainer/health/elastic_layout.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/base/config_error.h"

namespace concord {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(ElasticLayout, TakesTheLargestNumberOfReplicasThatDividesTheBatch) {
  const RankBudget job{.world = 8, .tensor = 2, .global_batch = 32, .micro_batch = 2};
  EXPECT_EQ(shrink_world(job, 0), (ElasticLayout{.world = 8, .data_parallel = 4, .accumulation = 4}));
  for (const int64_t lost : {1, 2, 3, 4}) {  // three replicas do not divide 16 micro-batches
    EXPECT_EQ(shrink_world(job, lost), (ElasticLayout{.world = 4, .data_parallel = 2, .accumulation = 8})) << lost;
  }
  EXPECT_EQ(shrink_world(job, 6), (ElasticLayout{.world = 2, .data_parallel = 1, .accumulation = 16}));
  EXPECT_THAT(shrink_world(job, 7).refusal, HasSubstr("1 of 8 ranks are left, and one replica of the model needs 2"));
}

// Against counting: every number of ranks, every batch.
TEST(ElasticLayout, EveryLayoutOfUpToTwelveRanks) {
  for (int64_t replica : {1, 2, 3, 4}) {
    for (int64_t replicas = 1; replica * replicas <= 12; ++replicas) {
      for (int64_t accumulation = 1; accumulation <= 6; ++accumulation) {
        const RankBudget job{.world = replica * replicas,
                             .pipeline = replica,
                             .global_batch = 2 * accumulation * replicas,
                             .micro_batch = 2};
        for (int64_t lost = 0; lost <= job.world; ++lost) {
          ElasticLayout best;
          for (int64_t n = 1; n * replica <= job.world - lost; ++n) {
            for (int64_t each = 1; each <= job.global_batch; ++each) {
              if (n * each * 2 == job.global_batch) best = {n * replica, n, each};
            }
          }
          ElasticLayout found = shrink_world(job, lost);
          EXPECT_EQ(found.refusal.empty(), best.world > 0);
          found.refusal.clear();
          EXPECT_EQ(found, best) << job.world << " ranks without " << lost;
        }
      }
    }
  }
}

TrainingArguments arguments(int64_t accumulation) {
  TrainingArguments a;
  a.data.micro_batch_size = 1;
  a.data.accumulation = accumulation;
  return a;
}

TEST(ElasticLayout, ListsTheWorldsOfAJob) {
  EXPECT_THAT(allowed_world_sizes(arguments(1), 6), ElementsAre(6, 3, 2, 1));
  EXPECT_THAT(allowed_world_sizes(arguments(2), 4), ElementsAre(4, 2, 1));
  TrainingArguments pipeline = arguments(4);
  pipeline.job.pipeline_model_parallel_size = 2;
  EXPECT_THAT(allowed_world_sizes(pipeline, 4), ElementsAre(4, 2));
}

TEST(ElasticLayout, KeepsTheGlobalBatch) {
  TrainingArguments a = arguments(2);
  keep_global_batch(&a, 4, 2);
  EXPECT_EQ(a.data.accumulation, 4);
  a = arguments(1);
  EXPECT_THROW(keep_global_batch(&a, 4, 3), ConfigError);
}

}  // namespace
}  // namespace concord
