#include "trainer/probe.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <fmt/core.h>

#include <algorithm>
#include <cstdio>
#include <optional>
#include <utility>

#include "core/base/config_error.h"
#include "core/checkpoint/hf_plan.h"
#include "core/checkpoint/read/gather_shards.h"
#include "core/models/layers/router_record.h"
#include "core/models/parameter_plan.h"
#include "core/models/token_slices.h"
#include "core/parallel/async_collectives.h"
#include "core/parallel/context_slices.h"
#include "core/pipeline/model_pipeline.h"
#include "core/schedule/step_schedule.h"

namespace concord {
namespace {

using at::Tensor;

// At least 1, to avoid a division by 0: without labels all losses are 0.
int64_t counted(const Tensor& labels) {
  return labels.defined() ? std::max<int64_t>(1, labels.ne(kIgnoredLabel).sum().item<int64_t>()) : 1;
}

MicroBatch own_rows(const MicroBatch& batch, const ProcessGroup& dp) {
  if (!batch.input_ids.defined()) return batch;
  if (batch.pixel_values.defined()) {
    if (dp.size() == 1) return batch;
    throw ConfigError(fmt::format("a batch with images cannot be split over {} data-parallel ranks; use 1", dp.size()));
  }
  const int64_t rows = batch.input_ids.size(0);
  if (rows % dp.size() != 0) {
    throw ConfigError(
        fmt::format("a batch of {} rows cannot be split evenly over {} data-parallel ranks; use a multiple of that "
                    "number of rows, or another layout",
                    rows, dp.size()));
  }
  const auto part = [&](const Tensor& x) { return x.defined() ? own_part(x, dp, 0) : x; };
  return {part(batch.input_ids), part(batch.labels), part(batch.position_ids), batch.cu_seqlens};
}

// Outputs of this rank's parts, kept until everything is computed.
using Kept = std::map<std::string, Tensor>;

class Probe {
 public:
  Probe(VirtualModels& models, const MicroBatch& batch, const ProbeOptions& options, ParallelContext& context)
      : models_(models),
        options_(options),
        context_(context),
        batch_(own_rows(batch, context.group(GroupKind::dp))),
        tokens_(counted(batch.labels)),
        ranks_(place_stages(models.args().placement, static_cast<int>(context.layout().pp()),
                            static_cast<int>(context.layout().vpp()))) {
    if (models.args().adapter) adapter_.emplace(*models.args().adapter);
  }

  ProbeResult run() {
    if (batch_.input_ids.defined()) compute();
    if (options_.weights) collect_parameters("weight.", [](Parameter& p) { return p.value; });
    return std::move(result_);
  }

 private:
  void compute() {
    prepare();
    run_batch();
    collect_outputs();
    if (has_router_losses_) collect_router_losses();
    if (options_.grads) collect_parameters("grad.", [this](Parameter& p) { return gradient(p); });
    clear();
  }

  bool is_mine(size_t stage) { return ranks_[stage] == context_.coordinates().pp; }
  ModelChunk& chunk_of(size_t stage) {
    size_t index = 0;
    while (models_.stage(index) != static_cast<int64_t>(stage)) ++index;
    return models_[index];
  }

  void prepare() {
    for (Parameter* parameter : models_.parameters()) {
      before_.push_back(parameter->sink);
      if (parameter->frozen) continue;
      const auto options = parameter->value.options().dtype(sum_type(parameter->value)).requires_grad(false);
      if (options_.grads) parameter->sink = {.main = at::zeros(parameter->value.sizes(), options)};
      parameter->value.mutable_grad().reset();
    }
  }

  void clear() {
    const std::vector<Parameter*> parameters = models_.parameters();
    for (size_t i = 0; i < parameters.size(); ++i) {
      parameters[i]->sink = before_[i];
      parameters[i]->value.mutable_grad().reset();
    }
  }

  void run_batch() {
    ModelPipeline pipeline(single_schedule(models_.args().placement, static_cast<int>(context_.layout().pp()),
                                           static_cast<int>(context_.layout().vpp()), options_.grads),
                           models_, context_);
    const double weight = 1 / static_cast<double>(tokens_);
    // A data-parallel rank's routers balance its own rows; the mean of these losses is that of the batch.
    const double router_weight = 1 / static_cast<double>(context_.layout().dp());
    const Observer keep = [this](const std::string& part, const Tensor& output) {
      if (part == "logits" || options_.activations) kept_.try_emplace(part, output.detach().clone());
    };
    pipeline.walk({&batch_, 1}, {&weight, 1}, {&router_weight, 1}, {.observer = keep});
    for (const ModelStage& stage : pipeline.stages()) {
      if (stage.router_records()[0]) add_router_losses(*stage.router_records()[0]);
    }
    if (is_mine(ranks_.size() - 1)) token_losses_ = pipeline.stages().back().token_losses()[0];
  }

  void add_router_losses(const RouterRecord& record) {
    has_router_losses_ |= record.losses.any();
    const Tensor parts = router_loss_parts(record);
    if (parts.defined()) router_loss_ += parts.sum().item<double>() / static_cast<double>(context_.layout().dp());
  }

  // --------------------------------------------------------------------------------------------------------- results

  // Sends |whole| from the rank that owns |stage| to rank 0. |shape| is its shape there.
  void keep(const std::string& name, size_t stage, const Tensor& whole, const std::vector<int64_t>& shape,
            c10::ScalarType type) {
    Tensor tensor = whole;
    ProcessGroup& group = context_.group(GroupKind::pp);
    if (group.size() > 1) {
      const auto options = at::TensorOptions(type).device(context_.torch_device());
      tensor = is_mine(stage) ? whole.to(options).contiguous() : at::empty(shape, options);
      group.broadcast(tensor, ranks_[stage]).wait();
    }
    if (context_.rank() != 0) return;
    const auto [place, is_new] = result_.try_emplace(name, tensor.cpu());
    if (!is_new) place->second = place->second + tensor.cpu();  // a tied embedding's other half
  }

  // |x| [S / cp, ...] -> [S, ...] in the order of the full sequence.
  Tensor all_tokens(const Tensor& x) {
    ProcessGroup& cp = context_.group(GroupKind::cp);
    if (cp.size() == 1) return x;
    const std::vector<int64_t> order = gathered_order(sequence_lengths(batch_), cp.size());
    const Tensor all = gather(x, cp, 0).take();
    Tensor whole = at::empty_like(all, at::MemoryFormat::Contiguous);
    whole.index_copy_(0, at::tensor(order, at::kLong).to(all.device()), all);
    return whole;
  }

  // |x| [tokens of this rank, B of this rank, n] -> [B, S, n]
  Tensor whole_output(const std::string& part, Tensor x) {
    ProcessGroup& tp = context_.group(GroupKind::tp);
    if (part == "logits") {
      x = gather(x, tp, 2).take().narrow(2, 0, models_.config().vocab_size).to(sum_type(x));
    } else if (models_.args().options.sequence_parallel) {
      x = gather(x, tp, 0).take();
    }
    return gather(all_tokens(x).transpose(0, 1).contiguous(), context_.group(GroupKind::dp), 0).take();
  }

  static c10::ScalarType sum_type(const Tensor& x) { return x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat; }

  void collect_output(const std::string& part, const std::string& name, size_t stage, int64_t features) {
    const int64_t rows = batch_.input_ids.size(0) * context_.layout().dp();
    const auto type = models_[0].hidden_dtype();
    const auto wide = type == at::kDouble ? at::kDouble : at::kFloat;
    const Tensor whole = is_mine(stage) ? whole_output(part, kept_.at(part)) : Tensor();
    keep(name, stage, whole, {rows, batch_.input_ids.size(1), features}, part == "logits" ? wide : type);
  }

  void collect_outputs() {
    const ModelConfig& config = models_.config();
    const size_t last = ranks_.size() - 1;
    collect_losses(last);
    collect_output("logits", "logits", last, config.vocab_size);
    if (!options_.activations) return;
    int number = 0;
    const auto collect = [&](const std::string& part, size_t stage) {
      char place[16];
      std::snprintf(place, sizeof place, "%06d", number++);
      collect_output(part, fmt::format("activation.{}.{}", place, part), stage, config.hidden_size);
    };
    for (size_t stage = 0; stage <= last; ++stage) {
      const StageLayers& layers = models_.args().stages[stage];
      if (layers.embedding) collect("embedding", stage);
      for (int64_t i = 0; i < layers.layers; ++i) collect(fmt::format("layers.{}", layers.first_layer + i), stage);
      if (layers.loss) collect("norm", stage);
    }
  }

  void collect_losses(size_t last) {
    const int64_t rows = batch_.input_ids.size(0) * context_.layout().dp();
    const auto type = models_[0].hidden_dtype() == at::kDouble ? at::kDouble : at::kFloat;
    Tensor whole;
    if (is_mine(last)) {
      const Tensor own = token_losses_.t();
      whole = gather(all_tokens(own).t().contiguous(), context_.group(GroupKind::dp), 0).take();
    }
    keep("per_token_loss", last, whole, {rows, batch_.input_ids.size(1)}, type);
    if (context_.rank() != 0) return;
    const Tensor sum = result_.at("per_token_loss").to(at::kDouble).sum();
    result_["loss"] = (sum / tokens_).to(type).view({1});
  }

  // Gathers from all layers and ranks, in their part of the total loss.
  void collect_router_losses() {
    const auto type = models_[0].hidden_dtype() == at::kDouble ? at::kDouble : at::kFloat;
    const Tensor sum = at::full({1}, router_loss_, at::TensorOptions(at::kDouble).device(context_.torch_device()));
    std::vector<GroupKind> groups{GroupKind::dp_cp, GroupKind::pp};
    if (models_.args().options.sequence_parallel) groups.push_back(GroupKind::tp);
    for (const GroupKind kind : groups) context_.group(kind).all_reduce(sum).wait();
    if (context_.rank() == 0) result_["router_loss"] = sum.to(type).cpu();
  }

  // The full gradient from this rank's shard: the sum over all tokens.
  Tensor gradient(Parameter& parameter) {
    Tensor total = parameter.sink.main;
    if (parameter.value.grad().defined()) total.add_(parameter.value.grad());
    const GroupKind parts = parameter.expert ? GroupKind::etp : GroupKind::tp;
    if (parameter.partial_over_tp) context_.group(parts).all_reduce(total).wait();
    context_.group(parameter.expert ? GroupKind::edp : GroupKind::dp_cp).all_reduce(total).wait();
    return total;
  }

  template <class Value>
  void collect_parameters(const std::string& prefix, Value value) {
    const bool is_weight = prefix == "weight.";
    const auto type = models_[0].hidden_dtype();
    const auto wide = type == at::kDouble ? at::kDouble : at::kFloat;
    for (size_t stage = 0; stage < ranks_.size(); ++stage) {
      const StageLayers& layers = models_.args().stages[stage];
      const bool borrows = layers.loss && !layers.embedding && ranks_[stage] == ranks_[0];
      const ParameterPlanOptions options{
          .tp = context_.layout().tp(), .borrows_embedding = borrows, .adapter = adapter_ ? &*adapter_ : nullptr};
      const auto plans = plan_parameters(models_.config(), layers, options);
      for (size_t i = 0; i < plans.size(); ++i) {
        if (is_weight && stage > 0 && plans[i].shared_embedding) continue;  // already written by the first stage
        if (!is_weight && (plans[i].buffer || plans[i].frozen)) continue;
        NamedTensors whole;
        if (is_mine(stage)) {
          Parameter& parameter = chunk_of(stage).parameters()[i];
          whole = gather_shards(value(parameter), parameter.spec, context_);
        }
        const auto shapes = global_tensors(plans[i].spec);
        for (size_t k = 0; k < shapes.size(); ++k) {
          const bool is_saved = adapter_ && !plans[i].adapter && !is_weight;  // whole, by the name that peft gives it
          const auto kept = plans[i].buffer ? at::kFloat : is_weight ? type : wide;
          keep(prefix + (is_saved ? kAdapterPrefix : "") + shapes[k].name, stage,
               whole.empty() ? Tensor() : whole[k].second, shapes[k].shape, kept);
        }
      }
    }
  }

  VirtualModels& models_;
  const ProbeOptions options_;
  ParallelContext& context_;
  MicroBatch batch_;
  int64_t tokens_;          // tokens counted in the loss, over the whole batch
  std::vector<int> ranks_;  // of the stages
  std::optional<AdapterModules> adapter_;
  std::vector<GradSink> before_;
  Tensor token_losses_;  // on the last stage only
  bool has_router_losses_ = false;
  double router_loss_ = 0;  // this rank's part of it
  Kept kept_;
  ProbeResult result_;
};

}  // namespace

ProbeResult probe(VirtualModels& models, const MicroBatch& batch, const ProbeOptions& options,
                  ParallelContext& context) {
  if (models.config().is_reward_model)
    throw ConfigError("a reward model has no logits to probe; use a model that predicts tokens");
  if (batch.input_ids.defined()) check_batch(batch, /*with_labels=*/true);
  return Probe(models, batch, options, context).run();
}

}  // namespace concord
