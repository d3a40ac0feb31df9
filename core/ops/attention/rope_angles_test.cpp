#include "core/ops/attention/rope_angles.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "core/base/config_error.h"
#include "core/ops/testing/samples.h"

namespace concord::ops::testing::of_rope_angles {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

std::optional<double> number(const json& settings, const char* name) {
  return settings.contains(name) ? std::optional(settings[name].get<double>()) : std::nullopt;
}

RopeSettings settings_of(const json& from) {
  RopeSettings settings;
  settings.rope_type = parse_enum<RopeType>("rope_type", from.at("rope_type").get<std::string>());
  settings.rope_theta = from.at("rope_theta");
  settings.head_dim = from.at("head_dim");
  settings.partial_rotary_factor = from.value("partial_rotary_factor", 1.0);
  settings.max_position_embeddings = from.at("max_position_embeddings");
  settings.original_max_position_embeddings = from.value("original_max_position_embeddings", 0);
  settings.factor = number(from, "factor");
  settings.low_freq_factor = number(from, "low_freq_factor");
  settings.high_freq_factor = number(from, "high_freq_factor");
  settings.attention_factor = number(from, "attention_factor");
  settings.mscale = number(from, "mscale");
  settings.mscale_all_dim = number(from, "mscale_all_dim");
  settings.beta_fast = from.value("beta_fast", 32.0);
  settings.beta_slow = from.value("beta_slow", 1.0);
  settings.truncate = from.value("truncate", true);
  return settings;
}

at::Tensor tensor_of(const json& numbers) { return at::tensor(numbers.get<std::vector<double>>(), at::kDouble); }

// The same operations in the same order give the same bits if pow rounds as it did for the golden data, which the first
// case, plain frequencies, tests. Otherwise two ulps are allowed.
constexpr double kUnits = 2.4e-7;

TEST(RopeAngles, OfEveryKindAreThoseOfTransformers) {
  std::ifstream file(CONCORD_GOLDEN "/rope/rope.json");
  const json cases = json::parse(file);
  EXPECT_EQ(cases.size(), 17u);
  std::optional<double> allowed_off;
  for (const json& each : cases) {
    SCOPED_TRACE(each["settings"].dump());
    const RopeFrequencies got = rope_frequencies(settings_of(each["settings"]), each["length"]);
    const at::Tensor expected = tensor_of(each["inv_freq"]);
    ASSERT_EQ(got.inverse.sizes(), expected.sizes());
    const double off = largest(got.inverse.to(at::kDouble) / expected - 1);
    if (!allowed_off) allowed_off = off == 0 ? 0 : kUnits;
    EXPECT_LE(off, *allowed_off);
    EXPECT_DOUBLE_EQ(got.attention_factor, each["attention_factor"].get<double>());
    const auto positions = each["positions"].get<std::vector<int64_t>>();
    const RopeAngles angles = rope_angles(got, at::tensor(positions, at::kLong));
    for (size_t i = 0; i < positions.size(); ++i) {
      const double allowed = 2 * kUnits * (1 + static_cast<double>(positions[i]));
      const auto row = static_cast<int64_t>(i);
      EXPECT_LE(largest(angles.cos[row].to(at::kDouble) - tensor_of(each["cos"][i])), allowed);
      EXPECT_LE(largest(angles.sin[row].to(at::kDouble) - tensor_of(each["sin"][i])), allowed);
    }
  }
}

TEST(RopeAngles, OnThreeAxesAreThoseOfTransformers) {
  std::ifstream file(CONCORD_GOLDEN "/vision/vision.json");
  const json cases = json::parse(file).at("angles");
  EXPECT_EQ(cases.size(), 3u);
  for (const json& each : cases) {
    SCOPED_TRACE(each["layout"].dump() + each["section"].dump());
    const RopeSettings settings{.rope_theta = each["theta"],
                                .head_dim = each["head_dim"],
                                .mrope_section = each["section"].get<std::vector<int64_t>>(),
                                .mrope_interleaved = each["layout"] == "interleaved"};
    std::vector<at::Tensor> axes;
    for (const json& axis : each["positions"]) {
      axes.push_back(at::tensor(axis.get<std::vector<int64_t>>(), at::kLong));
    }
    const RopeAngles angles = mrope_angles(rope_frequencies(settings), settings, at::stack(axes));
    ASSERT_EQ(angles.cos.size(0), static_cast<int64_t>(each["cos"].size()));
    for (int64_t i = 0; i < angles.cos.size(0); ++i) {
      const auto row = static_cast<size_t>(i);
      EXPECT_LE(largest(angles.cos[i].to(at::kDouble) - tensor_of(each["cos"][row])), 20 * kUnits);
      EXPECT_LE(largest(angles.sin[i].to(at::kDouble) - tensor_of(each["sin"][row])), 20 * kUnits);
    }
  }
  const RopeSettings wrong{.head_dim = 16, .mrope_section = {2, 3, 2}};
  const at::Tensor positions = at::zeros({3, 4}, at::kLong);
  EXPECT_THAT([&] { mrope_angles(rope_frequencies(wrong), wrong, positions); },
              ThrowsMessage<ConfigError>(HasSubstr("mrope_section [2, 3, 2] must have three numbers")));
}

TEST(RopeAngles, RefuseSettingsThatCannotBeMeant) {
  const auto with = [](RopeType type, int64_t dim) {
    RopeSettings settings;
    settings.rope_type = type;
    settings.head_dim = dim;
    return settings;
  };
  EXPECT_THAT([&] { rope_frequencies(with(RopeType::linear, 64)); },
              ThrowsMessage<ConfigError>(HasSubstr("rope_type linear needs factor")));
  EXPECT_THAT([&] { rope_frequencies(with(RopeType::plain, 7)); }, ThrowsMessage<ConfigError>(HasSubstr("head_dim 7")));
  RopeSettings llama = with(RopeType::llama3, 64);
  llama.factor = llama.low_freq_factor = llama.high_freq_factor = 4;
  llama.original_max_position_embeddings = 8192;
  EXPECT_THAT([&] { rope_frequencies(llama); },
              ThrowsMessage<ConfigError>(HasSubstr("high_freq_factor 4 must be greater")));
}

}  // namespace
}  // namespace concord::ops::testing::of_rope_angles
