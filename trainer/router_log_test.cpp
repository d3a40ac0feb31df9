#include "trainer/router_log.h"

#include <gmock/gmock.h>

namespace concord {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;

TEST(LoadMetrics, AreMultiplesOfAnEvenLoadPerLayerWithExperts) {
  EXPECT_THAT(
      load_metrics({{0, 0, 0, 0}, {6, 1, 3, 2}, {4, 4, 4, 4}}, {false, true, true}),
      ElementsAre(Pair("expert_load_max_layer_1", 2), Pair("expert_load_min_layer_1", 1.0 / 3),
                  Pair("expert_load_max_layer_2", 1), Pair("expert_load_min_layer_2", 1), Pair("load_imbalance", 1.5)));
}

TEST(LoadMetrics, OfNoTokensAreNone) { EXPECT_THAT(load_metrics({{0, 0}}, {true}), IsEmpty()); }

}  // namespace
}  // namespace concord
