#include "trainer/python/module_chunk.h"

#include <ATen/Context.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/constant_pad_nd.h>
#include <fmt/format.h>
#include <pybind11/stl.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>

#include <algorithm>
#include <mutex>

#include "core/base/config_error.h"
#include "core/base/stable_hash.h"
#include "core/models/families/module_config.h"
#include "core/ops/loss/cross_entropy.h"
#include "core/ops/loss/vocab_share.h"
#include "trainer/arguments/table.h"

namespace concord {
namespace {

namespace py = pybind11;
using at::Tensor;

// A stage of the module. Its parts and parameters are objects of Python.
class ModuleChunk : public ModelChunk {
 public:
  ModuleChunk(const py::object& network, const ModelConfig& config, const ModelArgs& args, const StageLayers& layers,
              ParallelContext& job)
      : ModelChunk(config, args, layers, job, plan_module(config, layers)), network_(network), options_(args.options) {
    take_parameters(args.seed);
    share_values();
  }

  PassOutput forward(const Tensor& hidden, const MicroBatch& batch, const PassOptions& options) override {
    const bool trains = c10::GradMode::is_enabled();
    if (trains && batch.draws) seed_generators(*batch.draws);
    const Tensor output = run_parts(is_first() ? on_device(batch.input_ids) : hidden, batch, trains);
    if (!is_last()) return {output};
    const Tensor labels_bs = on_device(batch.labels);
    if (output.dim() != 3 || output.sizes().slice(0, 2) != labels_bs.sizes()) {
      throw ConfigError(fmt::format("{} returned a tensor of {} dimensions; must return logits [{}, {}, vocabulary]",
                                    config().architecture, output.dim(), labels_bs.size(0), labels_bs.size(1)));
    }
    if (options.observer) options.observe("logits", columns_of_rank(output).transpose(0, 1));
    return {losses(output, labels_bs, trains)};
  }

 private:
  ProcessGroup& tp() const { return context().group(GroupKind::tp); }
  Tensor on_device(const Tensor& x) const { return x.to(context().torch_device()); }
  // Whether the last part returns a part of the vocabulary on each rank, as ColumnParallelLinear does.
  bool is_split(const Tensor& logits) const { return tp().size() > 1 && logits.size(-1) < config().vocab_size; }

  void take_parameters(int64_t seed) {
    const py::gil_scoped_acquire gil;
    const auto values =
        network_
            .attr("prepare")(layers().first_layer, layers().layers, py::cast(context().torch_device()), hidden_dtype())
            .cast<std::map<std::string, Tensor>>();
    for (Parameter& parameter : parameters()) {
      const Tensor& value = values.at(parameter.spec.name);
      if (value.sizes() != parameter.value.sizes()) {
        throw ConfigError(fmt::format("parameter {} of {} has another shape on this rank than the model's config",
                                      parameter.spec.name, config().architecture));
      }
      parameter.value = value;
    }
    seed_ = stable_hash(fmt::format("{} {}", seed, layers().first_layer));
  }

  // Ranks construct their modules by themselves, perhaps without a seed.
  void share_values() {
    const at::NoGradGuard no_grad;
    for (Parameter& parameter : parameters()) {
      for (const GroupKind kind : parameter.spec.replicated_over) {
        context().group(kind).broadcast(parameter.value, 0).wait();
      }
    }
  }

  // Random numbers of a micro-batch do not depend on the rank that computes it, nor on the steps before it: a resumed
  // run draws the same, also under another layout.
  void seed_generators(const BatchDraws& draws) const {
    const uint64_t value = stable_hash(fmt::format("{} {} {}", seed_, draws.step, draws.first_row));
    const auto seed = [&](c10::Device device) {
      at::Generator generator = at::globalContext().defaultGenerator(device);
      const std::lock_guard lock(generator.mutex());
      generator.set_current_seed(value);
    };
    seed(c10::Device(c10::kCPU));
    if (!context().torch_device().is_cpu()) seed(context().torch_device());
  }

  Tensor run_parts(const Tensor& x, const MicroBatch& batch, bool trains) const {
    const py::gil_scoped_acquire gil;
    py::dict more;
    if (batch.position_ids.defined()) more["position_ids"] = on_device(batch.position_ids);
    if (!batch.cu_seqlens.empty()) more["cu_seqlens"] = batch.cu_seqlens;
    return network_.attr("run")(layers().first_layer, layers().layers, x, more, trains).cast<Tensor>();
  }

  Tensor losses(const Tensor& logits_bsv, const Tensor& labels_bs, bool trains) const {
    const CrossEntropyOptions options{.vocabulary = config().vocab_size,
                                      .label_smoothing = trains ? options_.label_smoothing_factor : 0,
                                      .z_loss = trains ? options_.z_loss_coeff : 0};
    return cross_entropy(logits_bsv, labels_bs, options, is_split(logits_bsv) ? vocab_share(tp()) : VocabShare{});
  }

  // Returns this rank's part of logits that are whole on every rank.
  Tensor columns_of_rank(const Tensor& logits) const {
    if (tp().size() == 1 || is_split(logits)) return logits;
    const int64_t columns = (logits.size(-1) + tp().size() - 1) / tp().size();
    const int64_t first = std::min(tp().rank() * columns, logits.size(-1));
    const Tensor own = logits.narrow(-1, first, std::min(columns, logits.size(-1) - first));
    return at::constant_pad_nd(own, {0, columns - own.size(-1)});
  }

  const py::object& network_;
  ModelOptions options_;
  uint64_t seed_ = 0;
};

// Settings of a model that only models of families have, except those of the loss.
void check_settings(const TrainingArguments& given) {
  TrainingArguments plain = given;
  plain.model_options = {};
  plain.model_options.label_smoothing_factor = given.model_options.label_smoothing_factor;
  plain.model_options.z_loss_coeff = given.model_options.z_loss_coeff;
  plain.model_options.sequence_parallel = given.model_options.sequence_parallel;
  plain.job.context_parallel_size = 1;
  plain.job.expert_model_parallel_size = 1;
  plain.finetuning = {};
  plain.preference = {};
  if (!given.preference.learns_pairs()) plain.preference.stage = given.preference.stage;  // pt or sft
  plain.model = {};
  plain.evaluation.sample_prompts.clear();
  for (const Argument* each : all_arguments()) {
    const std::string text = argument_text(*each, given), allowed = argument_text(*each, plain);
    if (text == allowed) continue;
    throw ConfigError(fmt::format("{} is {}, but model is a module of Python, which computes itself; must be {}",
                                  each->name, text, allowed));
  }
}

// Distributes |parts| over |stages| in order, as evenly as possible: "E,t*3|t*2,L" (core/schedule/layer_layout.h).
std::string even_layout(int64_t parts, int64_t stages) {
  std::string layout = "E,";
  for (int64_t i = 0; i < stages; ++i) {
    layout += fmt::format("{}t*{}", i > 0 ? "|" : "", parts / stages + (i < parts % stages ? 1 : 0));
  }
  return layout + ",L";
}

}  // namespace

void use_module(const py::object& network, TrainingArguments* arguments) {
  check_settings(*arguments);
  const int64_t stages =
      arguments->job.pipeline_model_parallel_size * arguments->job.virtual_pipeline_model_parallel_size;
  const bool has_length = arguments->data.seq_length > 0 || arguments->data.cutoff_len > 0;
  arguments->model.config =
      network.attr("describe")(arguments->job.tensor_model_parallel_size, stages, has_length, arguments->data.packing)
          .cast<std::string>();
  if (stages == 1) return;
  // What parts pass to each other may have any shape.
  arguments->pipeline.executor.variable_seq_lengths = true;
  if (arguments->pipeline.layout.empty()) {
    arguments->pipeline.layout = even_layout(static_cast<int64_t>(py::len(network.attr("parts"))), stages);
  }
}

ModelProvider module_provider(const py::object& network) {
  return [&network](const ModelConfig& config, const ModelArgs& args, ParallelContext& job) {
    return VirtualModels(config, args, job,
                         [&network](const ModelConfig& of_stage, const ModelArgs& stage_args, const StageLayers& layers,
                                    ParallelContext& context) {
                           return std::make_unique<ModuleChunk>(network, of_stage, stage_args, layers, context);
                         });
  };
}

}  // namespace concord
