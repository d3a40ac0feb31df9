// Tiny models, and a job of one process, for tests.
#pragma once

#include <ATen/ops/arange.h>
#include <gtest/gtest.h>

#include <string>

#include "core/base/config_error.h"
#include "core/mesh/initialize.h"
#include "core/models/auto_model.h"
#include "core/models/model_chunk.h"
#include "core/models/parameter_plan.h"
#include "core/models/token_slices.h"

namespace concord::testing_models {

inline ModelConfig small(const std::string& type, const std::string& more = "") {
  return parse_model_config(R"({"model_type": ")" + type + R"(", "vocab_size": 40, "hidden_size": 16,
      "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
      "head_dim": 4, "initializer_range": 0.2)" +
                                more + "}",
                            "config.json");
}

inline const StageLayers kWhole{.embedding = true, .first_layer = 0, .layers = 2, .mtp_layers = 0, .loss = true};

template <class Call>
std::string refusal(Call call) {
  try {
    call();
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "accepted";
}

inline constexpr const char* kExperts =
    R"(, "num_experts": 3, "num_experts_per_tok": 2, "moe_intermediate_size": 6,
      "shared_expert_intermediate_size": 10)";

class Chunk : public ::testing::Test {
 protected:
  ParallelContext& context_ = initialize({});
  ~Chunk() override { finalize(); }

  static MicroBatch batch(int64_t rows = 2, int64_t tokens = 8) {
    const at::Tensor ids = at::arange(rows * tokens, at::kLong).mul(7).remainder(40).view({rows, tokens});
    return {ids, labels_that_follow(ids)};
  }
};

}  // namespace concord::testing_models
