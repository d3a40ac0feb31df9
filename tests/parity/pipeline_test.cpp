// Models through pipelines of every kind, in real processes: loss and every gradient compared with transformers
// (tests/golden/hf and packing), within the bounds for another implementation in fp32. The gradients take the whole
// path: executor, data-parallel buffers, final reductions.
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "core/checkpoint/hf_weights.h"
#include "core/data_parallel/finalize_grads.h"
#include "core/models/auto_model.h"
#include "core/pipeline/model_pipeline.h"
#include "core/safetensors/reader.h"
#include "core/schedule/step_schedule.h"
#include "tests/processes/groups/group_job.h"

namespace concord::tests {
namespace {

const std::string kGolden = CONCORD_GOLDEN;
constexpr double kLoss = 5e-6, kGradient = 2e-5;  // absolute; norm of the difference relative to that of the reference

template <class T>
at::Tensor tensor_of(const safetensors::Reader& file, const std::string& name, c10::ScalarType type) {
  const safetensors::TensorInfo& info = file.at(name);
  const at::Tensor tensor = at::empty(info.shape, type);
  file.read(info, 0, {reinterpret_cast<std::byte*>(tensor.data_ptr<T>()), info.bytes()});
  return tensor;
}

struct Golden {
  std::string folder;  // folder of the model
  std::vector<MicroBatch> batches = {};
  double loss = 0;
  std::map<std::string, at::Tensor> grads = {};
};

void read_results(const safetensors::Reader& file, Golden& golden) {
  golden.loss = tensor_of<float>(file, "loss", at::kFloat).item<double>();
  for (const safetensors::TensorInfo& info : file.tensors()) {
    if (info.name.starts_with("grad."))
      golden.grads[info.name.substr(5)] = tensor_of<float>(file, info.name, at::kFloat);
  }
}

// Returns one micro-batch per row.
Golden rows_of(const std::string& model) {
  Golden golden{.folder = kGolden + "/hf/" + model};
  const safetensors::Reader file(golden.folder + "/expected.safetensors");
  const at::Tensor ids = tensor_of<int64_t>(file, "input_ids", at::kLong);
  const at::Tensor labels = tensor_of<int64_t>(file, "labels", at::kLong);
  at::Tensor next = at::full(labels.sizes(), kIgnoredLabel, at::kLong);
  next.narrow(1, 0, labels.size(1) - 1).copy_(labels.narrow(1, 1, labels.size(1) - 1));
  for (int64_t i = 0; i < ids.size(0); ++i) {
    golden.batches.push_back({.input_ids = ids.narrow(0, i, 1), .labels = next.narrow(0, i, 1)});
  }
  read_results(file, golden);
  return golden;
}

// Packed sequences in two micro-batches of different lengths: the first |count| sequences, and the others.
Golden packed(size_t count) {
  Golden golden{.folder = kGolden + "/hf/qwen2-tiny"};
  const safetensors::Reader file(kGolden + "/packing/expected.safetensors");
  const at::Tensor ids = tensor_of<int64_t>(file, "input_ids", at::kLong).view({1, -1});
  const at::Tensor targets = tensor_of<int64_t>(file, "targets", at::kLong).view({1, -1});
  const at::Tensor bounds = tensor_of<int32_t>(file, "cu_seqlens", at::kInt).to(at::kLong);
  const std::vector<int64_t> cu(bounds.data_ptr<int64_t>(), bounds.data_ptr<int64_t>() + bounds.numel());
  for (const auto& [first, last] : {std::pair<size_t, size_t>(0, count), {count, cu.size() - 1}}) {
    MicroBatch batch{.input_ids = ids.narrow(1, cu[first], cu[last] - cu[first]).contiguous(),
                     .labels = targets.narrow(1, cu[first], cu[last] - cu[first]).contiguous()};
    for (size_t i = first; i <= last; ++i) batch.cu_seqlens.push_back(cu[i] - cu[first]);
    golden.batches.push_back(std::move(batch));
  }
  read_results(file, golden);
  return golden;
}

// Sums |(ours - reference)|^2 and |reference|^2 over all ranks, for each tensor of the files. Replicas add the same
// amount to both.
void expect_gradients(const Golden& golden, VirtualModels& models, ParallelContext& job) {
  std::map<std::string, std::array<double, 2>> sums;
  for (const auto& [name, reference] : golden.grads) sums[name] = {};
  for (const Parameter* parameter : models.parameters()) {
    const at::Tensor own = parameter->sink.main.to(at::kDouble).contiguous();
    for (const ShardRun& run : shard_runs(parameter->spec, shard_place(job.layout(), job.rank()))) {
      const at::Tensor& reference = golden.grads.at(run.tensor);
      auto& [difference, square] = sums.at(run.tensor);
      for (int64_t i = 0; i < run.count; ++i) {
        const int64_t global = run.offset + i / run.run_length * run.run_stride + i % run.run_length;
        const double wanted = reference.const_data_ptr<float>()[global];
        difference += std::pow(own.const_data_ptr<double>()[run.local + i] - wanted, 2);
        square += wanted * wanted;
      }
    }
  }
  for (auto& [name, pair] : sums) {
    const at::Tensor all = at::empty({2}, at::kDouble);
    std::copy(pair.begin(), pair.end(), all.data_ptr<double>());
    job.world_group().all_reduce(all).wait();
    const double square = all[1].item<double>();
    ASSERT_GT(square, 0) << name;
    EXPECT_LE(std::sqrt(all[0].item<double>() / square), kGradient) << name;
  }
}

struct Layout {
  const char* schedule;
  int64_t pp, vpp = 1, tp = 1, dp = 1;
  bool sequence_parallel = false;
  const char* stages = "";  // pipeline_model_parallel_layout
};

void expect_golden(const Golden& golden, const Layout& layout, ParallelContext& job) {
  const ModelConfig config = read_model_config(golden.folder);
  ModelArgs args{.dtype = at::kFloat, .options = {.sequence_parallel = layout.sequence_parallel}};
  args.placement = std::string(layout.schedule) == "zb-v" ? Placement::v : Placement::loop;
  if (*layout.stages != '\0') args.stages = parse_layer_layout(layout.stages, config.num_hidden_layers, layout.pp);
  VirtualModels models(config, args, job);
  const std::vector<Parameter*> parameters = models.parameters();
  load_hf_weights(golden.folder, parameters, shard_place(job.layout(), job.rank()),
                  {.tied_embeddings = config.tie_word_embeddings});
  DistributedDataParallel ddp({parameters}, job, {.calculate_per_token_loss = true});

  const auto count = static_cast<int64_t>(golden.batches.size()) / layout.dp;
  const std::span<const MicroBatch> own =
      std::span(golden.batches).subspan(static_cast<size_t>(job.coordinates().dp * count), static_cast<size_t>(count));
  ModelPipeline pipeline(
      step_schedule({.kind = layout.schedule, .pp = layout.pp, .microbatches = count, .vpp = layout.vpp}), models, job);
  ddp.begin_step(count);
  const ModelPipeline::Result result = pipeline.run(own);
  const int64_t tokens = finalize_grads(ddp, {.tokens = result.counted_tokens});
  const at::Tensor sum = at::full({1}, result.loss_sum, at::kDouble);
  job.group(GroupKind::dp_cp).all_reduce(sum).wait();
  EXPECT_NEAR(sum.item<double>() / static_cast<double>(tokens), golden.loss, kLoss);
  expect_gradients(golden, models, job);
}

void expect_golden(const std::vector<Golden>& all, const Layout& layout) {
  SCOPED_TRACE(layout.schedule);
  const InitializeArgs args{.tensor_model_parallel_size = layout.tp,
                            .pipeline_model_parallel_size = layout.pp,
                            .virtual_pipeline_model_parallel_size = layout.vpp,
                            .ddp_timeout = 120};
  expect_job(static_cast<int>(layout.tp * layout.pp * layout.dp), args, [&](ParallelContext& job) {
    for (const Golden& golden : all) {
      SCOPED_TRACE(golden.folder);
      expect_golden(golden, layout, job);
    }
  });
}

TEST(PipelineParity, OneStage) { expect_golden({rows_of("qwen2-tiny"), rows_of("qwen2-tied")}, {"1f1b", 1}); }

TEST(PipelineParity, TwoRanks) {
  const std::vector<Golden> all = {rows_of("qwen2-tiny"), rows_of("qwen2-tied"), rows_of("llama-tiny"),
                                   rows_of("qwen3-tiny"), rows_of("mistral-tiny")};
  for (const char* kind : {"gpipe", "1f1b", "zb-h1"}) expect_golden(all, {kind, 2});
  expect_golden({rows_of("qwen2-moe-tiny"), rows_of("mixtral-tiny")}, {"zb-h1", 2});
}

TEST(PipelineParity, FourRanks) {
  const std::vector<Golden> all = {rows_of("qwen2-tiny")};
  for (const char* kind : {"1f1b", "zb-h1"}) expect_golden(all, {kind, 4});
  expect_golden({rows_of("qwen2-tied")}, {.schedule = "1f1b", .pp = 4, .stages = "E|t|t|L"});
}

TEST(PipelineParity, TwoChunksARank) {
  const std::vector<Golden> four = {rows_of("qwen2-tiny")};
  const std::vector<Golden> two = {rows_of("qwen2-tied"), rows_of("llama-tiny"), rows_of("qwen3-tiny")};
  for (const char* kind : {"interleaved", "zb-v"}) {
    expect_golden(four, {kind, 2, 2});
    expect_golden({rows_of("qwen3-moe-tiny")}, {.schedule = kind, .pp = 2, .vpp = 2, .stages = "E|t|t|L"});
    expect_golden(two, {.schedule = kind, .pp = 2, .vpp = 2, .stages = "E|t|t|L"});
  }
  expect_golden(four, {.schedule = "zb-v", .pp = 4, .vpp = 2, .stages = "E|t|t|t|t|||L"});  // stages without layers too
}

TEST(PipelineParity, WithTensorAndDataParallelism) {
  const std::vector<Golden> all = {rows_of("qwen2-tiny"), rows_of("qwen2-tied")};
  expect_golden(all, {.schedule = "1f1b", .pp = 2, .tp = 2});
  expect_golden(all, {.schedule = "zb-h1", .pp = 2, .tp = 2, .sequence_parallel = true});
  expect_golden(all, {.schedule = "zb-h1", .pp = 2, .dp = 2});
  expect_golden({rows_of("qwen2-tiny")}, {.schedule = "zb-v", .pp = 2, .vpp = 2, .tp = 2, .sequence_parallel = true});
}

TEST(PipelineParity, PackedSequencesOfDifferentLengths) {
  for (const char* kind : {"1f1b", "zb-h1"}) expect_golden({packed(1), packed(2)}, {kind, 2});
  expect_golden({packed(1)}, {.schedule = "zb-v", .pp = 2, .vpp = 2});
}

}  // namespace
}  // namespace concord::tests
