// MLPs in tiles of the sequence, compared with whole ones.
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>

#include "core/models/testing/small_models.h"

namespace concord {
namespace {

using namespace testing_models;
using ::testing::HasSubstr;

struct TiledRun {
  at::Tensor losses;
  std::vector<at::Tensor> grads;
  std::vector<int64_t> added, uses;  // additions to each gradient that has a sink
};

// In fp64, with sinks for matrices.
TiledRun run_tiles(const ModelConfig& config, int64_t tiles, const RecomputeArgs& recompute, const ModelArgs& given,
                   const MicroBatch& batch, ParallelContext& context) {
  ModelArgs args = given;
  args.dtype = at::kDouble;
  args.options.recompute = recompute;
  args.options.tiled_mlp = tiles > 1;
  args.options.tiled_mlp_num_shards = tiles;
  VirtualModels model = AutoModel::from_config(config, args, context);
  const std::span<Parameter> parameters = model[0].parameters();
  TiledRun run;
  run.added.resize(parameters.size());
  for (size_t i = 0; i < parameters.size(); ++i) {
    Parameter& parameter = parameters[i];
    run.uses.push_back(parameter.uses);
    if (parameter.frozen || parameter.buffer || parameter.value.dim() != 2) continue;
    parameter.sink.main = at::zeros(parameter.value.sizes(), at::kDouble);
    parameter.sink.added = [&run, i] { ++run.added[i]; };
    if (parameter.adapter) {
      const at::NoGradGuard no_grad;  // B is 0 at first, and so would be the gradient of A
      parameter.value.copy_(at::arange(parameter.value.numel(), at::kDouble).view(parameter.value.sizes()).sin());
    }
  }
  run.losses = model[0].forward({}, batch).value;
  run.losses.sum().backward();
  run.losses = run.losses.detach();
  for (Parameter& parameter : parameters) {
    run.grads.push_back(parameter.sink.main.defined() ? parameter.sink.main : parameter.value.grad());
    parameter.sink = {};
  }
  return run;
}

// 8 positions in 2 to 11 tiles, some of them of different sizes or empty. In fp64, where sums in another order differ
// by some 1e-16 of sums of at most 48 terms near 1.
TEST_F(Chunk, AnMlpInTilesIsTheWholeOne) {
  ModelArgs lora;
  lora.adapter = AdapterConfig{};
  lora.adapter->target_modules = {"gate_proj", "up_proj", "down_proj"};
  const RecomputeArgs none, full{.granularity = RecomputeGranularity::full},
      norms{.granularity = RecomputeGranularity::selective, .modules = {RecomputeModule::layernorm}};
  const ModelConfig plain = small("qwen3"), biased = small("llama", R"(, "mlp_bias": true)");
  for (const auto& [config, args] : {std::pair(plain, ModelArgs{}),
                                     {biased, {}},
                                     {small("gemma2", R"(,
           "query_pre_attn_scalar": 4)"),
                                      {}},
                                     {plain, lora}}) {
    const TiledRun whole = run_tiles(config, 1, none, args, batch(), context_);
    for (const RecomputeArgs& recompute : {none, norms, full}) {
      for (const int64_t tiles : {2, 3, 11}) {
        const TiledRun tiled = run_tiles(config, tiles, recompute, args, batch(), context_);
        EXPECT_LE((tiled.losses - whole.losses).abs().max().item<double>(), 1e-13) << tiles;
        int64_t repeated = 0;
        for (size_t i = 0; i < whole.grads.size(); ++i) {
          EXPECT_EQ(tiled.added[i], tiled.uses[i] * (whole.added[i] > 0 ? 1 : 0)) << i;
          repeated += tiled.uses[i] == tiles * whole.uses[i];
          ASSERT_EQ(tiled.grads[i].defined(), whole.grads[i].defined()) << i;
          if (!whole.grads[i].defined()) continue;
          const double off = (tiled.grads[i] - whole.grads[i]).norm().item<double>();
          EXPECT_LE(off, 1e-12 * (1 + whole.grads[i].norm().item<double>())) << tiles << ", parameter " << i;
        }
        EXPECT_GE(repeated, 4) << "two layers of gate_up and down";
      }
    }
  }
  ModelArgs args;
  args.options.tiled_mlp = true;
  args.options.tiled_mlp_num_shards = 2;
  EXPECT_THAT(refusal([&] { AutoModel::from_config(small("qwen2_moe", kExperts), args, context_); }),
              HasSubstr("tiled_mlp with a model that has experts is not supported"));
}

}  // namespace
}  // namespace concord
