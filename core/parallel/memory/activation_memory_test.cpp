// The memory of a model's layers, measured by libtorch's memory reports, compared with the formula.
//
//   parallel_unit_test --gtest_filter='ActivationMemory*' prints the table of docs/parallel-layers.md.
#include "core/parallel/memory/activation_memory.h"

#include <ATen/Parallel.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <span>

#include "core/mesh/initialize.h"
#include "core/models/model_chunk.h"
#include "core/parallel/testing/memory_meter.h"

namespace concord {
namespace {

constexpr int64_t kLayers = 8, kSequence = 64;

ModelConfig config() {
  ModelConfig made;
  made.model_type = "llama";
  made.vocab_size = 32;
  made.hidden_size = 128;
  made.intermediate_size = 352;
  made.num_hidden_layers = kLayers;
  made.num_attention_heads = 8;
  made.num_key_value_heads = 2;
  made.head_dim = 16;
  made.max_position_embeddings = kSequence;
  made.windows.assign(kLayers, 0);
  made.rope = {.head_dim = 16, .max_position_embeddings = kSequence};
  return made;
}

LayerSizes sizes_of(const ModelConfig& model, int64_t batch, int64_t element_bytes) {
  return {.tokens = kSequence * batch,
          .hidden = model.hidden_size,
          .heads = model.num_attention_heads,
          .kv_heads = model.num_key_value_heads,
          .head_dim = model.head_dim,
          .inner = model.intermediate_size,
          .element_bytes = element_bytes};
}

struct Setting {
  const char* name;
  RecomputeArgs args;
  int64_t tiles = 1;
};

// Measures the layers of a model without its ends. Weight gradients go to buffers allocated before.
ActivationBytes measured(const Setting& setting, int64_t layers, int64_t batch, at::ScalarType type) {
  const ModelArgs args{
      .dtype = type,
      .options = {.recompute = setting.args, .tiled_mlp = setting.tiles > 1, .tiled_mlp_num_shards = setting.tiles}};
  ModelChunk chunk(config(), args, {.layers = layers}, initialize({}));
  chunk.initialise();
  for (Parameter& each : chunk.parameters()) {
    if (each.value.dim() == 2) each.sink.main = at::zeros(each.value.sizes(), at::kFloat);
  }
  const MicroBatch tokens{.input_ids = at::zeros({batch, kSequence}, at::kLong)};
  const at::Tensor hidden = at::ones(chunk.hidden_shape(tokens), type).requires_grad_(true);
  const at::Tensor grad = at::ones(hidden.sizes(), type);
  chunk.forward(hidden, tokens).value.backward(grad);  // makes one-time allocations, such as the norms' gradients
  hidden.mutable_grad().reset();
  const auto meter = std::make_shared<MemoryMeter>();
  const c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, meter);
  at::Tensor y = chunk.forward(hidden, tokens).value;
  ActivationBytes bytes;
  bytes.kept = meter->held;
  y.backward(grad);
  bytes.peak = meter->most;
  return bytes;
}

const Setting kNone{"none", {}};
const Setting kFull{"full, uniform, units of 1", {.granularity = RecomputeGranularity::full, .num_layers = 1}};
const Setting kSettings[] = {
    kNone,
    {"selective: core_attn", {.granularity = RecomputeGranularity::selective, .modules = {RecomputeModule::core_attn}}},
    {"selective: layernorm", {.granularity = RecomputeGranularity::selective, .modules = {RecomputeModule::layernorm}}},
    {"selective: layernorm, mlp_act",
     {.granularity = RecomputeGranularity::selective,
      .modules = {RecomputeModule::layernorm, RecomputeModule::mlp_act}}},
    {"selective: mlp", {.granularity = RecomputeGranularity::selective, .modules = {RecomputeModule::mlp}}},
    {"selective: core_attn, layernorm, mlp",
     {.granularity = RecomputeGranularity::selective,
      .modules = {RecomputeModule::core_attn, RecomputeModule::layernorm, RecomputeModule::mlp}}},
    {"full, block, 4 of 8 layers",
     {.granularity = RecomputeGranularity::full, .method = RecomputeMethod::block, .num_layers = 4}},
    kFull,
    {"full, uniform, units of 2", {.granularity = RecomputeGranularity::full, .num_layers = 2}},
    {"full, uniform, units of 4", {.granularity = RecomputeGranularity::full, .num_layers = 4}},
    {"tiled_mlp, 8 tiles", {}, 8},
    {"tiled_mlp, 8 tiles, selective: layernorm",
     {.granularity = RecomputeGranularity::selective, .modules = {RecomputeModule::layernorm}},
     8},
    {"tiled_mlp, 8 tiles, full, uniform, units of 1", {.granularity = RecomputeGranularity::full, .num_layers = 1}, 8},
};

constexpr double kAngles = kSequence * 16 * 4 + 64;  // bytes: cosines and sines of half a head, in fp32

constexpr double kSurplus = 1.01;

double mega(int64_t bytes) { return static_cast<double>(bytes) / 1e6; }

// Saved bytes are at least those of the formula, and at most one percent more plus rope's angles. At its peak backward
// also holds the gradients of the current layer, of gate, up and their product, of a norm's output and of the residual
// stream, with their copies at most 8 inner + 8 hidden per token.
void check(int64_t batch, at::ScalarType type, int64_t layers, std::span<const Setting> settings) {
  const int64_t element = type == at::kFloat ? 4 : 2;
  LayerSizes sizes = sizes_of(config(), batch, element);
  std::printf("%lld x %lld tokens, %s: MB measured (formula), kept and at the peak\n", static_cast<long long>(batch),
              static_cast<long long>(kSequence), c10::toString(type));
  for (const Setting& setting : settings) {
    SCOPED_TRACE(setting.name);
    sizes.mlp_tiles = setting.tiles;
    const ActivationBytes formula = activation_bytes(sizes, setting.args, layers);
    const ActivationBytes got = measured(setting, layers, batch, type);
    std::printf("| %s | %.2f (%.2f) | %.2f (%.2f) |\n", setting.name, mega(got.kept), mega(formula.kept),
                mega(got.peak), mega(formula.peak));
    EXPECT_GE(got.kept, formula.kept);
    EXPECT_LE(static_cast<double>(got.kept), static_cast<double>(formula.kept) * kSurplus + kAngles);
    const int64_t gradients = 8 * sizes.tokens * (sizes.inner / sizes.mlp_tiles + sizes.hidden) * element;
    EXPECT_GE(got.peak, formula.peak);
    EXPECT_LE(static_cast<double>(got.peak), static_cast<double>(formula.peak + gradients) * kSurplus);
  }
}

// Eight layers: their first input, which the test allocates, stays on the device, and so does the last one.
void check_offload() {
  const ModelArgs args{
      .dtype = at::kFloat,
      .options = {.recompute = {.granularity = RecomputeGranularity::full}, .offload = {.cpu_offloading = true}}};
  ModelChunk chunk(config(), args, {.layers = kLayers}, initialize({}));
  chunk.initialise();
  const MicroBatch tokens{.input_ids = at::zeros({1, kSequence}, at::kLong)};
  const at::Tensor hidden = at::ones(chunk.hidden_shape(tokens), at::kFloat).requires_grad_(true);
  const auto bytes = static_cast<int64_t>(hidden.nbytes());
  chunk.forward(hidden, tokens).value.sum().backward();
  const auto before = chunk.offload_traffic();
  EXPECT_EQ(before.to_host, (kLayers - 2) * bytes);
  EXPECT_EQ(before.to_device, before.to_host);
  EXPECT_EQ(before.pinned, before.to_host);
  const auto meter = std::make_shared<MemoryMeter>();
  const c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, meter);
  const at::Tensor y = chunk.forward(hidden, tokens).value;
  EXPECT_GE(meter->held, 2 * bytes);  // the last layer's input and output
  EXPECT_LE(static_cast<double>(meter->held), static_cast<double>(2 * bytes) * kSurplus + kAngles);
  EXPECT_EQ(chunk.offload_traffic().to_host, 2 * before.to_host);
}

class ActivationMemory : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { at::set_num_threads(1); }  // on a busy machine threads wait for each other
  static void TearDownTestSuite() { finalize(); }
};

TEST_F(ActivationMemory, OfOneRowIsThatOfTheFormula) { check(1, at::kFloat, kLayers, kSettings); }
TEST_F(ActivationMemory, OfSeveralRowsIsToo) { check(2, at::kFloat, kLayers, kSettings); }
TEST_F(ActivationMemory, InBf16IsHalf) {
  const Setting some[] = {kNone, kFull};  // GEMMs in bf16 are slow on hosts without instructions for them
  check(1, at::kBFloat16, 2, some);
}

TEST_F(ActivationMemory, OfInputsOnTheHostIsTwoLayersInputs) { check_offload(); }

TEST_F(ActivationMemory, IsCutByTensorAndSequenceParallelismAsMegatronsIs) {
  LayerSizes sizes = sizes_of(config(), 1, 2);
  const int64_t whole = activation_bytes(sizes, {}, 1).kept;
  sizes.tp = 2;
  const int64_t inputs = 4 * sizes.tokens * sizes.hidden * 2 + 8 * sizes.tokens;
  EXPECT_EQ(activation_bytes(sizes, {}, 1).kept, inputs + (whole - inputs) / 2);
  sizes.sequence_parallel = true;
  EXPECT_EQ(activation_bytes(sizes, {}, 1).kept, whole / 2);
  EXPECT_EQ(activation_bytes(sizes, {.granularity = RecomputeGranularity::full}, 4).kept,
            4 * sizes.tokens * sizes.hidden * 2 / 2);
}

}  // namespace
}  // namespace concord
