// Megatron's functional entry: with its own data set, model, forward step and metrics.
//
//   pretrain --model_config config.json --output_dir out --max_steps 20       one process; concord launch for a job
//
// The data counts upwards from a start that differs from sample to sample; the loss is the focal loss (Lin et al.
// 2017), in which tokens that the model knows count less. Arguments: --focal_gamma and those of `concord train`.
#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstdio>
#include <exception>
#include <memory>
#include <string>
#include <vector>

#include "core/config_error.h"
#include "core/mesh/job_environment.h"
#include "trainer/pretrain.h"

namespace {

using namespace concord;

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

Datasets dataset_provider(const TrainingArguments&) {
  return {std::make_unique<Counting>(4096, 32, 100), std::make_unique<Counting>(64, 32, 100)};
}

VirtualModels model_provider(const ModelConfig& config, const ModelArgs& args, ParallelContext& job) {
  if (job.rank() == 0)
    std::printf("pretrain: a %s of %lld layers\n", config.model_type.c_str(),
                static_cast<long long>(config.num_hidden_layers));
  return AutoModel::from_config(config, args, job);
}

double focal_gamma = 1;

void extra_args_provider(ExtraArguments& extra) {
  extra.add("focal_gamma", &focal_gamma, "exponent of the focal loss; 0: cross-entropy");
}

// (1 - p)^gamma * -log p of each token, with -log p the loss that the model gives.
at::Tensor forward_step(ModelChunk& chunk, const at::Tensor& hidden, const MicroBatch& batch) {
  const at::Tensor output = chunk.forward(hidden, batch);
  if (!chunk.is_last()) return output;
  return output.mul(output.neg().exp().neg().add(1).clamp_min(1e-6).pow(focal_gamma));
}

// The shares of tokens and of whole samples that the model ranks first, in every evaluation.
NamedValues compute_metrics(const std::vector<PredictedSample>& samples) {
  double right = 0, tokens = 0, whole = 0;
  for (const PredictedSample& sample : samples) {
    for (size_t t = 0; t < sample.labels.size(); ++t) right += sample.labels[t] == sample.predictions[t];
    tokens += static_cast<double>(sample.labels.size());
    whole += sample.labels == sample.predictions;
  }
  return {{"right_tokens", right / tokens}, {"right_samples", whole / static_cast<double>(samples.size())}};
}

// Of what forward_step returned for the last batch: the mean loss of the first token of a sample, which has none before
// it, and of the others. What fills up a batch has no loss, and may be shorter.
NamedValues process_non_loss_data(const std::vector<at::Tensor>& losses, int64_t) {
  double first = 0, firsts = 0, later = 0, laters = 0;
  for (const at::Tensor& micro_batch : losses) {
    const at::Tensor column = micro_batch.select(1, 0);
    first += column.sum().item<double>();
    firsts += static_cast<double>(column.count_nonzero().item<int64_t>());
    later += micro_batch.sum().item<double>() - column.sum().item<double>();
    laters += static_cast<double>(micro_batch.count_nonzero().item<int64_t>() - column.count_nonzero().item<int64_t>());
  }
  return {{"first_token_loss", first / std::max(firsts, 1.0)}, {"later_token_loss", later / std::max(laters, 1.0)}};
}

// What this process hears of the job; one rank speaks for all.
InprocessHooks hooks() {
  if (read_job_environment().rank != 0) return {};
  return {.initialized = [](ParallelContext& job) { std::printf("pretrain: %d ranks have met\n", int(job.world())); },
          .aborted = [](const std::exception& error) { std::printf("pretrain: aborted: %s\n", error.what()); },
          .finalized = [](const TrainOutput& output) { std::printf("pretrain: %s\n", output.reason.c_str()); }};
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const std::vector<std::string> words(argv + 1, argv + argc);
    const TrainOutput output =
        pretrain(words, {.train_valid_test_datasets_provider = dataset_provider,
                         .model_provider = model_provider,
                         .model_type = ModelType::encoder_or_decoder,
                         .forward_step_func = forward_step,
                         .process_non_loss_data_func = process_non_loss_data,
                         .extra_args_provider = extra_args_provider,
                         .args_defaults = {{"train_data", "counting"}, {"eval_data", "counting"}},  // made above
                         .inprocess = hooks(),
                         .compute_metrics = compute_metrics});
    std::printf("pretrain: mean loss %.4f over %lld steps\n", output.training_loss,
                static_cast<long long>(output.global_step));
    return 0;
  } catch (const ConfigError& error) {
    std::fprintf(stderr, "pretrain: %s\n", error.what());
    return 2;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "pretrain: %s\n", error.what());
    return 1;
  }
}
