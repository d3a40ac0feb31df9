// Models compared with transformers: logits, loss and every gradient, in one process and with layouts, within the
// bounds of golden/README.md. Deliberate mistakes show what these tests can detect.
#include <ATen/ops/arange.h>
#include <fmt/core.h>
#include <gmock/gmock.h>

#include <algorithm>

#include "core/base/config_error.h"
#include "core/models/token_slices.h"
#include "core/pipeline/model_pipeline.h"
#include "core/safetensors/testing/files.h"
#include "core/schedule/step_schedule.h"
#include "tests/parity/hf_golden.h"

namespace concord::tests {
namespace {

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

const std::vector<std::string>& models_with_experts() {
  static const std::vector<std::string> names{"qwen3-moe-tiny", "qwen2-moe-tiny", "mixtral-tiny"};
  return names;
}

const std::vector<std::string>& models() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> all{"qwen2-tiny", "qwen2-tied", "llama-tiny", "qwen3-tiny", "mistral-tiny"};
    all.insert(all.end(), models_with_experts().begin(), models_with_experts().end());
    return all;
  }();
  return names;
}

Layout with_config(Layout base, const char* config) {
  base.config = config;
  return base;
}

Layout with_recompute(Layout base, RecomputeArgs recompute) {
  base.args.options.recompute = std::move(recompute);
  return base;
}

Layout gathering(Layout base) {
  base.args.options.cp_comm_type = CpCommType::all_gather;
  return base;
}

Layout exchanging(Layout base) {
  base.args.options.cp_comm_type = CpCommType::a2a;
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

// All models except qwen2-tied have two key heads. Saved files are byte for byte those that were read.
TEST(HfParity, FewerKeyHeadsThanTensorParallelRanks) {
  for (const std::string& model : models()) {
    expect_golden(model, {layout("tp 4", 4, 1), layout("tp 4, sequence parallel", 4, 1, true)});
    const TemporaryFolder folder;
    const Layout one = layout("one", 1, 1), four = layout("four", 4, 1);
    for (const Layout& each : {one, four}) {
      expect_job(each.world, each.sizes, [&](ParallelContext& context) {
        AutoModel::from_pretrained(golden("hf") / model, each.args, context)
            .save_pretrained(folder.path() + "/" + each.name);
      });
    }
    EXPECT_TRUE(safetensors::testing::read_file(folder.path() + "/four/model.safetensors") ==
                safetensors::testing::read_file(folder.path() + "/one/model.safetensors"));
  }
}

TEST(HfParity, ContextParallelism) {
  for (const std::string& model : models()) {
    expect_golden(model, {layout("cp 2", 1, 2), gathering(layout("cp 2, gathered", 1, 2)),
                          exchanging(layout("cp 2, tokens for heads", 1, 2)),
                          exchanging(layout("cp 4, tokens for heads", 1, 4))});
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
  for (const std::string& model : models_with_experts()) {
    expect_golden(model, {layout("pp 2", 1, 1, false, 2), layout("tp 2, pp 2, sequence parallel", 2, 1, true, 2),
                          layout("dp 2", 1, 1, false, 1, 1, 2)});
  }
  expect_golden("qwen2-tied", {layout("tied, pp 2", 1, 1, false, 2), layout("tied, tp 2, pp 2", 2, 1, false, 2)});
}

// Includes more expert-parallel ranks than data-parallel ones, and tokens of different ranks on one shard of an expert.
std::vector<Layout> expert_layouts() {
  return {with_experts(layout("dp 2, ep 2", 1, 1, false, 1, 1, 2), 2, 1),
          with_experts(layout("cp 2, ep 2", 1, 2), 2, 1),
          with_experts(layout("tp 2, ep 2", 2, 1, true), 2, 1),
          with_experts(layout("dp 2, etp 2", 1, 1, false, 1, 1, 2), 1, 2),
          with_experts(layout("tp 2, etp 1", 2, 1, true), 1, 1),
          with_experts(layout("cp 2, dp 2, ep 4", 1, 2, false, 1, 1, 2), 4, 1),
          with_experts(layout("tp 2, dp 2, ep 2, etp 2", 2, 1, false, 1, 1, 2), 2, 2),
          with_experts(layout("tp 2, cp 2, ep 2, etp 2, sequence parallel", 2, 2, true), 2, 2),
          with_experts(layout("tp 2, dp 2, ep 4", 2, 1, true, 1, 1, 2), 4, 1),
          with_experts(layout("pp 2, dp 2, ep 2", 1, 1, false, 2, 1, 2), 2, 1)};
}

TEST(HfParity, ExpertParallelism) {
  for (const std::string& model : models_with_experts()) expect_golden(model, expert_layouts());
}

// Overlaps the shared expert with the all-to-alls: results are bitwise identical.
TEST(HfParity, OverlapOfTheSharedExpertWithTheExchangeOfTokens) {
  const std::filesystem::path model = golden("hf/qwen2-moe-tiny");
  const TensorMap expected = read_tensors((model / "expected.safetensors").string());
  const TemporaryFolder folder;
  const auto recompute =
      RecomputeArgs{.granularity = RecomputeGranularity::full, .method = RecomputeMethod::uniform, .num_layers = 1};
  for (Layout each :
       {layout("one process", 1, 1), with_experts(layout("tp 2, ep 2", 2, 1, true), 2, 1),
        with_experts(layout("tp 2, cp 2, ep 2, etp 2, sequence parallel", 2, 2, true), 2, 2),
        with_recompute(with_experts(layout("full, dp 2, ep 2", 1, 1, false, 1, 1, 2), 2, 1), recompute)}) {
    SCOPED_TRACE(each.name);
    std::map<bool, TensorMap> results;
    for (const bool overlaps : {false, true}) {
      each.args.options.moe.shared_expert_overlap = overlaps;
      const std::string file = folder.path() + "/result.safetensors";
      run_golden(model, each, golden_batch(expected), [&](const ProbeResult& result) {
        expect_parity(result, expected);
        write_tensors(file, result);
      });
      results[overlaps] = read_tensors(file);
    }
    ASSERT_EQ(results[true].size(), results[false].size());
    for (const auto& [name, tensor] : results[false]) EXPECT_TRUE(results[true].at(name).equal(tensor)) << name;
  }
}

// Padding rows to the capacity of their experts changes only the order of sums.
TEST(HfParity, PaddingToTheCapacityOfExperts) {
  const std::filesystem::path model = golden("hf/qwen2-moe-tiny");
  const MicroBatch batch = golden_batch(read_tensors((model / "expected.safetensors").string()));
  const TemporaryFolder folder;
  const std::string file = folder.path() + "/plain.safetensors";
  for (Layout each :
       {layout("one process", 1, 1), layout("tp 2", 2, 1), with_experts(layout("tp 2, ep 2", 2, 1, true), 2, 1),
        with_experts(layout("dp 2, etp 2", 1, 1, false, 1, 1, 2), 1, 2),
        with_experts(layout("tp 2, dp 2, ep 2, etp 2", 2, 1, false, 1, 1, 2), 2, 2),
        with_experts(layout("tp 2, cp 2, ep 2, etp 2, sequence parallel", 2, 2, true), 2, 2),
        with_recompute(
            with_experts(layout("full, dp 2, ep 2", 1, 1, false, 1, 1, 2), 2, 1),
            {.granularity = RecomputeGranularity::full, .method = RecomputeMethod::uniform, .num_layers = 1})}) {
    SCOPED_TRACE(each.name);
    each.args.dtype = at::kDouble;
    each.args.options.moe.expert_capacity_factor = 0.75;
    run_golden(model, each, batch, [&](const ProbeResult& result) { write_tensors(file, result); });
    each.args.options.moe.pad_expert_input_to_capacity = true;
    run_golden(model, each, batch, [&](const ProbeResult& result) {
      expect_parity(result, read_tensors(file), {.logits = 1e-13, .loss = 1e-13, .gradient = 1e-13});
    });
  }
}

// Layouts differ only in the order of sums: by 1e-6 in fp32, and in fp64 by so little that any mistake is detected.
TEST(HfParity, ExpertParallelismIsTheSameAsOneProcessInDouble) {
  const std::filesystem::path model = golden("hf/qwen2-moe-tiny");
  const MicroBatch batch = golden_batch(read_tensors((model / "expected.safetensors").string()));
  const TemporaryFolder folder;
  const std::string file = folder.path() + "/one.safetensors";
  Layout one = layout("one process", 1, 1);
  one.args.dtype = at::kDouble;
  run_golden(model, one, batch, [&](const ProbeResult& result) { write_tensors(file, result); });
  const TensorMap expected = read_tensors(file);
  std::vector<Layout> layouts = expert_layouts();
  layouts.push_back(with_experts(layout("pp 2, two chunks, tp 2, ep 2", 2, 1, true, 2, 2), 2, 1));
  layouts.back().args.stages = parse_layer_layout("E|t|t|L", 2, 2);
  layouts.push_back(
      with_recompute(with_experts(layout("full, dp 2, ep 2", 1, 1, false, 1, 1, 2), 2, 1),
                     {.granularity = RecomputeGranularity::full, .method = RecomputeMethod::uniform, .num_layers = 1}));
  for (Layout& each : layouts) {
    SCOPED_TRACE(each.name);
    each.args.dtype = at::kDouble;
    run_golden(model, each, batch, [&](const ProbeResult& result) {
      expect_parity(result, expected, {.logits = 1e-13, .loss = 1e-13, .gradient = 1e-13});
    });
  }
}

TEST(HfParity, BothEndsOfATiedModelOnOneRank) {
  Layout both = layout("tied, pp 2 folded to a v", 1, 1, false, 2, 2);
  both.args.placement = Placement::v;
  both.args.stages = parse_layer_layout("E|t|t|L", 2, 2);
  expect_golden("qwen2-tied", {both});
}

TEST(HfParity, Recomputation) {
  const RecomputeArgs full{
      .granularity = RecomputeGranularity::full, .method = RecomputeMethod::uniform, .num_layers = 1};
  const RecomputeArgs pairs{
      .granularity = RecomputeGranularity::full, .method = RecomputeMethod::uniform, .num_layers = 2};
  const RecomputeArgs first{
      .granularity = RecomputeGranularity::full, .method = RecomputeMethod::block, .num_layers = 1};
  const RecomputeArgs parts{.granularity = RecomputeGranularity::selective,
                            .modules = {RecomputeModule::core_attn, RecomputeModule::layernorm,
                                        RecomputeModule::mlp_act, RecomputeModule::moe_act}};
  const RecomputeArgs mlp{.granularity = RecomputeGranularity::selective, .modules = {RecomputeModule::mlp}};
  for (const std::string& model : models()) {
    expect_golden(model, {with_recompute(layout("full", 1, 1), full),
                          with_recompute(layout("selective, tp 2, cp 2, sequence parallel", 2, 2, true), parts)});
  }
  expect_golden("qwen2-tiny",
                {with_recompute(layout("units of two, tp 2", 2, 1), pairs),
                 with_recompute(layout("the first, cp 2", 1, 2), first), with_recompute(layout("mlp, tp 2", 2, 1), mlp),
                 with_recompute(layout("full, tp 2, cp 2, sequence parallel", 2, 2, true), full)});
}

TEST(HfParity, MlpsInTilesComputeTheSame) {
  const auto tiled = [](Layout base) {
    base.args.options.tiled_mlp = true;
    base.args.options.tiled_mlp_num_shards = 3;
    return base;
  };
  for (const char* model : {"qwen2-tiny", "llama-tiny"}) {
    expect_golden(
        model, {tiled(layout("tiles", 1, 1)), tiled(layout("tiles, tp 2, cp 2, sequence parallel", 2, 2, true)),
                tiled(with_recompute(layout("tiles, full, tp 2", 2, 1), {.granularity = RecomputeGranularity::full}))});
  }
}

TEST(HfParity, AFolderOfShards) {
  const TensorMap expected = read_tensors((golden("hf/qwen2-tiny") / "expected.safetensors").string());
  run_golden(golden("hf/qwen2-tiny-sharded"), layout("tp 2", 2, 1), golden_batch(expected),
             [&](const ProbeResult& result) { expect_parity(result, expected); });
}

// Saves every tensor of the golden file, with the same bytes from every layout.
TEST(HfParity, ModelsWithExpertsAreSavedAsTheyWereRead) {
  for (const std::string& model : models_with_experts()) {
    const TemporaryFolder folder;
    std::string first;
    for (const Layout& each : {layout("one", 1, 1), layout("tp 2", 2, 1), layout("pp 2", 1, 1, false, 2),
                               layout("dp 2", 1, 1, false, 1, 1, 2), layout("tp 2, pp 2", 2, 1, false, 2),
                               with_experts(layout("tp 2, dp 2, ep 2, etp 2", 2, 1, false, 1, 1, 2), 2, 2),
                               with_experts(layout("dp 4, ep 2, etp 1", 1, 1, false, 1, 1, 4), 2, 1)}) {
      SCOPED_TRACE(model + ", " + each.name);
      const std::string saved = folder.path() + "/" + each.name;
      expect_job(each.world, each.sizes, [&](ParallelContext& context) {
        AutoModel::from_pretrained(golden("hf") / model, each.args, context).save_pretrained(saved);
      });
      const std::string file = saved + "/model.safetensors";
      if (first.empty()) {
        first = file;
        const TensorMap before = read_tensors((golden("hf") / model / "model.safetensors").string());
        const TensorMap after = read_tensors(file);
        ASSERT_EQ(after.size(), before.size());
        for (const auto& [name, tensor] : before) EXPECT_TRUE(after.at(name).equal(tensor)) << name;
      }
      EXPECT_TRUE(safetensors::testing::read_file(file) == safetensors::testing::read_file(first));
    }
  }
}

// Latent attention; sigmoid scores, groups of experts, a bias for the choice, a dense layer before those with experts.
constexpr const char* kGroupedExperts = R"({"model_type": "deepseek_v3", "vocab_size": 96, "hidden_size": 32,
  "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 4,
  "q_lora_rank": 12, "kv_lora_rank": 10, "qk_nope_head_dim": 6, "qk_rope_head_dim": 4, "v_head_dim": 8,
  "n_routed_experts": 8, "num_experts_per_tok": 3, "n_group": 4, "topk_group": 2, "moe_intermediate_size": 16,
  "routed_scaling_factor": 2.5, "first_k_dense_replace": 1, "initializer_range": 0.2})";

// Runs two rows per rank, and a joint update of the biases.
void forward_and_update(VirtualModels& models, ParallelContext& context, double rate) {
  const ProcessGroup& dp = context.group(GroupKind::dp);
  const at::Tensor ids = at::arange(64, at::kLong).mul(37).remainder(96).view({2, 32}).chunk(dp.size())[dp.rank()];
  const std::vector<MicroBatch> batches{{ids, labels_that_follow(ids)}};
  ModelPipeline pipeline(single_schedule(models.args().placement, static_cast<int>(context.layout().pp()), 1, true),
                         models, context);
  pipeline.walk(batches);
  for (ModelStage& stage : pipeline.stages()) stage.update_expert_bias(rate);
}

// In fp64, with biases that are bitwise identical to those of one process for every layout.
TEST(HfParity, LatentsAndExpertsWithABiasAreTheSameUnderEveryLayout) {
  const TemporaryFolder folder;
  std::string first;
  std::filesystem::path model;
  TensorMap expected;
  std::vector<Layout> layouts{layout("one process", 1, 1)};
  for (const Layout& each : expert_layouts()) layouts.push_back(each);
  layouts.push_back(with_recompute(layout("selective, tp 2, cp 2", 2, 2),
                                   {.granularity = RecomputeGranularity::selective,
                                    .modules = {RecomputeModule::core_attn, RecomputeModule::layernorm,
                                                RecomputeModule::mlp_act, RecomputeModule::moe_act}}));
  for (Layout& each : layouts) {
    SCOPED_TRACE(each.name);
    each.args.dtype = at::kDouble;
    const std::string saved = folder.path() + "/" + each.name;
    expect_job(each.world, each.sizes, [&](ParallelContext& context) {
      VirtualModels models =
          AutoModel::from_config(parse_model_config(kGroupedExperts, "config.json"), each.args, context);
      for (const double rate : {0.1, 0.05}) forward_and_update(models, context, rate);
      models.save_pretrained(saved);
    });
    const std::string bytes = safetensors::testing::read_file(saved + "/model.safetensors");
    const std::string result = folder.path() + "/result.safetensors";
    if (first.empty()) {
      first = bytes;
      model = saved;
      const at::Tensor bias =
          read_tensors(saved + "/model.safetensors").at("model.layers.1.mlp.gate.e_score_correction_bias");
      EXPECT_EQ(bias.scalar_type(), at::kFloat);
      EXPECT_GT(bias.max().item<float>(), 0);
      EXPECT_LT(bias.min().item<float>(), 0);
    }
    EXPECT_TRUE(bytes == first);
    const std::string again = saved + ", again";
    expect_job(each.world, each.sizes, [&](ParallelContext& context) {
      AutoModel::from_pretrained(model, each.args, context).save_pretrained(again);
    });
    EXPECT_TRUE(safetensors::testing::read_file(again + "/model.safetensors") == first);
    const at::Tensor ids = at::arange(64, at::kLong).mul(37).remainder(96).view({2, 32});
    run_golden(model, each, {ids, labels_that_follow(ids)}, [&](const ProbeResult& got) {
      if (expected.empty()) write_tensors(result, got);
      if (!expected.empty()) expect_parity(got, expected, {.logits = 1e-13, .loss = 1e-13, .gradient = 1e-13});
    });
    if (expected.empty()) expected = read_tensors(result);
  }
}

// Soft caps, two kinds of rope, windows on some layers, norms around 1 and after the branches, sinks, experts with
// biases.
constexpr const char* kWindowed[] = {
    R"({"model_type": "gemma2", "vocab_size": 96, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
  "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "query_pre_attn_scalar": 4, "sliding_window": 5,
  "attn_logit_softcapping": 0.5, "final_logit_softcapping": 3, "initializer_range": 0.2})",
    R"({"model_type": "gemma3_text", "vocab_size": 96, "hidden_size": 32, "intermediate_size": 48,
  "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "query_pre_attn_scalar": 4,
  "sliding_window": 5, "sliding_window_pattern": 2, "rope_theta": 700, "rope_local_base_freq": 20,
  "rope_scaling": {"rope_type": "linear", "factor": 2}, "initializer_range": 0.2})",
    R"({"model_type": "gpt_oss", "vocab_size": 96, "hidden_size": 32, "intermediate_size": 24, "num_hidden_layers": 2,
  "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "sliding_window": 5, "num_local_experts": 4,
  "num_experts_per_tok": 2, "swiglu_limit": 0.4, "initializer_range": 0.2})"};

// Saves a new model with varied norms and biases from one process.
void save_uneven(const char* config, const std::string& folder) {
  const Layout one = layout("one process", 1, 1);
  expect_job(1, one.sizes, [&](ParallelContext& context) {
    VirtualModels models = AutoModel::from_config(parse_model_config(config, "config.json"), one.args, context);
    for (Parameter* parameter : models.parameters()) {
      const std::string& name = parameter->spec.name;
      if (parameter->value.dim() > 1 && !name.ends_with("_bias")) continue;
      const at::Tensor waves = at::arange(parameter->value.numel(), at::kFloat).mul(2.3).sin_().mul_(0.3);
      parameter->value.detach().add_(waves.view_as(parameter->value).to(parameter->value.device()));
    }
    models.save_pretrained(folder);
  });
}

TEST(HfParity, WindowsCapsAndSinksAreTheSameUnderEveryLayoutAndSavedAsTheyWereRead) {
  const at::Tensor ids = at::arange(64, at::kLong).mul(37).remainder(96).view({2, 32});
  for (const char* config : kWindowed) {
    const TemporaryFolder folder;
    const std::string model = folder.path() + "/model", file = folder.path() + "/one.safetensors";
    save_uneven(config, model);
    int64_t elements = 0;
    for (const auto& [name, tensor] : read_tensors(model + "/model.safetensors")) elements += tensor.numel();
    const ModelConfig described = parse_model_config(config, "config.json");
    EXPECT_EQ(parameter_count(described), elements);
    TensorMap expected;
    std::vector<Layout> layouts{
        layout("one process", 1, 1),    layout("tp 2", 2, 1),
        layout("cp 2", 1, 2),           layout("tp 2, cp 2, sequence parallel", 2, 2, true),
        layout("pp 2", 1, 1, false, 2), layout("tp 4, two key heads, sequence parallel", 4, 1, true)};
    layouts.push_back(with_recompute(layout("selective", 1, 1), {.granularity = RecomputeGranularity::selective,
                                                                 .modules = {RecomputeModule::core_attn}}));
    if (described.experts.layers() > 0) {
      for (const Layout& each : expert_layouts()) layouts.push_back(each);
    }
    for (Layout& each : layouts) {
      SCOPED_TRACE(described.model_type + ", " + each.name);
      each.args.dtype = at::kDouble;
      run_golden(model, each, {ids, labels_that_follow(ids)}, [&](const ProbeResult& got) {
        if (expected.empty()) write_tensors(file, got);
        if (!expected.empty()) expect_parity(got, expected, {.logits = 1e-13, .loss = 1e-13, .gradient = 1e-13});
      });
      if (expected.empty()) expected = read_tensors(file);
      const std::string again = folder.path() + "/" + each.name;
      each.args.dtype = at::kFloat;
      expect_job(each.world, each.sizes, [&](ParallelContext& context) {
        AutoModel::from_pretrained(model, each.args, context).save_pretrained(again);
      });
      EXPECT_TRUE(safetensors::testing::read_file(again + "/model.safetensors") ==
                  safetensors::testing::read_file(model + "/model.safetensors"));
    }
  }
}

// Each special feature of these models matters for the comparison: without it, or slightly changed, the result differs.
TEST(HfParity, EachTraitOfModelsWithWindowsCapsAndSinksIsSeen) {
  const at::Tensor ids = at::arange(64, at::kLong).mul(37).remainder(96).view({2, 32});
  const MicroBatch batch{ids, labels_that_follow(ids)};
  using Change = std::function<void(ModelConfig&)>;
  const std::vector<std::vector<Change>> changes{
      {[](ModelConfig& c) { c.attn_logit_softcapping *= 1.01; }, [](ModelConfig& c) { c.attn_logit_softcapping = 0; },
       [](ModelConfig& c) { c.final_logit_softcapping *= 1.01; },
       [](ModelConfig& c) { c.embedding_multiplier *= 1.01; }, [](ModelConfig& c) { c.attention_multiplier *= 1.01; },
       [](ModelConfig& c) { c.norms_plus_one = false; },
       [](ModelConfig& c) { c.activation.kind = GatedActivation::Kind::silu; },
       [](ModelConfig& c) { std::swap(c.windows[0], c.windows[1]); }},
      {[](ModelConfig& c) { c.window_rope->rope_theta *= 1.01; }, [](ModelConfig& c) { c.window_rope.reset(); },
       [](ModelConfig& c) { c.rope.factor = 1; }, [](ModelConfig& c) { c.norms_plus_one = false; }},
      {[](ModelConfig& c) { c.activation.limit *= 1.01; }, [](ModelConfig& c) { c.activation.alpha *= 1.01; },
       [](ModelConfig& c) { c.experts.softmax_after_topk = false; }, [](ModelConfig& c) { c.windows[0] = 0; },
       [](ModelConfig& c) { c.rope.truncate = true; }}};
  for (size_t model = 0; model < changes.size(); ++model) {
    const TemporaryFolder folder;
    const std::string file = folder.path() + "/one.safetensors";
    save_uneven(kWindowed[model], folder.path() + "/model");
    Layout one = layout("one process", 1, 1);
    run_golden(folder.path() + "/model", one, batch, [&](const ProbeResult& got) { write_tensors(file, got); });
    const TensorMap expected = read_tensors(file);
    for (size_t i = 0; i < changes[model].size(); ++i) {
      SCOPED_TRACE(fmt::format("model {}, change {}", model, i));
      one.spoil_config = changes[model][i];
      run_golden(folder.path() + "/model", one, batch,
                 [&](const ProbeResult& got) { EXPECT_GT(share_of_bounds(got, expected), 10); });
    }
  }
  // The bias that ranks with shards of an expert add in parts.
  const TemporaryFolder folder;
  const std::string file = folder.path() + "/one.safetensors";
  save_uneven(kWindowed[2], folder.path() + "/model");
  run_golden(folder.path() + "/model", layout("one process", 1, 1), batch,
             [&](const ProbeResult& got) { write_tensors(file, got); });
  const TensorMap expected = read_tensors(file);
  Layout forgotten = layout("the sum over etp forgotten", 2, 1);
  forgotten.spoil_model = [](VirtualModels& all) {
    for (Parameter* parameter : all.parameters()) parameter->partial_over_tp = false;
  };
  run_golden(folder.path() + "/model", forgotten, batch,
             [&](const ProbeResult& got) { EXPECT_GT(share_of_bounds(got, expected), 10); });
}

TEST(HfParity, FreshExpertsHaveTheSameBitsUnderEveryLayout) {
  const TemporaryFolder folder;
  std::string first;
  for (const Layout& each : {layout("one", 1, 1), with_experts(layout("dp 2, ep 2", 1, 1, false, 1, 1, 2), 2, 1),
                             with_experts(layout("tp 2, dp 2, ep 2, etp 2", 2, 1, false, 1, 1, 2), 2, 2)}) {
    const std::string saved = folder.path() + "/" + each.name;
    expect_job(each.world, each.sizes, [&](ParallelContext& context) {
      AutoModel::from_config(read_model_config(golden("hf/qwen3-moe-tiny")), each.args, context).save_pretrained(saved);
    });
    const std::string bytes = safetensors::testing::read_file(saved + "/model.safetensors");
    if (first.empty()) first = bytes;
    EXPECT_TRUE(bytes == first) << each.name;
  }
}

TEST(HfParity, LayoutsThatExpertsDoNotAllowAreRefusedWithWhatToChange) {
  const auto refused = [](const char* model, const Layout& layout, const char* why) {
    expect_job(layout.world, layout.sizes, [&](ParallelContext& context) {
      try {
        AutoModel::from_config(read_model_config(golden("hf") / model), layout.args, context);
        ADD_FAILURE() << "accepted";
      } catch (const ConfigError& error) {
        EXPECT_THAT(error.what(), ::testing::HasSubstr(why));
      }
    });
  };
  refused("qwen3-moe-tiny", with_experts(layout("tp 2, ep 2", 2, 1), 2, 1), "set sequence_parallel to true");
  refused("qwen2-tiny", with_experts(layout("ep 2", 1, 1, false, 1, 1, 2), 2, 1),
          "no layer of this qwen2 model has experts");
  refused("mixtral-tiny", with_experts(layout("ep 3", 1, 1, false, 1, 1, 3), 3, 1),
          "num_experts 4 is not divisible by expert_model_parallel_size 3");
  Layout padded = layout("one process", 1, 1);
  padded.args.options.moe.pad_expert_input_to_capacity = true;
  refused("mixtral-tiny", padded, "set moe_expert_capacity_factor");
}

// ------------------------------------------------------------------------------------------- mistakes made on purpose

void expect_seen(const std::string& model, const Layout& spoiled) {
  SCOPED_TRACE(model + ", " + spoiled.name);
  const TensorMap expected = read_tensors((golden("hf") / model / "expected.safetensors").string());
  run_golden(golden("hf") / model, spoiled, golden_batch(expected),
             [&](const ProbeResult& result) { EXPECT_GT(share_of_bounds(result, expected), 10); });
}

Layout with_wrong_config(const char* name, std::function<void(ModelConfig&)> change) {
  Layout result = layout(name, 1, 1);
  result.spoil_config = std::move(change);
  return result;
}

TEST(HfParity, AWrongNumberInTheConfigIsSeen) {
  for (const std::string& model : models()) {
    expect_seen(model, with_wrong_config("rope_theta x 1.1", [](ModelConfig& c) { c.rope.rope_theta *= 1.1; }));
    expect_seen(model, with_wrong_config("rms_norm_eps x 10", [](ModelConfig& c) { c.rms_norm_eps *= 10; }));
    expect_seen(model,
                with_wrong_config("a window of 7", [](ModelConfig& c) { c.windows.assign(c.windows.size(), 7); }));
  }
  for (const std::string& model : models_with_experts()) {
    expect_seen(model, with_wrong_config("norm_topk_prob turned over",
                                         [](ModelConfig& c) { c.experts.norm_topk_prob = !c.experts.norm_topk_prob; }));
    expect_seen(model,
                with_wrong_config("one expert per token", [](ModelConfig& c) { c.experts.num_experts_per_tok = 1; }));
  }
  expect_seen("llama-tiny",
              with_wrong_config("no rope scaling", [](ModelConfig& c) { c.rope.rope_type = RopeType::plain; }));
}

// Treats gradients that are partial, from each rank's own tokens or heads, as if they were whole.
TEST(HfParity, AReductionThatIsForgottenIsSeen) {
  Layout forgotten = layout("partial_over_tp forgotten", 2, 1, true);
  forgotten.spoil_model = [](VirtualModels& all) {
    for (Parameter* parameter : all.parameters()) parameter->partial_over_tp = false;
  };
  for (const std::string& model : models()) expect_seen(model, forgotten);
  Layout heads = forgotten;
  heads.name = "partial_over_tp of q and k norms forgotten";
  heads.args.options.sequence_parallel = false;
  expect_seen("qwen3-tiny", heads);
}

TEST(HfParity, TwoHeadsExchangedAreSeen) {
  Layout swapped = layout("rows of q exchanged", 2, 1);
  swapped.spoil_model = [](VirtualModels& all) {
    for (Parameter* parameter : all.parameters()) {
      if (!parameter->spec.name.ends_with("layers.1.self_attn.qkv_proj.weight")) continue;
      const at::Tensor rows = parameter->value.detach().narrow(0, 0, 2);
      rows.copy_(rows.flip({0}).clone());
    }
  };
  for (const std::string& model : models()) expect_seen(model, swapped);
}

}  // namespace
}  // namespace concord::tests
