// Megatron's functional entry point with custom data, network, loss, metrics, arguments and hooks.
//
//   pretrain --model_config config.json --output_dir out --max_steps 20       one process; concord launch for a job
//   pretrain --help                                                           its arguments: those of `concord train`
//                                                                             and --focal_gamma
//
// The data counts upwards from a start that differs from sample to sample. The network has no attention: a layer sees
// a token and the previous one. Its sizes come from config.json (vocab_size, hidden_size, intermediate_size,
// num_hidden_layers). The loss is the focal loss (Lin et al. 2017), in which tokens that the model predicts well
// count less.
#include <ATen/ATen.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <exception>
#include <memory>
#include <string>
#include <vector>

#include "core/base/config_error.h"
#include "core/mesh/job_environment.h"
#include "core/mesh/store/rendezvous.h"
#include "core/models/parameter_plan.h"
#include "trainer/pretrain.h"

namespace {

using namespace concord;

// ------------------------------------------------------------------------------------------------------------- data

class Counting : public SampleSource {
 public:
  Counting(int64_t samples, int64_t length, int64_t vocabulary)
      : samples_(samples), length_(length), vocabulary_(vocabulary) {}

  int64_t size() const override { return samples_; }
  int64_t length(int64_t) const override { return length_; }
  const std::string& name() const override { return name_; }
  Sample at(int64_t index) const override {
    Sample sample;
    for (int64_t t = 0; t < length_; ++t) {
      sample.ids.push_back((index * 17 + t) % vocabulary_);
      sample.labels.push_back((index * 17 + t + 1) % vocabulary_);
    }
    return sample;
  }

 private:
  int64_t samples_, length_, vocabulary_;
  std::string name_ = "counting";
};

constexpr int64_t kLength = 32;

// Every row has kLength tokens, including those that pad a batch.
TokenBatch collate(const std::vector<Sample>& samples, int64_t rows) {
  const auto tokens = static_cast<size_t>(rows * kLength);
  TokenBatch batch{.rows = rows,
                   .columns = kLength,
                   .ids = std::vector<int64_t>(tokens),
                   .labels = std::vector<int64_t>(tokens, kIgnoredToken),
                   .position_ids = {},
                   .cu_seqlens = {}};
  for (size_t i = 0; i < samples.size(); ++i) {
    std::ranges::copy(samples[i].ids, batch.ids.begin() + static_cast<int64_t>(i) * kLength);
    std::ranges::copy(samples[i].labels, batch.labels.begin() + static_cast<int64_t>(i) * kLength);
  }
  return batch;
}

Datasets datasets_provider(const TrainingArguments&) {
  return {.train = std::make_unique<Counting>(4096, kLength, 100),
          .eval = std::make_unique<Counting>(64, kLength, 100),
          .collator = collate};
}

// ------------------------------------------------------------------------------------------------------------ model

// x + out(gelu(in([x, the previous token]))) in every layer. Replicated over data parallelism, split into stages by
// pipelines; rejects other splits.
class Neighbours : public ModelChunk {
 public:
  Neighbours(const ModelConfig& config, const ModelArgs& args, const StageLayers& layers, ParallelContext& job)
      : ModelChunk(config, args, layers, job, plan(config, layers)) {
    if (job.layout().tp() > 1 || job.layout().cp() > 1) {
      throw ConfigError(
          "pretrain: this model cannot be split by tensor_model_parallel_size or context_parallel_size; remove them");
    }
  }

  PassOutput forward(const at::Tensor& hidden, const MicroBatch& batch, const PassOptions& options) override {
    if (!batch.cu_seqlens.empty()) throw ConfigError("pretrain: this model has no packed sequences");
    const at::Tensor ids_sb = batch.input_ids.t().to(context().torch_device());
    at::Tensor x_sbh = is_first() ? at::embedding(parameter("embedding.weight").used(), ids_sb) : hidden;
    for (int64_t i = 0; i < layers().layers; ++i) {
      const std::string name = "layers." + std::to_string(layers().first_layer + i);
      const at::Tensor before_sbh = at::constant_pad_nd(x_sbh.narrow(0, 0, x_sbh.size(0) - 1), {0, 0, 0, 0, 1, 0});
      const at::Tensor both = at::cat({x_sbh, before_sbh}, -1);
      x_sbh = x_sbh + at::linear(at::gelu(at::linear(both, parameter(name + ".in.weight").used())),
                                 parameter(name + ".out.weight").used());
    }
    if (!is_last()) return {x_sbh};
    const at::Tensor logits_sbv = at::linear(x_sbh, parameter("output.weight").used());
    options.observe("logits", logits_sbv);
    return {losses(logits_sbv, batch)};
  }

 private:
  static at::Tensor losses(const at::Tensor& logits_sbv, const MicroBatch& batch) {
    const at::Tensor labels_sb = batch.labels.t().to(logits_sbv.device());
    const at::Tensor counts_sb = labels_sb.ne(kIgnoredLabel);
    const at::Tensor logp_sbv = at::log_softmax(logits_sbv, -1, at::kFloat);
    const at::Tensor logp_sb = logp_sbv.gather(-1, labels_sb.clamp_min(0).unsqueeze(-1)).squeeze(-1);
    return (-logp_sb * counts_sb).t().contiguous();
  }

  // Returns names, shapes and initialisation; every rank of a stage holds all of them.
  static std::vector<ParameterPlan> plan(const ModelConfig& config, const StageLayers& layers) {
    std::vector<ParameterPlan> plans;
    const auto add = [&](const std::string& name, int64_t rows, int64_t columns, double scale) {
      const ShardSpec spec{
          .name = name, .dims = {{rows}, {columns}}, .replicated_over = {GroupKind::tp, GroupKind::dp_cp}};
      plans.push_back({.spec = spec, .init = normal_init(scale / std::sqrt(static_cast<double>(columns)))});
    };
    const int64_t size = config.hidden_size;
    if (layers.embedding) add("embedding.weight", config.vocab_size, size, 1);
    for (int64_t i = 0; i < layers.layers; ++i) {
      const std::string name = "layers." + std::to_string(layers.first_layer + i);
      add(name + ".in.weight", config.intermediate_size, 2 * size, 1);
      add(name + ".out.weight", size, config.intermediate_size, 0.5);
    }
    if (layers.loss) add("output.weight", config.vocab_size, size, 1);
    return plans;
  }
};

VirtualModels model_provider(const ModelConfig& config, const ModelArgs& args, ParallelContext& job) {
  VirtualModels model(config, args, job, [](auto&... of_stage) { return std::make_unique<Neighbours>(of_stage...); });
  for (size_t i = 0; i < model.size(); ++i) model[i].initialise();
  return model;
}

// ----------------------------------------------------------------------------------------------- loss and evaluation

double focal_gamma = 1;

void extra_args_provider(ExtraArguments& extra) {
  extra.add("focal_gamma", &focal_gamma, "exponent of the focal loss; 0: cross-entropy");
}

// Returns (1 - p)^gamma * -log p for each token, where -log p is the model's loss.
PassOutput forward_step(ModelChunk& chunk, const at::Tensor& hidden, const MicroBatch& batch,
                        const PassOptions& options) {
  PassOutput output = chunk.forward(hidden, batch, options);
  if (!chunk.is_last()) return output;
  const at::Tensor p = output.value.neg().exp();
  output.value = output.value.mul(p.neg().add(1).clamp_min(1e-6).pow(focal_gamma));
  return output;
}

// Returns the fractions of tokens and of whole samples that the model predicts correctly, in every evaluation.
NamedValues compute_metrics(const std::vector<PredictedSample>& samples) {
  double right = 0, tokens = 0, whole = 0;
  for (const PredictedSample& sample : samples) {
    for (size_t t = 0; t < sample.labels.size(); ++t) right += sample.labels[t] == sample.predictions[t];
    tokens += static_cast<double>(sample.labels.size());
    whole += sample.labels == sample.predictions;
  }
  return {{"right_tokens", right / tokens}, {"right_samples", whole / static_cast<double>(samples.size())}};
}

// Returns the mean loss of the first token of a sample, which has no predecessor, and of the others, from the output of
// forward_step for the last batch. Rows that pad the batch have no loss.
NamedValues process_non_loss_data(const std::vector<at::Tensor>& losses, int64_t) {
  const at::Tensor all = at::cat(losses), rows = all.index({all.sum(1).ne(0)});
  return {{"first_token_loss", rows.select(1, 0).mean().item<double>()},
          {"later_token_loss", rows.narrow(1, 1, kLength - 1).mean().item<double>()}};
}

// -------------------------------------------------------------------------------------------------------------- job

// Hooks of rank 0, which prints for all ranks.
InprocessHooks hooks(int64_t rank) {
  if (rank != 0) return {};
  return {.initialized = [](ParallelContext& job) { std::printf("pretrain: %d ranks have met\n", int(job.world())); },
          .aborted = [](const std::exception& error) { std::printf("pretrain: aborted: %s\n", error.what()); },
          .finalized = [](const TrainOutput& output) { std::printf("pretrain: %s\n", output.reason.c_str()); }};
}

// A store that this program uses too: all ranks count themselves.
std::shared_ptr<Store> shared_store(const JobEnvironment& environment) {
  const std::shared_ptr<Store> store = connect_store(environment, std::chrono::minutes(1));
  store->add("pretrain/ranks", 1);
  return store;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const std::vector<std::string> args(argv + 1, argv + argc);
    const JobEnvironment environment = read_job_environment();
    const std::shared_ptr<Store> store = shared_store(environment);
    const TrainOutput output = pretrain(args, {.train_valid_test_datasets_provider = datasets_provider,
                                               .model_provider = model_provider,
                                               .model_type = ModelType::encoder_or_decoder,
                                               .forward_step_func = forward_step,
                                               .process_non_loss_data_func = process_non_loss_data,
                                               .extra_args_provider = extra_args_provider,
                                               .args_defaults = {{"eval_steps", "10"}},
                                               .store = store,
                                               .inprocess = hooks(environment.rank),
                                               .compute_metrics = compute_metrics});
    if (environment.rank == 0 && output.global_step > 0) {
      std::printf("pretrain: mean loss %.4f over %lld steps on %lld ranks\n", output.training_loss,
                  static_cast<long long>(output.global_step), static_cast<long long>(store->add("pretrain/ranks", 0)));
    }
    return 0;
  } catch (const ConfigError& error) {
    std::fprintf(stderr, "pretrain: %s\n", error.what());
    return 2;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "pretrain: %s\n", error.what());
    return 1;
  }
}
