#include "trainer/metrics/router_log.h"

#include <gmock/gmock.h>

namespace concord {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;

TEST(LoadMetrics, AreMultiplesOfAnEvenLoadPerLayerWithExperts) {
  EXPECT_THAT(
      load_metrics({{0, 0, 0, 0}, {6, 1, 3, 2}, {4, 4, 4, 4}}, {}, {false, true, true}),
      ElementsAre(Pair("expert_load_max_layer_1", 2), Pair("expert_load_min_layer_1", 1.0 / 3),
                  Pair("expert_load_max_layer_2", 1), Pair("expert_load_min_layer_2", 1), Pair("load_imbalance", 1.5)));
}

TEST(LoadMetrics, OfExpertsWithACapacityHaveTheShareOfChoicesThatWereDropped) {
  EXPECT_THAT(load_metrics({{6, 2}, {4, 4}}, {{2, 0}, {0, 0}}, {true, true}),
              ElementsAre(Pair("expert_load_max_layer_0", 1.5), Pair("expert_load_min_layer_0", 0.5),
                          Pair("token_drop_rate_layer_0", 0.25), Pair("expert_load_max_layer_1", 1),
                          Pair("expert_load_min_layer_1", 1), Pair("token_drop_rate_layer_1", 0),
                          Pair("load_imbalance", 1.25), Pair("token_drop_rate", 0.125)));
}

TEST(LoadMetrics, OfNoTokensAreNone) { EXPECT_THAT(load_metrics({{0, 0}}, {}, {true}), IsEmpty()); }

}  // namespace
}  // namespace concord
