#include "trainer/first_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "core/base/config_error.h"
#include "core/base/files/file_lock.h"
#include "trainer/checkpoint/output_folder.h"
#include "trainer/data/build/synthetic.h"
#include "trainer/report/files.h"

namespace concord {
namespace {

namespace fs = std::filesystem;

constexpr const char* kFolderOfInput = "input";
constexpr const char* kDefaultFolder = "first-run";
constexpr const char* kLock = ".concord-input.lock";
constexpr int64_t kTokens = 2'000'000;
constexpr uint64_t kCorpusSeed = 20;
constexpr int64_t kProcesses = 2;
constexpr int64_t kGlobalBatch = 32;

constexpr const char* kModel = R"({{
  "architectures": ["Qwen2ForCausalLM"],
  "model_type": "qwen2",
  "vocab_size": {},
  "hidden_size": 64,
  "intermediate_size": 160,
  "num_hidden_layers": 2,
  "num_attention_heads": 4,
  "num_key_value_heads": 2,
  "max_position_embeddings": 128,
  "rms_norm_eps": 1e-06,
  "rope_theta": 10000.0,
  "hidden_act": "silu",
  "initializer_range": 0.02,
  "tie_word_embeddings": true,
  "use_sliding_window": false,
  "torch_dtype": "float32"
}}
)";

bool is_given(const CommandLine& line, const std::string& name) {
  return std::find(line.given.begin(), line.given.end(), name) != line.given.end();
}

// The same global batch, and therefore the same losses, for every layout.
int64_t rows_of_micro_batch(const TrainingArguments& a, int64_t world) {
  const int64_t data_parallel =
      world / (a.job.tensor_model_parallel_size * a.job.pipeline_model_parallel_size * a.job.context_parallel_size);
  return std::max<int64_t>(1, kGlobalBatch / std::max<int64_t>(1, data_parallel) / a.data.accumulation);
}

}  // namespace

bool is_first_run(const CommandLine& line) {
  const TrainingArguments& a = line.arguments;
  const bool has_model = is_given(line, "model") || is_given(line, "model_config") || !a.model.config.empty();
  const bool has_data = is_given(line, "train_data") || !a.data.blend.empty() || !a.dataset.name.empty();
  return line.config.empty() && !has_model && !has_data;
}

void complete_first_run(CommandLine* line) {
  TrainingArguments& a = line->arguments;
  const auto complete = [&](const std::string& name, auto& member, auto value) {
    if (!is_given(*line, name)) member = value;
  };
  // The default folder belongs to this run; a folder that the user names is treated like any other run's.
  if (!is_given(*line, "output_dir")) {
    a.output.dir = kDefaultFolder;
    complete("overwrite_output_dir", a.output.overwrite, true);
  }
  complete("seq_length", a.data.seq_length, 64);
  if (line->arguments.launch.nproc == 0) line->arguments.launch.nproc = kProcesses;
  complete("per_device_train_batch_size", a.data.micro_batch_size,
           rows_of_micro_batch(a, line->arguments.launch.nproc * line->arguments.launch.nnodes));
  complete("max_steps", a.steps.max_steps, 400);
  complete("learning_rate", a.lr.learning_rate, 4e-3);
  complete("lr_scheduler_type", a.lr.lr_scheduler_type, "cosine");
  complete("warmup_steps", a.lr.warmup_steps, is_given(*line, "warmup_ratio") ? 0 : 20);
  complete("adam_beta2", a.optimizer.adam_beta2, 0.98);
  complete("weight_decay", a.lr.weight_decay, 0.01);
  complete("logging_steps", a.logging.steps, a.steps.max_steps < 400 ? 0 : 20);  // short runs: the default
  complete("save_strategy", a.saving.strategy, IntervalStrategy::steps);
  complete("save_steps", a.saving.steps, 200);
  const fs::path input = fs::path(a.output.dir) / kFolderOfInput;
  a.model.config = (input / "config.json").string();
  a.data.path = (input / "corpus").string();
}

FirstRun write_first_run(TrainingArguments* arguments, int64_t world) {
  const fs::path input = fs::path(arguments->output.dir) / kFolderOfInput;
  std::error_code error;
  fs::create_directories(input.parent_path(), error);
  if (error) throw ConfigError(fmt::format("cannot create output_dir '{}': {}", input.string(), error.message()));
  // Launchers on several machines write the same bytes into the folder that they share. Files get their names when they
  // are complete, so one that another launcher's ranks have open already is not changed.
  const FileLock one_at_a_time((input.parent_path() / kLock).string());
  if (fs::exists(input, error) && !has_run_mark(arguments->output.dir)) {
    throw ConfigError(
        fmt::format("'{}' already exists and was not written by Concord; choose another output_dir", input.string()));
  }
  fs::create_directories(input, error);
  if (error) throw ConfigError(fmt::format("cannot create output_dir '{}': {}", input.string(), error.message()));
  leave_run_mark(arguments->output.dir);
  const SyntheticCorpus corpus = write_synthetic_corpus(arguments->data.path, kCorpusSeed, kTokens);
  replace_file(arguments->model.config, fmt::format(kModel, corpus.vocab_size));
  arguments->report.loss_floor = corpus.entropy_rate;
  const fs::path config = input / "config.yaml";
  replace_file(config.string(), to_yaml(*arguments));
  const int64_t tensor = arguments->job.tensor_model_parallel_size,
                pipeline = arguments->job.pipeline_model_parallel_size;
  const int64_t context = arguments->job.context_parallel_size;
  return {config.string(),
          fmt::format("Training a small model on generated text in which each token depends on the previous one.\n"
                      "  {} processes: data parallel {} x tensor {} x pipeline {} x context {}\n"
                      "  initial loss     {:.4f}   (all {} tokens equally likely)\n"
                      "  without context  {:.4f}   (token frequencies only)\n"
                      "  floor            {:.4f}   (entropy of the corpus; the lowest achievable loss)\n",
                      world, world / (tensor * pipeline * context), tensor, pipeline, context,
                      std::log(static_cast<double>(corpus.vocab_size)), corpus.vocab_size, corpus.unigram_entropy,
                      corpus.entropy_rate)};
}

}  // namespace concord
