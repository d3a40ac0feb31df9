#include "tests/parity/train_run.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>

#include "core/data_parallel/finalize_grads.h"
#include "core/pipeline/model_pipeline.h"
#include "core/safetensors/reader.h"
#include "core/schedule/step_schedule.h"

namespace concord::tests {
namespace {

const std::string kGolden = CONCORD_GOLDEN;

template <class T>
at::Tensor tensor_of(const safetensors::Reader& file, const std::string& name, c10::ScalarType type) {
  const safetensors::TensorInfo& info = file.at(name);
  const at::Tensor tensor = at::empty(info.shape, type);
  file.read(info, 0, {reinterpret_cast<std::byte*>(tensor.data_ptr<T>()), info.bytes()});
  return tensor;
}

// Calls visitor(local index, global index) for every element of |run|.
template <class Visitor>
void each_element(const ShardRun& run, Visitor&& visitor) {
  for (int64_t i = 0; i < run.count; ++i) {
    visitor(run.local + i, run.offset + i / run.run_length * run.run_stride + i % run.run_length);
  }
}

void load_weights(const std::vector<Parameter*>& parameters, ParallelContext& job) {
  const at::NoGradGuard no_grad;
  const safetensors::Reader file(kGolden + "/hf/qwen2-tiny/model.safetensors");
  for (Parameter* parameter : parameters) {
    const at::Tensor own = at::zeros(parameter->value.sizes(), at::kFloat);
    for (const ShardRun& run : shard_runs(parameter->spec, shard_place(job.layout(), job.rank()))) {
      const at::Tensor whole = tensor_of<float>(file, run.tensor, at::kFloat);
      each_element(run, [&](int64_t local, int64_t global) {
        own.data_ptr<float>()[local] = whole.const_data_ptr<float>()[global];
      });
    }
    parameter->value.copy_(own);
  }
}

// Returns this rank's rows of one step, in micro-batches; labels become the next token.
std::vector<MicroBatch> batches_of(const at::Tensor& ids, const at::Tensor& labels, int64_t micro_batches,
                                   ParallelContext& job) {
  const int64_t rows = ids.size(0) / job.layout().dp(), first = job.coordinates().dp * rows;
  const int64_t count = std::min(micro_batches, rows), each = rows / count;
  at::Tensor next = at::full(labels.sizes(), kIgnoredLabel, at::kLong);
  next.narrow(1, 0, labels.size(1) - 1).copy_(labels.narrow(1, 1, labels.size(1) - 1));
  std::vector<MicroBatch> batches;
  for (int64_t i = 0; i < count; ++i) {
    batches.push_back({.input_ids = ids.narrow(0, first + i * each, each).contiguous(),
                       .labels = next.narrow(0, first + i * each, each).contiguous()});
  }
  return batches;
}

double mean_loss(double sum, int64_t tokens, ParallelContext& job) {
  const at::Tensor all = at::full({1}, sum, at::kDouble);
  job.group(GroupKind::dp_cp).all_reduce(all).wait();
  return all.item<double>() / static_cast<double>(tokens);
}

// Returns the checksums of whole tensors: every element is added by one rank.
std::map<std::string, Checksum> checksums(const std::vector<Parameter*>& parameters, ParallelContext& job,
                                          const std::map<std::string, int64_t>& names) {
  std::map<std::string, Checksum> sums;
  for (const auto& [name, elements] : names) sums[name] = {};
  for (const Parameter* parameter : parameters) {
    const RankCoordinates& at = job.coordinates();
    bool cut = false;
    for (const ShardSpec::Dim& dim : parameter->spec.dims) cut |= dim.cut.has_value();
    if (at.dp > 0 || at.cp > 0 || (!cut && at.tp > 0)) continue;
    const at::Tensor values = parameter->value.detach().to(at::kDouble).contiguous();
    for (const ShardRun& run : shard_runs(parameter->spec, shard_place(job.layout(), job.rank()))) {
      Checksum& sum = sums.at(run.tensor);
      each_element(run, [&](int64_t local, int64_t global) {
        const double value = values.const_data_ptr<double>()[local];
        sum.sum += value;
        sum.sumsq += value * value;
        sum.ramp += value * static_cast<double>(global % 251) / 251;
      });
    }
  }
  std::vector<double> flat;
  for (const auto& [name, sum] : sums) flat.insert(flat.end(), {sum.sum, sum.sumsq, sum.ramp});
  const at::Tensor all = at::empty({static_cast<int64_t>(flat.size())}, at::kDouble);
  std::copy(flat.begin(), flat.end(), all.data_ptr<double>());
  job.world_group().all_reduce(all).wait();
  const double* value = all.const_data_ptr<double>();
  for (auto& [name, sum] : sums) sum = {*value, *(value + 1), *(value + 2)}, value += 3;
  return sums;
}

std::vector<std::byte> bits_of(const DistributedDataParallel& ddp) {
  std::vector<std::byte> bits;
  for (const GradBuffer* buffer : ddp.buffers()) {
    const at::Tensor values = buffer->values();
    const auto* data = static_cast<const std::byte*>(values.const_data_ptr());
    bits.insert(bits.end(), data, data + values.nbytes());
  }
  return bits;
}

struct Counted {
  double loss = 0;
  int64_t tokens = 0;
};

Counted run_batch(ModelChunk& chunk, const MicroBatch& batch, double loss_scale) {
  const at::Tensor losses = chunk.forward({}, batch).value.sum();
  losses.mul(loss_scale).backward();
  return {losses.item<double>(), chunk.counted_tokens(batch)};
}

ModelArgs model_args(const TrainOptions& options) {
  return {.dtype = options.dtype,
          .options = {.sequence_parallel = options.sequence_parallel,
                      .cp_comm_type = options.cp_comm_type,
                      .recompute = options.recompute,
                      .offload = options.offload_activations,
                      .tiled_mlp = options.mlp_tiles > 1,
                      .tiled_mlp_num_shards = options.mlp_tiles},
          .placement = options.schedule == "zb-v" ? Placement::v : Placement::loop};
}

// Returns each model chunk separately, as in the executor.
std::vector<DistributedDataParallel::Chunk> chunks_of(VirtualModels& models) {
  std::vector<DistributedDataParallel::Chunk> chunks(models.size());
  for (size_t i = 0; i < models.size(); ++i) {
    for (Parameter& parameter : models[i].parameters()) chunks[i].push_back(&parameter);
  }
  return chunks;
}

Counted run_pipeline(ModelPipeline& pipeline, DistributedDataParallel& ddp, const std::vector<MicroBatch>& batches,
                     double loss_scale) {
  ddp.begin_step(static_cast<int64_t>(batches.size()));
  const auto [loss, tokens] = pipeline.run(batches, std::vector<double>(batches.size(), loss_scale));
  return {loss, tokens};
}

Counted run_batches(ModelChunk& chunk, DistributedDataParallel& ddp, const std::vector<MicroBatch>& batches,
                    const TrainOptions& options) {
  Counted all;
  ddp.begin_step(static_cast<int64_t>(batches.size()));
  for (const MicroBatch& batch : batches) {
    const Counted one = run_batch(chunk, batch, options.loss_scale);
    all.loss += one.loss;
    all.tokens += one.tokens;
  }
  return all;
}

}  // namespace

TrainGolden::TrainGolden(const std::string& name) : labels(name == "accumulate" ? "labels_uneven" : "labels_full") {
  std::ifstream file(kGolden + "/train/" + name + ".json");
  const auto document = nlohmann::json::parse(file);
  const auto& settings = document.at("hyperparameters");
  micro_batches = settings.at("micro_batches");
  weight_decay = settings.at("weight_decay");
  optimizer.adam_beta1 = settings.at("betas")[0];
  optimizer.adam_beta2 = settings.at("betas")[1];
  optimizer.adam_epsilon = settings.at("eps");
  optimizer.max_grad_norm = settings.at("clip");
  for (const auto& step : document.at("steps")) {
    lr.push_back(step.at("lr"));
    record.steps.push_back({step.at("loss"), step.at("grad_norm")});
  }
  for (const auto& [weight, sums] : document.at("final_weights").items()) {
    record.final_weights[weight] = {sums.at("sum"), sums.at("sumsq"), sums.at("ramp")};
    int64_t count = 1;
    for (const int64_t size : sums.at("shape")) count *= size;
    elements[weight] = count;
  }
}

TrainRecord train_like(const TrainGolden& golden, ParallelContext& job, const TrainOptions& options) {
  VirtualModels models(read_model_config(kGolden + "/hf/qwen2-tiny"), model_args(options), job);
  load_weights(models.parameters(), job);
  DataParallelOptions ddp_options = options.ddp;
  ddp_options.calculate_per_token_loss = true;
  DistributedDataParallel ddp(chunks_of(models), job, ddp_options);
  OptimizerOptions optimizer_options = golden.optimizer;
  optimizer_options.optimizer_cpu_offload = options.offload > 0;
  optimizer_options.optimizer_offload_fraction = options.offload;
  Optimizer optimizer(ddp, optimizer_options);
  const safetensors::Reader tokens(kGolden + "/train/tokens.safetensors");
  const at::Tensor ids = tensor_of<int64_t>(tokens, "input_ids", at::kLong);
  const at::Tensor labels = tensor_of<int64_t>(tokens, golden.labels, at::kLong);

  const int64_t micro_batches = options.micro_batches > 0 ? options.micro_batches : golden.micro_batches;
  std::optional<ModelPipeline> pipeline;
  if (!options.schedule.empty()) {
    const ScheduleRequest request{.kind = options.schedule,
                                  .pp = job.layout().pp(),
                                  .microbatches = std::min(micro_batches, ids.size(1) / job.layout().dp()),
                                  .vpp = job.layout().vpp()};
    pipeline.emplace(step_schedule(request), models, job);
  }

  TrainRecord record;
  for (size_t step = 0; step < golden.lr.size(); ++step) {
    const auto s = static_cast<int64_t>(step);
    const auto batches = batches_of(ids[s], labels[s], micro_batches, job);
    const Counted counted = pipeline ? run_pipeline(*pipeline, ddp, batches, options.loss_scale)
                                     : run_batches(models[0], ddp, batches, options);
    const int64_t all = finalize_grads(ddp, {.tokens = counted.tokens * options.tokens_factor});
    const StepResult result = optimizer.step(
        {.lr = golden.lr[step], .weight_decay = golden.weight_decay, .grad_divisor = options.loss_scale});
    record.steps.push_back({mean_loss(counted.loss, all / options.tokens_factor, job), result.grad_norm});
    if (step + 1 == options.bits_after_step) {
      ddp.finish_param_gather();
      record.bits = bits_of(ddp);
    }
  }
  ddp.finish_param_gather();
  record.final_weights = checksums(models.parameters(), job, golden.elements);
  if (options.bits_after_step == 0) record.bits = bits_of(ddp);
  return record;
}

}  // namespace concord::tests
