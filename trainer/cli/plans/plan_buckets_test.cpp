#include "trainer/cli/plans/plan_buckets.h"

#include <gmock/gmock.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "core/base/config_error.h"

namespace concord {
namespace {

using ::testing::HasSubstr;

std::string error_of(const std::string& text) {
  try {
    parse_parameters(text, "list.json", "bf16");
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "no error";
}

TEST(PlanBuckets, ReadsAListOfParameters) {
  const auto parameters = parse_parameters(
      R"([{"name": "w", "shape": [3, 5]}, {"name": "e", "elements": 7, "dtype": "f32", "expert": true}])", "list.json",
      "bf16");
  ASSERT_EQ(parameters.size(), 2u);
  EXPECT_EQ(parameters[0].elements, 15);
  EXPECT_EQ(parameters[0].dtype, DType::kBF16);
  EXPECT_EQ(parameters[1].dtype, DType::kF32);
  EXPECT_TRUE(parameters[1].expert);
}

TEST(PlanBuckets, RefusesWhatIsNoSuchList) {
  EXPECT_THAT(error_of("{"), HasSubstr("list.json: is not JSON"));
  EXPECT_THAT(error_of("{}"), HasSubstr("list.json is not a JSON list"));
  EXPECT_THAT(error_of(std::string("[]\0x", 4)), HasSubstr("list.json: is not JSON: byte 2 is 0"));
  EXPECT_THAT(error_of(R"([{"name": "w", "elements": -1}])"), HasSubstr("a size is -1"));
  EXPECT_THAT(error_of(R"([{"name": "w", "shape": [1.5]}])"), HasSubstr("a size is 1.5"));
  EXPECT_THAT(error_of(R"([{"name": "w", "shape": [18446744073709551615]}])"),
              HasSubstr("a size is 18446744073709551615"));
  EXPECT_THAT(error_of("[{}]"), HasSubstr("list.json: parameter 0: the key 'name' is missing; expected {"));
  EXPECT_THAT(error_of(R"([{"name": 3}])"), HasSubstr("list.json: parameter 0: type must be string, but is number"));
  EXPECT_THAT(error_of(R"([{"name": "w", "elements": [-1e309]}])"),
              HasSubstr("list.json: 'elements' is -1e309; a number must be at most 1.79e308 in magnitude"));
  EXPECT_THAT(error_of("[1e400]"), HasSubstr("list.json: a number is 1e400"));
  EXPECT_THAT(error_of(R"([{"name": "w"}])"), HasSubstr("neither"));
  EXPECT_THAT(error_of(R"([{"name": "w", "elements": 1, "dtype": "i8"}])"), HasSubstr("one of f32, bf16, f16"));
  EXPECT_THAT(error_of(R"([{"name": "w", "shape": [4294967296, 4294967296]}])"), HasSubstr("2^63"));
}

// qwen2-tiny over tp 2, dp 2: half of what is cut, all of the norms, and ZeRO-1's bytes.
TEST(PlanBuckets, PlansTheParametersOfAModel) {
  const RankLayout layout({.world = 4, .tensor = 2});
  BucketArguments arguments{
      .model_config = CONCORD_GOLDEN "/hf/qwen2-tiny", .dtype = "bfloat16", .use_distributed_optimizer = true};
  const auto document = nlohmann::json::parse(buckets_text(arguments, layout, 0, true));
  ASSERT_EQ(document.size(), 1u);
  const auto& buffer = document[0]["buffers"][0];
  const int64_t elements = buffer["elements"];
  EXPECT_EQ(buffer["shards"], 2);
  EXPECT_EQ(buffer["buckets"][0]["parameters"][0]["name"], "lm_head.weight");
  EXPECT_EQ(document[0]["bytes"]["total"], elements * (2 + 4 + 6));
  EXPECT_EQ(buffer["dtype"], "bf16");
  EXPECT_THAT(buckets_text(arguments, layout, 0, false), HasSubstr("chunk 0 of rank 0"));
  arguments.optimizer.ema_decay = 0.99;  // 4 bytes more for each of this rank's half
  const auto averaged = nlohmann::json::parse(buckets_text(arguments, layout, 0, true))[0]["bytes"];
  EXPECT_EQ(averaged["optimizer"], elements * (6 + 2));
  EXPECT_EQ(averaged["total"], elements * (2 + 4 + 6 + 2));
  arguments.optimizer.precision.exp_avg_dtype = StateType::bf16;  // 2 bytes fewer
  const auto narrow = nlohmann::json::parse(buckets_text(arguments, layout, 0, true))[0];
  EXPECT_EQ(narrow["bytes"]["optimizer"], elements * (6 + 2 - 1));
  EXPECT_EQ(narrow["buffers"][0]["state"], "exp_avg bf16 2 + exp_avg_sq fp32 4 + main fp32 4 + ema fp32 4");
  EXPECT_THAT(buckets_text(arguments, layout, 0, false), HasSubstr("main fp32 4 + ema fp32 4 = 14 bytes"));
  arguments.dtype = "";
  EXPECT_THAT(buckets_text(arguments, layout, 0, false), HasSubstr("parameters of f32"));  // from config.json
}

// Half of the experts, in a separate buffer that is sharded over the ranks with the same experts.
TEST(PlanBuckets, PlansExpertsSeparately) {
  const RankLayout one({.world = 1}), split({.world = 4, .expert = 2});
  const BucketArguments arguments{
      .model_config = CONCORD_GOLDEN "/hf/qwen3-moe-tiny", .dtype = "bfloat16", .use_distributed_optimizer = true};
  const auto whole = nlohmann::json::parse(buckets_text(arguments, one, 0, true))[0]["buffers"];
  const auto part = nlohmann::json::parse(buckets_text(arguments, split, 0, true))[0]["buffers"];
  ASSERT_EQ(part.size(), 2u);
  for (size_t i = 0; i < 2; ++i) {
    const bool expert = part[i]["expert"];
    EXPECT_EQ(part[i]["shards"], expert ? 2 : 4);
    if (!expert) continue;
    EXPECT_EQ(part[i]["elements"].get<int64_t>() * 2, whole[i]["elements"].get<int64_t>());
  }
}

}  // namespace
}  // namespace concord
