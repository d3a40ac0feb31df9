// peft's adapter of tests/golden/lora with layouts: logits, loss and the gradient of each of its tensors, within the
// bounds of golden/README.md. Deliberate mistakes show what these tests can detect.
#include <gmock/gmock.h>

#include "core/models/parameter_plan.h"
#include "tests/parity/hf_golden.h"

namespace concord::tests {
namespace {

constexpr Bounds kLoraBounds{.logits = 5e-5};

Layout with_adapter(Layout base) {
  const ModelConfig config = read_model_config(golden("hf/qwen2-tiny"));
  base.args.adapter = adapter_for(config, read_adapter_config(golden("lora")));
  base.args.adapter_folder = golden("lora");
  return base;
}

void probe_adapter(const Layout& layout, const Check& check) {
  const TensorMap expected = read_tensors(golden("lora/expected.safetensors"));
  run_golden(golden("hf/qwen2-tiny"), with_adapter(layout), golden_batch(expected), check);
}

TEST(LoraParity, AnAdapterComputesWhatPeftComputesUnderEveryLayout) {
  const TensorMap expected = read_tensors(golden("lora/expected.safetensors"));
  Layout recomputed = layout("recomputed", 1, 1);
  recomputed.args.options.recompute.granularity = RecomputeGranularity::full;
  Layout norms = layout("norms recomputed, tp 2, sequence parallel", 2, 1, true);
  norms.args.options.recompute = {.granularity = RecomputeGranularity::selective,
                                  .modules = {RecomputeModule::layernorm, RecomputeModule::mlp_act}};
  Layout tiles = layout("MLPs in tiles, tp 2, sequence parallel", 2, 1, true);
  tiles.args.options.tiled_mlp = true;
  tiles.args.options.tiled_mlp_num_shards = 3;
  for (const Layout& each :
       {layout("one process", 1, 1), recomputed, norms, tiles, layout("tp 2", 2, 1),
        layout("tp 2, sequence parallel", 2, 1, true), layout("cp 2", 1, 2), layout("pp 2, vpp 2", 1, 1, false, 2, 2),
        layout("dp 2", 1, 1, false, 1, 1, 2), layout("tp 2, sequence parallel, pp 2", 2, 1, true, 2)}) {
    SCOPED_TRACE(each.name);
    std::printf("%s: ", each.name);
    std::fflush(stdout);
    probe_adapter(each, [&](const ProbeResult& result) { expect_parity(result, expected, kLoraBounds); });
  }
}

TEST(LoraParity, MistakesAreSeen) {
  const TensorMap expected = read_tensors(golden("lora/expected.safetensors"));
  const auto expect_seen = [&](Layout layout, const std::function<void(Parameter&)>& spoil) {
    SCOPED_TRACE(layout.name);
    layout.spoil_model = [&](VirtualModels& all) {
      for (Parameter* parameter : all.parameters()) spoil(*parameter);
    };
    probe_adapter(layout,
                  [&](const ProbeResult& result) { EXPECT_GT(share_of_bounds(result, expected, kLoraBounds), 10); });
  };
  expect_seen(layout("a gradient that is partial, taken as whole", 2, 1, true),
              [](Parameter& parameter) { parameter.partial_over_tp = false; });
  expect_seen(layout("the As of q and k exchanged", 1, 1), [](Parameter& parameter) {
    if (!parameter.spec.name.ends_with("layers.1.self_attn.qkv_proj.lora_A.weight")) return;
    const at::Tensor value = parameter.value.detach(), q = value.narrow(0, 0, 4).clone();
    value.narrow(0, 0, 4).copy_(value.narrow(0, 4, 4));
    value.narrow(0, 4, 4).copy_(q);
  });
}

TEST(LoraParity, FrozenWeightsHaveNoGradientAndNoPlaceInDataParallelism) {
  const TensorMap expected = read_tensors(golden("lora/expected.safetensors"));
  Layout one = layout("one process", 1, 1);
  one.spoil_model = [](VirtualModels& all) {
    int64_t trained = 0, frozen = 0;
    for (const Parameter* parameter : all.parameters()) {
      EXPECT_EQ(parameter->frozen, !parameter->adapter) << parameter->spec.name;
      EXPECT_EQ(parameter->value.requires_grad(), parameter->adapter) << parameter->spec.name;
      (parameter->frozen ? frozen : trained) += parameter->value.numel();
    }
    EXPECT_EQ(trained, adapter_parameters(all.config(), *all.args().adapter));
    EXPECT_GT(frozen, trained);
  };
  probe_adapter(one, [&](const ProbeResult& result) {
    for (const auto& [name, tensor] : result) EXPECT_TRUE(!name.starts_with("grad.") || expected.contains(name));
  });
}

}  // namespace
}  // namespace concord::tests
