// Single-process tests; tests/parity compares layouts, and results with transformers.
#include "core/models/model_chunk.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <gmock/gmock.h>

#include <cmath>

#include "core/base/config_error.h"
#include "core/mesh/initialize.h"
#include "core/models/auto_model.h"
#include "core/models/layers/kv_cache.h"
#include "core/models/layers/loss_chunks.h"
#include "core/models/layers/router_record.h"
#include "core/models/testing/small_models.h"
#include "core/models/token_slices.h"
#include "core/models/token_statistics.h"
#include "core/parallel/testing/memory_meter.h"
#include "tests/temporary_folder.h"

namespace concord {
namespace {

using namespace testing_models;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST_F(Chunk, RefusesBatchesThatDoNotFit) {
  ModelChunk chunk(small("qwen2"), {}, kWhole, context_);
  const auto said = [&](const MicroBatch& bad) { return refusal([&] { chunk.forward({}, bad); }); };
  MicroBatch bad = batch();
  bad.labels = at::Tensor();
  EXPECT_THAT(said(bad), HasSubstr("labels are missing"));
  bad = batch();
  bad.input_ids = bad.input_ids.to(at::kFloat);
  EXPECT_THAT(said(bad), HasSubstr("input_ids is Float [2, 8]"));
  bad = batch();
  bad.position_ids = at::zeros({2, 7}, at::kLong);
  EXPECT_THAT(said(bad), HasSubstr("position_ids is Long [2, 7]"));
  bad = batch();
  bad.cu_seqlens = {0, 8};
  EXPECT_THAT(said(bad), HasSubstr("2 rows"));
  bad = batch(1);
  bad.cu_seqlens = {0, 5};
  EXPECT_THAT(said(bad), HasSubstr("8"));
  bad = batch();
  bad.input_ids = at::full({2, 8}, 40, at::kLong);
  EXPECT_THAT(said(bad), HasSubstr("40"));
  EXPECT_THAT(refusal([&] { chunk.forward(at::zeros({8, 2, 16}), batch()); }), HasSubstr("[8, 2, 16]"));
}

TEST_F(Chunk, CountsTheLabelsThatAreThere) {
  ModelChunk chunk(small("qwen2"), {}, kWhole, context_);
  EXPECT_EQ(chunk.counted_tokens(batch()), 14);  // the last of each row has none
  EXPECT_THAT(chunk.hidden_shape(batch()), ElementsAre(8, 2, 16));
}

TEST_F(Chunk, IsTheSameWhenItIsSavedAndLoaded) {
  const std::string some_sparse = std::string(kExperts) + R"(, "decoder_sparse_step": 2)";
  for (const ModelConfig& config : {small("qwen2"), small("qwen2_moe", some_sparse), small("mixtral", kExperts)}) {
    SCOPED_TRACE(config.model_type);
    const tests::TemporaryFolder folder;
    VirtualModels saved = AutoModel::from_config(config, {}, context_);
    saved.save_pretrained(folder.path() + "/model");
    VirtualModels loaded = AutoModel::from_pretrained(folder.path() + "/model", {}, context_);
    EXPECT_EQ(loaded.config().text, with_dtype(saved.config().text, "float32"));
    const std::vector<Parameter*> before = saved.parameters(), after = loaded.parameters();
    ASSERT_EQ(before.size(), after.size());
    for (size_t i = 0; i < before.size(); ++i) {
      EXPECT_TRUE(after[i]->value.equal(before[i]->value)) << after[i]->spec.name;
      EXPECT_TRUE(after[i]->value.requires_grad());
    }
  }
}

Parameter& named(ModelChunk& chunk, const std::string& name) {
  for (Parameter& parameter : chunk.parameters()) {
    if (parameter.spec.name == name) return parameter;
  }
  throw std::out_of_range(name);
}

// sigmoid(0) is 1/2: a gate of zeros halves what the shared expert gives.
TEST_F(Chunk, ASharedExpertMayHaveNoGate) {
  const ModelConfig gated = small("qwen2_moe", kExperts);
  ModelConfig plain = gated;
  plain.experts.shared_gate = false;
  VirtualModels with = AutoModel::from_config(gated, {.dtype = at::kDouble}, context_);
  VirtualModels without = AutoModel::from_config(plain, {.dtype = at::kDouble}, context_);
  const auto losses = [&](VirtualModels& model) { return model[0].forward({}, batch()).value; };
  EXPECT_GT((losses(with) - losses(without)).abs().max().item<double>(), 1e-3);
  for (int64_t layer = 0; layer < 2; ++layer) {
    const at::NoGradGuard no_grad;
    const std::string mlp = "model.layers." + std::to_string(layer) + ".mlp.";
    named(with[0], mlp + "shared_expert_gate.weight").value.zero_();
    named(without[0], mlp + "shared_expert.down_proj.weight").value.mul_(0.5);
  }
  EXPECT_LE((losses(with) - losses(without)).abs().max().item<double>(), 1e-12);
}

// Three experts for one token of a row that repeats it: two of them are chosen, by all tokens.
TEST_F(Chunk, ExpertsThatNoTokenChoseHaveAGradientOfZero) {
  VirtualModels model = AutoModel::from_config(small("qwen3_moe", kExperts), {}, context_);
  const at::Tensor ids = at::full({1, 8}, 7, at::kLong);
  model[0].forward({}, {ids, labels_that_follow(ids)}).value.sum().backward();
  for (int64_t layer = 0; layer < 2; ++layer) {
    const std::string name = "model.layers." + std::to_string(layer) + ".mlp.experts.gate_up_proj.weight";
    const at::Tensor sizes = named(model[0], name).value.grad().abs().sum(at::IntArrayRef{1, 2});
    EXPECT_EQ(sizes.eq(0).sum().item<int64_t>(), 1) << sizes;
  }
}

constexpr const char* kSigmoidExperts =
    R"(, "n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 6, "first_k_dense_replace": 0)";

TEST_F(Chunk, BiasesOfExpertsMoveTowardsAnEvenLoad) {
  VirtualModels model = AutoModel::from_config(small("glm4_moe", kSigmoidExperts), {}, context_);
  const auto run = [&] { return model[0].forward({}, batch()).router; };
  const std::vector records{run(), run()};  // two micro-batches
  model[0].update_expert_bias(records, 0.25);
  for (size_t layer = 0; layer < 2; ++layer) {
    const at::Tensor tokens = records[0]->layers[layer].chosen.sum(0) * 2;
    EXPECT_EQ(tokens.sum().item<float>(), 64);  // 2 choices of 16 tokens, twice
    const at::Tensor wanted = tokens.lt(16).to(at::kFloat).sub(tokens.gt(16).to(at::kFloat)).mul(0.25);
    EXPECT_GT(wanted.abs().sum().item<float>(), 0);
    const std::string name = "model.layers." + std::to_string(layer) + ".mlp.router.bias";
    EXPECT_TRUE(named(model[0], name).value.equal(wanted)) << name;
  }
}

TEST_F(Chunk, AnFp8HistoryWithoutStepsIsRefused) {
  const auto refused = [&](const Fp8Args& fp8) {
    ModelArgs args;
    args.options.fp8 = fp8;
    return refusal([&] { AutoModel::from_config(small("qwen3"), args, context_); });
  };
  EXPECT_THAT(refused({.format = Fp8Formats::hybrid, .amax_history_len = 0}), HasSubstr("must be >= 1"));
}

// The error of a mean loss whose values are rounded |roundings| times in a row, four standard deviations of it. A
// rounding is an independent relative error of at most |unit|, so its deviation is unit / sqrt(3). Norms keep the
// residual stream near 1, so the errors add up to unit sqrt(roundings / 3) of a logit's deviation, which is 0.2
// (initializer_range) sqrt(16) (hidden_size). The derivative of a loss by its logits has a norm of at most sqrt(2).
double loss_error(double unit, double roundings) {
  return 4 * std::sqrt(2.0) * 0.2 * std::sqrt(16.0) * std::sqrt(roundings / 3) * unit;
}

// Weights are rounded once for all tokens: four of each layer, the embedding, the output. Activations are rounded for
// each of the 14 tokens of the mean: two norms, four products, norms of heads, rotation, scores, probabilities,
// weighted values, activation, product with it, and two sums with the stream of each layer, then the last norm and the
// logits.
constexpr double kRoundings = 2 * 4 + 2 + (2 * 15 + 2) / 14.0;
// Terms of sums, which are rounded too if they are added in the same type: products of 16, 4, 8, 16, 16 and 24 terms of
// each layer, and the output's of 16.
constexpr double kTerms = (2 * 84 + 16) / 14.0;

TEST_F(Chunk, ComputesInEveryType) {
  const auto loss = [&](const ModelConfig& config, c10::ScalarType type) {
    VirtualModels model = AutoModel::from_config(config, {.dtype = type}, context_);
    const at::Tensor losses = model[0].forward({}, batch()).value;
    losses.sum().backward();
    for (const Parameter& parameter : model[0].parameters()) {
      EXPECT_EQ(parameter.value.scalar_type(), parameter.buffer ? at::kFloat : type);
      if (parameter.buffer) continue;
      EXPECT_GT(parameter.value.grad().abs().sum().item<double>(), 0) << parameter.spec.name;
    }
    return losses.sum().item<double>() / 14;
  };
  for (const ModelConfig& config : {small("qwen3"), small("qwen2_moe", kExperts), small("glm4_moe", kSigmoidExperts)}) {
    const double exact = loss(config, at::kDouble);
    EXPECT_NEAR(loss(config, at::kFloat), exact, loss_error(0x1p-24, kRoundings + kTerms));
    EXPECT_NEAR(loss(config, at::kHalf), exact, loss_error(0x1p-11, kRoundings));
    EXPECT_NEAR(loss(config, at::kBFloat16), exact, loss_error(0x1p-9, kRoundings));
  }
}

constexpr const char* kLogitsScaling = R"(, "logits_scaling": 8)";

struct LossRun {
  at::Tensor losses;
  std::vector<at::Tensor> grads;
  std::optional<TokenStatistics> statistics;
};

// With gradients that differ from token to token, as those of preferences do.
LossRun run_loss(const ModelConfig& config, int64_t chunk_size, const MicroBatch& batch, ParallelContext& context) {
  ModelArgs args{.dtype = at::kDouble};
  args.options.loss_chunk_size = chunk_size;
  args.options.label_smoothing_factor = 0.1;
  args.options.z_loss_coeff = 0.01;
  VirtualModels model = AutoModel::from_config(config, args, context);
  const PassOutput output = model[0].forward({}, batch, {.measure_tokens = true});
  LossRun run{output.value, {}, output.token_statistics};
  (run.losses * at::arange(run.losses.numel(), at::kDouble).view(run.losses.sizes())).sum().backward();
  for (const Parameter& parameter : model[0].parameters()) run.grads.push_back(parameter.value.grad());
  run.losses = run.losses.detach();
  return run;
}

// In fp64. A product of fewer rows may add in another order: some 1e-16 of sums of at most 40 terms near 1.
TEST_F(Chunk, LossesSomeTokensAtATimeAreThoseOfAll) {
  const std::string further =
      R"(, "num_key_value_heads": 4, "num_nextn_predict_layers": 1, "q_lora_rank": null, "kv_lora_rank": 8,
      "qk_rope_head_dim": 4, "qk_nope_head_dim": 4, "v_head_dim": 4, "first_k_dense_replace": 2,
      "n_group": 1, "topk_group": 1, "n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 6)";
  for (const ModelConfig& config :
       {small("qwen3"), small("gemma2", R"(, "final_logit_softcapping": 1.5, "query_pre_attn_scalar": 4)"),
        small("deepseek_v3", further), small("granite", kLogitsScaling)}) {
    const LossRun whole = run_loss(config, 0, batch(), context_);
    for (const int64_t size : {1, 6, 9, 16}) {  // 1, 3, 4 positions of 2 rows, and all
      const LossRun chunked = run_loss(config, size, batch(), context_);
      EXPECT_LE((chunked.losses - whole.losses).abs().max().item<double>(), 1e-13) << size;
      for (size_t i = 0; i < whole.grads.size(); ++i) {
        if (!whole.grads[i].defined()) continue;
        const double off = (chunked.grads[i] - whole.grads[i]).norm().item<double>();
        EXPECT_LE(off, 1e-12 * (1 + whole.grads[i].norm().item<double>())) << size << ", parameter " << i;
      }
      for (const auto field : {&TokenStatistics::counts, &TokenStatistics::entropy, &TokenStatistics::mean_logit,
                               &TokenStatistics::is_first}) {
        EXPECT_LE((*chunked.statistics.*field - *whole.statistics.*field).abs().max().item<double>(), 1e-6) << size;
      }
    }
  }
}

Parameter& parameter_of(VirtualModels& model, const std::string& name) {
  for (Parameter& parameter : model[0].parameters()) {
    if (parameter.spec.name == name) return parameter;
  }
  throw std::out_of_range(name);
}

struct SunkLoss {
  at::Tensor losses, input_grad, weight_grad;
  int64_t added = 0;
  bool has_grad_before_backward = false;
};

constexpr int64_t kFreeChunk = 32;  // free_loss_chunk

// A step in which the output layer's gradient goes to a sink, and that of each token's loss is |grad|.
SunkLoss run_to_sink(const ModelConfig& config, int64_t chunk_size, const ExpectedGrad& expected, double grad,
                     const MicroBatch& batch, ParallelContext& context) {
  ModelArgs args{.dtype = at::kDouble};
  args.options.loss_chunk_size = chunk_size;
  args.options.free_loss_chunk = kFreeChunk;
  VirtualModels model = AutoModel::from_config(config, args, context);
  Parameter& output = parameter_of(model, "lm_head.weight");
  SunkLoss run;
  output.sink.main = at::zeros_like(output.value);
  output.sink.added = [&run] { ++run.added; };
  run.losses = model[0].forward({}, batch, {.loss_grad = expected}).value;
  run.has_grad_before_backward = output.sink.main.abs().sum().item<double>() > 0;
  (run.losses * grad).sum().backward();
  run.losses = run.losses.detach();
  run.input_grad = parameter_of(model, "model.embed_tokens.weight").value.grad();
  run.weight_grad = output.sink.main;
  return run;
}

// Bounds as above. Losses and gradients computed once, in forward, equal those computed twice.
TEST_F(Chunk, LossesWhoseGradientIsCertainAreComputedOnce) {
  const ModelConfig plain = small("qwen3");
  const ModelConfig capped = small("gemma2", R"(, "final_logit_softcapping": 1.5, "query_pre_attn_scalar": 4,
      "tie_word_embeddings": false)");
  for (const ModelConfig& config : {plain, capped, small("granite", kLogitsScaling)}) {
    const SunkLoss whole = run_to_sink(config, 0, {}, 0.5, batch(), context_);
    for (const bool certain : {true, false}) {
      const SunkLoss chunked = run_to_sink(config, 6, {0.5, certain}, 0.5, batch(), context_);
      EXPECT_EQ(chunked.has_grad_before_backward, certain && config.final_logit_softcapping == 0);
      EXPECT_EQ(chunked.added, 1) << "whatever the number of chunks";
      EXPECT_LE((chunked.losses - whole.losses).abs().max().item<double>(), 1e-13);
      EXPECT_LE((chunked.input_grad - whole.input_grad).abs().max().item<double>(), 1e-12);
      EXPECT_LE((chunked.weight_grad - whole.weight_grad).abs().max().item<double>(), 1e-12);
    }
  }
}

// The losses of more than free_loss_chunk tokens are computed in chunks if no logits have to be made twice for that.
TEST_F(Chunk, LossesOfManyTokensAreComputedInChunksWhereThatIsFree) {
  const auto batch_of = [](int64_t rows) {
    const at::Tensor ids = at::arange(rows * 8, at::kLong).remainder_(37).view({rows, 8});
    return MicroBatch{ids, labels_that_follow(ids)};
  };
  const MicroBatch many = batch_of(kFreeChunk / 8 + 1), fewer = batch_of(kFreeChunk / 8);
  const ExpectedGrad certain{1, true};
  for (const ModelConfig& config : {small("qwen3"), small("granite", kLogitsScaling)}) {
    SCOPED_TRACE(config.model_type);
    const SunkLoss whole = run_to_sink(config, 0, certain, 1, many, context_);
    const SunkLoss chunked = run_to_sink(config, -1, certain, 1, many, context_);
    EXPECT_FALSE(whole.has_grad_before_backward);
    EXPECT_TRUE(chunked.has_grad_before_backward);
    EXPECT_FALSE(run_to_sink(config, -1, certain, 1, fewer, context_).has_grad_before_backward);
    EXPECT_LE((chunked.losses - whole.losses).abs().max().item<double>(), 1e-13);
    const double norm = whole.weight_grad.norm().item<double>();
    EXPECT_LE((chunked.weight_grad - whole.weight_grad).norm().item<double>(), 1e-12 * norm);
    EXPECT_LE((chunked.input_grad - whole.input_grad).norm().item<double>(),
              1e-12 * whole.input_grad.norm().item<double>());
  }
}

// A weight of 0 is a gradient that is certain, too.
TEST_F(Chunk, LossesThatDoNotCountHaveNoGradientInChunks) {
  const SunkLoss chunked = run_to_sink(small("qwen3"), 6, {0, true}, 0, batch(), context_);
  EXPECT_EQ(chunked.weight_grad.abs().sum().item<double>(), 0);
  EXPECT_EQ(chunked.input_grad.abs().sum().item<double>(), 0);
}

// Each chunk has positions of both ranks that share the sequence; joined() restores the order of the sequence.
TEST(LossChunks, KeepTheOrderOfTheSequence) {
  const at::Tensor labels_sb = at::arange(20, at::kLong).view({10, 2});
  const LossChunks chunks(at::zeros({5, 2, 3}), labels_sb, 8, 2);  // 8 tokens: 2 positions of 2 ranks with 2 rows
  std::vector<at::Tensor> labels_bs;
  for (const LossChunk& chunk : chunks.list()) {
    EXPECT_EQ(chunk.labels_sb.size(0), 2 * chunk.normed_pbh.size(0));
    labels_bs.push_back(chunk.labels_sb.t().contiguous());
  }
  ASSERT_EQ(labels_bs.size(), 3u);
  EXPECT_TRUE(labels_bs[1].equal(at::tensor({4, 6, 14, 16, 5, 7, 15, 17}, at::kLong).view({2, 4}))) << labels_bs[1];
  EXPECT_TRUE(chunks.joined(labels_bs).equal(labels_sb.t()));
}

// The logits of 64 tokens and 4,096 columns are 2 MiB in fp64; everything else in this model is small compared with
// them.
TEST_F(Chunk, LogitsOfAllTokensNeverExistWithChunks) {
  const auto most = [&](int64_t chunk_size, const ExpectedGrad& expected = {}) {
    ModelArgs args{.dtype = at::kDouble};
    args.options.loss_chunk_size = chunk_size;
    ModelConfig config = small("qwen3");
    config.vocab_size = 4096;
    VirtualModels model = AutoModel::from_config(config, args, context_);
    const at::Tensor ids = at::arange(64, at::kLong).view({1, 64});
    if (expected.is_certain)
      parameter_of(model, "lm_head.weight").sink.main = at::zeros({4096, config.hidden_size}, at::kDouble);
    const auto meter = std::make_shared<MemoryMeter>();
    const c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, meter);
    model[0].forward({}, {ids, labels_that_follow(ids)}, {.loss_grad = expected}).value.sum().backward();
    return meter->most;
  };
  const int64_t logits = 64 * 4096 * 8;
  EXPECT_LE(most(8) + logits / 2, most(0));
  EXPECT_LE(most(8, {1, true}) + logits / 2, most(0));
}

TEST_F(Chunk, PositionsThatAreGivenCount) {
  VirtualModels model = AutoModel::from_config(small("llama"), {}, context_);
  const at::Tensor counted = model[0].forward({}, batch()).value;
  MicroBatch given = batch();
  given.position_ids = at::arange(8, at::kLong).expand({2, 8}).contiguous();
  EXPECT_TRUE(at::equal(model[0].forward({}, given).value, counted));
  given.position_ids.select(1, 7).fill_(100);
  given.position_ids.select(1, 3).fill_(50);
  EXPECT_GT(model[0].forward({}, given).value.sub(counted).abs().max().item<double>(), 1e-3);
}

TEST_F(Chunk, AnObserverSeesThePartsInTheirOrder) {
  VirtualModels model = AutoModel::from_config(small("mistral"), {}, context_);
  std::vector<std::string> parts;
  const Observer observer = [&](const std::string& part, const at::Tensor&) { parts.push_back(part); };
  model[0].forward({}, batch(), {.observer = observer});
  EXPECT_THAT(parts, ElementsAre("embedding", "layers.0", "layers.1", "norm", "logits"));
}

// The adapter's B begins as zeros; with ones it changes the losses.
TEST_F(Chunk, APassWithoutTheAdapterIsThatOfTheBaseModel) {
  AdapterConfig adapter;
  adapter.target_modules = {"q_proj"};
  adapter = adapter_for(small("qwen3"), adapter);
  VirtualModels base = AutoModel::from_config(small("qwen3"), {.dtype = at::kDouble}, context_);
  VirtualModels model = AutoModel::from_config(small("qwen3"), {.dtype = at::kDouble, .adapter = adapter}, context_);
  const at::NoGradGuard no_grad;
  for (Parameter& parameter : model[0].parameters()) {
    if (parameter.adapter) parameter.value.fill_(1);
  }
  const at::Tensor expected = base[0].forward({}, batch()).value;
  EXPECT_TRUE(model[0].forward({}, batch(), {.with_adapter = false}).value.equal(expected));
  EXPECT_FALSE(model[0].forward({}, batch()).value.equal(expected));
  const at::AutoGradMode grad(true);
  EXPECT_THAT(refusal([&] { model[0].forward({}, batch(), {.with_adapter = false}); }),
              HasSubstr("cannot be differentiated"));
}

TEST_F(Chunk, StagesThatDoNotMakeAModelAreRefused) {
  const auto said = [&](const std::string& layout, int64_t layers, int64_t pp = 1) {
    return refusal(
        [&] { VirtualModels(small("qwen2"), {.stages = parse_layer_layout(layout, layers, pp)}, context_); });
  };
  EXPECT_EQ(said("E,t*2,L", 2), "accepted");
  EXPECT_THAT(said("E,t*3,L", 3), HasSubstr("num_hidden_layers is 2"));
  EXPECT_THAT(said("E,t|t,L", 2, 2), HasSubstr("there are 2"));
}

// ------------------------------------------------------------------------------------------------------- generation

// The logits of all tokens at once.
at::Tensor whole_logits(ModelChunk& chunk, const at::Tensor& ids) {
  const at::NoGradGuard no_grad;
  at::Tensor logits;
  const Observer observer = [&](const std::string& part, const at::Tensor& output) {
    if (part == "logits") logits = output.clone();
  };
  chunk.forward({}, {.input_ids = ids, .labels = ids}, {.observer = observer});
  return logits.transpose(0, 1);  // [B, S, V]
}

// In fp64, where the two differ in the order of sums of at most 40 terms, in 2 layers: some 1e-15 of logits of about 1.
TEST_F(Chunk, DecodingWithACacheGivesTheLogitsOfTheWholeSequence) {
  const std::string window = R"(, "sliding_window": 5, "use_sliding_window": true, "max_window_layers": 1)";
  for (const auto& [type, more] :
       std::vector<std::pair<std::string, std::string>>{{"qwen2", window},
                                                        {"llama", ""},
                                                        {"glm4", R"(, "head_dim": 8, "partial_rotary_factor": 0.5)"},
                                                        {"qwen2_moe", kExperts}}) {
    SCOPED_TRACE(type);
    VirtualModels models = AutoModel::from_config(small(type, more), {.dtype = at::kDouble}, context_);
    ModelChunk& chunk = models[0];
    const at::Tensor ids = at::arange(36, at::kLong).mul(7).remainder(40).view({2, 18});
    const at::Tensor expected = whole_logits(chunk, ids);
    const std::vector<int64_t> lengths = {9, 4};  // lengths of the prompts; the rest comes token by token
    const auto cache = chunk.make_cache(2, 18);
    at::Tensor logits = chunk.decode({}, {ids.narrow(1, 0, 9), at::tensor(lengths, at::kLong)}, *cache);
    for (int64_t step = 0;; ++step) {
      for (int64_t b = 0; b < 2; ++b) {
        const int64_t at = lengths[static_cast<size_t>(b)] + step - 1;
        const double off = (logits[b] - expected[b][at]).abs().max().item<double>();
        EXPECT_LE(off, 1e-12) << "row " << b << ", token " << at;
      }
      if (lengths[0] + step == 18) break;
      const at::Tensor next =
          at::tensor({ids[0][9 + step].item<int64_t>(), ids[1][4 + step].item<int64_t>()}, at::kLong);
      logits = chunk.decode({}, {next.view({2, 1}), at::tensor({1, 1}, at::kLong)}, *cache);
    }
  }
}

TEST_F(Chunk, ARowThatHasEndedDoesNotDisturbTheOthers) {
  VirtualModels models = AutoModel::from_config(small("llama"), {.dtype = at::kDouble}, context_);
  const at::Tensor prompt = at::arange(8, at::kLong).view({2, 4});
  const auto run = [&](int64_t count) {  // tokens of the second row, which is full after the first step
    const auto cache = models[0].make_cache(2, 7);
    at::Tensor logits = models[0].decode({}, {prompt, at::tensor({2, 4}, at::kLong)}, *cache);
    for (int64_t step = 0; step < 5; ++step) {
      const at::Tensor next = at::tensor({step, step}, at::kLong).view({2, 1});
      logits = models[0].decode({}, {next, at::tensor({int64_t{1}, step < 3 ? 1 : count}, at::kLong)}, *cache);
    }
    return logits[0];
  };
  const at::Tensor alone = [&] {
    const auto cache = models[0].make_cache(1, 7);
    at::Tensor logits =
        models[0].decode({}, {prompt.narrow(0, 0, 1).narrow(1, 0, 2), at::tensor({2}, at::kLong)}, *cache);
    for (int64_t step = 0; step < 5; ++step) {
      logits = models[0].decode({}, {at::tensor({step}, at::kLong).view({1, 1}), at::tensor({1}, at::kLong)}, *cache);
    }
    return logits[0];
  }();
  EXPECT_LE((run(0) - alone).abs().max().item<double>(), 1e-12);
}

TEST_F(Chunk, ACacheForMoreTokensThanTheModelHasPositionsIsRefused) {
  VirtualModels models =
      AutoModel::from_config(small("llama", R"(, "max_position_embeddings": 32)"), {.dtype = at::kFloat}, context_);
  EXPECT_THAT(refusal([&] { models[0].make_cache(1, 33); }),
              HasSubstr("33 tokens per row exceed the model's max_position_embeddings 32"));
}

}  // namespace
}  // namespace concord
