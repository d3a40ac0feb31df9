// Models of transformers beside ours: logits, loss and every gradient, under one process and under layouts, within the
// bounds of golden/README.md. What these can see is shown by mistakes made on purpose.
#include <gmock/gmock.h>

#include "tests/parity/hf_golden.h"

namespace concord::tests {
namespace {

struct Case {
  std::string model;
  std::vector<Layout> layouts;
};

void expect_golden(const std::string& model, const std::vector<Layout>& layouts) {
  const TensorMap expected = read_tensors((golden("hf") / model / "expected.safetensors").string());
  for (const Layout& each : layouts) {
    SCOPED_TRACE(model + ", " + each.name);
    std::printf("%s, %s: ", model.c_str(), each.name);
    std::fflush(stdout);
    run_golden(golden("hf") / model, each, golden_batch(expected),
               [&](const ProbeResult& result) { expect_parity(result, expected); });
  }
}

const std::vector<std::string>& models() {
  static const std::vector<std::string> names{"qwen2-tiny", "qwen2-tied", "llama-tiny", "qwen3-tiny", "mistral-tiny"};
  return names;
}

Layout with_config(Layout base, const char* config) {
  base.config = config;
  return base;
}

Layout with_recompute(Layout base, RecomputeArgs recompute) {
  base.args.recompute = std::move(recompute);
  return base;
}

Layout gathering(Layout base) {
  base.args.cp_comm_type = "all_gather";
  return base;
}

TEST(HfParity, OneProcessWithEitherSpellingOfTheConfig) {
  const Layout one = layout("one process", 1, 1);
  for (const std::string& model : models()) {
    expect_golden(model, {one, with_config(layout("config of transformers 4", 1, 1), "config_v4.json")});
  }
}

TEST(HfParity, TensorParallelism) {
  for (const std::string& model : models()) {
    expect_golden(model, {layout("tp 2", 2, 1), layout("tp 2, sequence parallel", 2, 1, true)});
  }
  expect_golden("qwen2-tied", {layout("tp 4", 4, 1), layout("tp 4, sequence parallel", 4, 1, true)});
}

TEST(HfParity, ContextParallelism) {
  for (const std::string& model : models()) {
    expect_golden(model, {layout("cp 2", 1, 2), gathering(layout("cp 2, gathered", 1, 2))});
  }
  expect_golden("llama-tiny", {layout("cp 4", 1, 4)});
}

TEST(HfParity, TensorAndContextParallelismTogether) {
  for (const std::string& model : models()) {
    expect_golden(model, {layout("tp 2, cp 2", 2, 2), layout("tp 2, cp 2, sequence parallel", 2, 2, true)});
  }
}

TEST(HfParity, PipelinesAndDataParallelism) {
  expect_golden("qwen2-tiny",
                {layout("pp 2", 1, 1, false, 2), layout("pp 4", 1, 1, false, 4),
                 layout("pp 2, two chunks", 1, 1, false, 2, 2), layout("tp 2, pp 2, sequence parallel", 2, 1, true, 2),
                 layout("dp 2", 1, 1, false, 1, 1, 2), layout("dp 2, pp 2", 1, 1, false, 2, 1, 2)});
  expect_golden("qwen2-tied", {layout("tied, pp 2", 1, 1, false, 2), layout("tied, tp 2, pp 2", 2, 1, false, 2)});
}

TEST(HfParity, BothEndsOfATiedModelOnOneRank) {
  Layout both = layout("tied, pp 2 folded to a v", 1, 1, false, 2, 2);
  both.args.placement = Placement::v;
  both.args.stages = parse_layer_layout("E|t|t|L", 2, 2);
  expect_golden("qwen2-tied", {both});
}

TEST(HfParity, Recomputation) {
  const RecomputeArgs full{.granularity = "full", .method = "uniform", .num_layers = 1};
  const RecomputeArgs pairs{.granularity = "full", .method = "uniform", .num_layers = 2};
  const RecomputeArgs first{.granularity = "full", .method = "block", .num_layers = 1};
  const RecomputeArgs parts{.granularity = "selective", .modules = {"core_attn", "layernorm"}};
  const RecomputeArgs mlp{.granularity = "selective", .modules = {"mlp"}};
  for (const std::string& model : models()) {
    expect_golden(model, {with_recompute(layout("full", 1, 1), full),
                          with_recompute(layout("selective, tp 2, cp 2, sequence parallel", 2, 2, true), parts)});
  }
  expect_golden("qwen2-tiny",
                {with_recompute(layout("units of two, tp 2", 2, 1), pairs),
                 with_recompute(layout("the first, cp 2", 1, 2), first), with_recompute(layout("mlp, tp 2", 2, 1), mlp),
                 with_recompute(layout("full, tp 2, cp 2, sequence parallel", 2, 2, true), full)});
}

TEST(HfParity, AFolderOfShards) {
  const TensorMap expected = read_tensors((golden("hf/qwen2-tiny") / "expected.safetensors").string());
  run_golden(golden("hf/qwen2-tiny-sharded"), layout("tp 2", 2, 1), golden_batch(expected),
             [&](const ProbeResult& result) { expect_parity(result, expected); });
}

}  // namespace
}  // namespace concord::tests
