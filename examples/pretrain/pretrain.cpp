// Megatron's functional entry: with its own data set, model, forward step and metrics.
//
//   pretrain --model_config config.json --output_dir out --max_steps 20       one process; concord launch for a job
//
// The data counts upwards from a start that differs from sample to sample; the loss is the focal loss (Lin et al.
// 2017), in which tokens that the model knows already count less. Arguments are those of `concord train`.
#include <ATen/core/Tensor.h>

#include <cstdio>
#include <exception>
#include <memory>
#include <string>
#include <vector>

#include "core/config_error.h"
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

// (1 - p) * -log p of each token, with -log p the loss that the model gives.
at::Tensor forward_step(ModelChunk& chunk, const at::Tensor& hidden, const MicroBatch& batch) {
  const at::Tensor output = chunk.forward(hidden, batch);
  if (!chunk.is_last()) return output;
  return output.mul(output.neg().exp().neg().add(1));
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

}  // namespace

int main(int argc, char** argv) {
  try {
    const std::vector<std::string> words(argv + 1, argv + argc);
    TrainingArguments arguments = parse_command_line(words).arguments;
    arguments.data.path = arguments.evaluation.data = "counting";  // its name; it is made above
    const TrainOutput output = pretrain(arguments, dataset_provider, model_provider, forward_step, compute_metrics);
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
