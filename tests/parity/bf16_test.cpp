// Models in bf16 compared with their results in fp32, which hf_test.cpp compares with transformers.
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <gmock/gmock.h>

#include <cmath>

#include "core/models/token_slices.h"
#include "tests/parity/hf_golden.h"

namespace concord::tests {
namespace {

// A golden model. If it has experts, token n of the batch is |square| n^2 + |linear| n, modulo 256: no token has a
// second and a third expert whose router logits are within 0.1 of each other, the rounding error of bf16, and every
// expert has seven tokens. So both precisions choose the same experts, and differ only by rounding.
struct Bfloat16Model {
  const char* name;
  int layers;
  int64_t square = 0, linear = 0;
};

MicroBatch batch_of(const Bfloat16Model& model, const TensorMap& golden_result) {
  if (model.square == 0) return golden_batch(golden_result);
  const at::Tensor n = at::arange(64, at::kLong);
  const at::Tensor ids = (n * n * model.square + n * model.linear).remainder(256).view({2, 32});
  return {ids, labels_that_follow(ids)};
}

// A rounding to bf16 changes a number by at most u = 2^-9 of it, and by u / sqrt(3) on average (RMS). A layer has
// about 40 consecutive roundings: seven products have rounded weights and results, then there are norms, rope,
// scores, probabilities, the activation and additions. So logits are off by u / sqrt(3) * sqrt(40 layers): 1.0 %
// with two layers, 1.4 % with four (transformers: 0.9 to 1.4 %). Gradients undergo about 120 per layer, forward and
// twice backward: 1.7 and 2.5 % (transformers: 1.2 to 2.2 %; norms of q and k, which have few elements, up to 4.2
// %). Twice the average is allowed. For the loss it is the average itself, times the logits' RMS of 0.8: errors of
// tokens that share all roundings would not cancel.
Bounds bf16_bounds(int layers) {
  const double rounding = std::exp2(-9) / std::sqrt(3) * std::sqrt(40 * layers);
  return {.logits = 0.08,  // 8 times the RMS of the error, for 16,384 logits
          .loss = rounding * 0.8,
          .gradient = 0.05,
          .logits_norm = 2 * rounding,
          .gradients_norm = 2 * std::sqrt(3) * rounding};
}

TensorMap fp32_result(const Bfloat16Model& model, const TensorMap& golden_result) {
  if (model.square == 0) return golden_result;
  const TemporaryFolder folder;
  const std::string file = folder.path() + "/fp32.safetensors";
  run_golden(golden("hf") / model.name, layout("fp32", 1, 1), batch_of(model, golden_result),
             [&](const ProbeResult& result) { write_tensors(file, result); });
  return read_tensors(file);
}

TEST(HfParity, Bfloat16StaysWithinItsRounding) {
  for (const Bfloat16Model& model : std::initializer_list<Bfloat16Model>{{"qwen2-tiny", 4},
                                                                         {"qwen2-tied", 2},
                                                                         {"llama-tiny", 2},
                                                                         {"qwen3-tiny", 2},
                                                                         {"mistral-tiny", 2},
                                                                         {"qwen3-moe-tiny", 2, 39, 211},
                                                                         {"qwen2-moe-tiny", 2, 8, 131},
                                                                         {"mixtral-tiny", 2, 43, 213}}) {
    const TensorMap golden_result = read_tensors((golden("hf") / model.name / "expected.safetensors").string());
    const TensorMap expected = fp32_result(model, golden_result);
    for (Layout each : {layout("bf16", 1, 1), layout("bf16, tp 2, cp 2, sequence parallel", 2, 2, true)}) {
      SCOPED_TRACE(std::string(model.name) + ", " + each.name);
      each.args.dtype = at::kBFloat16;
      run_golden(golden("hf") / model.name, each, batch_of(model, golden_result),
                 [&](const ProbeResult& result) { expect_parity(result, expected, bf16_bounds(model.layers)); });
    }
  }
}

// An error of a tenth in one of eight experts changes logits by less than 0.4 and gradients by less than 21 %.
TEST(HfParity, Bfloat16ShowsAnExpertThatIsATenthTooLarge) {
  const Bfloat16Model model{"mixtral-tiny", 2, 43, 213};
  const TensorMap expected = fp32_result(model, {});
  Layout wrong = layout("bf16, an expert too large", 1, 1);
  wrong.args.dtype = at::kBFloat16;
  wrong.spoil_model = [](VirtualModels& all) {
    for (Parameter* parameter : all.parameters()) {
      if (parameter->spec.name.find("layers.1.") == std::string::npos ||
          parameter->spec.name.find("down_proj") == std::string::npos) {
        continue;
      }
      parameter->value.detach()[0].mul_(1.1);
    }
  };
  run_golden(golden("hf") / model.name, wrong, batch_of(model, {}), [&](const ProbeResult& result) {
    EXPECT_GT(share_of_bounds(result, expected, bf16_bounds(model.layers)), 1);
    EXPECT_LT(share_of_bounds(result, expected,
                              {.logits = 0.4, .loss = 0.02, .gradient = 0.21, .logits_norm = 1, .gradients_norm = 1}),
              1);
  });
}

}  // namespace
}  // namespace concord::tests
