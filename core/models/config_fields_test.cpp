#include "core/models/config_fields.h"

#include <gtest/gtest.h>

#include "tests/count_members.h"

namespace concord {
namespace {

using tests::count_members;

template <class Struct>
void expect_all_members() {
  EXPECT_EQ(config_fields(Struct{}).size(), count_members<Struct>());
}

TEST(ConfigFields, EveryMemberIsComparedOrMayDiffer) {
  expect_all_members<RopeSettings>();
  expect_all_members<ExpertConfig>();
  expect_all_members<LatentConfig>();
  expect_all_members<DeltaConfig>();
  expect_all_members<VisionConfig>();
  expect_all_members<AdapterConfig>();
  const size_t nested = config_fields(RopeSettings{}).size() + config_fields(ExpertConfig{}).size() +
                        config_fields(LatentConfig{}).size() + config_fields(DeltaConfig{}).size() +
                        config_fields(VisionConfig{}).size();
  // experts, latent, delta, vision, rope, window_rope and module are listed member by member, the last two only if they
  // are set.
  EXPECT_EQ(config_fields(ModelConfig{}).size() - nested, count_members<ModelConfig>() - 7);
  // Structs whose members make one text.
  EXPECT_EQ(count_members<GatedActivation>(), 3u);
  EXPECT_EQ(count_members<LayerNorms>(), 4u);
  EXPECT_EQ(count_members<MediaTokens>(), 5u);
}

}  // namespace
}  // namespace concord
