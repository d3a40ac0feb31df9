// Configurations of other programs, as people paste them: what can be taken is, the rest is named with what to write.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <random>
#include <set>

#include "core/base/config_error.h"
#include "tests/temporary_folder.h"
#include "trainer/arguments/arguments.h"
#include "trainer/arguments/table.h"
#include "trainer/arguments/toml.h"

namespace concord {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

// The fields of transformers.TrainingArguments, of version 5 and those that 4 had, with the paths that scripts have
// beside them.
constexpr const char* kHuggingFace = R"(model_name_or_path: models/qwen2
train_data: data/train.jsonl
output_dir: out
do_train: true
do_eval: false
do_predict: false
eval_strategy: 'no'
prediction_loss_only: false
per_device_train_batch_size: 4
per_device_eval_batch_size: 8
gradient_accumulation_steps: 2
eval_accumulation_steps: null
eval_delay: 0
torch_empty_cache_steps: null
learning_rate: 5.0e-05
weight_decay: 0.01
adam_beta1: 0.9
adam_beta2: 0.999
adam_epsilon: 1.0e-08
max_grad_norm: 1.0
num_train_epochs: 3.0
max_steps: -1
lr_scheduler_type: cosine
lr_scheduler_kwargs: {}
warmup_ratio: 0.0
warmup_steps: 10
log_level: passive
log_level_replica: warning
log_on_each_node: true
logging_dir: out/runs/Nov15_host
logging_strategy: steps
logging_first_step: false
logging_steps: 10
logging_nan_inf_filter: true
save_strategy: steps
save_steps: 500
save_total_limit: null
save_safetensors: true
save_on_each_node: false
save_only_model: true
restore_callback_states_from_checkpoint: false
use_cpu: false
use_mps_device: false
seed: 42
data_seed: null
bf16: true
fp16: false
fp16_opt_level: O1
half_precision_backend: auto
bf16_full_eval: false
fp16_full_eval: false
tf32: true
local_rank: 0
ddp_backend: nccl
debug: []
dataloader_drop_last: false
eval_steps: null
dataloader_num_workers: 4
dataloader_prefetch_factor: null
run_name: out
disable_tqdm: false
remove_unused_columns: true
label_names: null
load_best_model_at_end: false
metric_for_best_model: null
greater_is_better: null
ignore_data_skip: false
fsdp: []
fsdp_config: {min_num_params: 0, xla: false, xla_fsdp_v2: false, xla_fsdp_grad_ckpt: false}
accelerator_config: {split_batches: false, dispatch_batches: null, even_batches: true, use_seedable_sampler: true}
deepspeed: null
label_smoothing_factor: 0.0
optim: adamw_torch
optim_args: null
group_by_length: false
length_column_name: length
report_to: [tensorboard]
ddp_find_unused_parameters: null
ddp_bucket_cap_mb: null
ddp_broadcast_buffers: null
dataloader_pin_memory: true
dataloader_persistent_workers: false
skip_memory_metrics: true
push_to_hub: false
resume_from_checkpoint: null
hub_model_id: null
hub_strategy: every_save
hub_token: <HUB_TOKEN>
hub_private_repo: null
hub_always_push: false
gradient_checkpointing: false
gradient_checkpointing_kwargs: null
include_for_metrics: []
eval_do_concat_batches: true
auto_find_batch_size: false
full_determinism: false
torch_compile: false
torch_compile_backend: null
torch_compile_mode: null
include_num_input_tokens_seen: false
neftune_noise_alpha: null
optim_target_modules: null
batch_eval_metrics: false
eval_on_start: false
use_liger_kernel: false
eval_use_gather_object: false
average_tokens_across_devices: true
ddp_timeout: 1800
liger_kernel_config: null
use_cache: false
project: "huggingface"
trackio_space_id: null
trackio_bucket_id: null
trackio_static_space_id: null
enable_jit_checkpoint: false
hub_revision: null
parallelism_config: null
dataloader_multiprocessing_context: null
dataloader_in_order: true
train_sampling_strategy: "random"
ddp_static_graph: null
)";

constexpr const char* kLlamaFactory = R"(### model
model_name_or_path: models/llama3-8b
trust_remote_code: true

### method
stage: sft
do_train: true
finetuning_type: full
deepspeed: examples/deepspeed/ds_z3_config.json  # choices: [ds_z0_config.json, ds_z2_config.json]

### dataset
dataset: identity,alpaca_en_demo
template: llama3
cutoff_len: 2048
max_samples: 1000
overwrite_cache: true
preprocessing_num_workers: 16

### output
output_dir: saves/llama3-8b/full/sft
logging_steps: 10
save_steps: 500
plot_loss: true
overwrite_output_dir: true

### train
per_device_train_batch_size: 1
gradient_accumulation_steps: 2
learning_rate: 1.0e-5
num_train_epochs: 3.0
lr_scheduler_type: cosine
warmup_ratio: 0.1
bf16: true
ddp_timeout: 180000000

### eval
val_size: 0.1
per_device_eval_batch_size: 1
eval_strategy: steps
eval_steps: 500
)";

// As Megatron's YAML is laid out, and the values of its scripts for a model of 1.3 billion parameters.
constexpr const char* kMegatron = R"(language_model:
  num_layers: 24
  hidden_size: 2048
  num_attention_heads: 16
  hidden_dropout: 0.0
  normalization: RMSNorm
  bias_swiglu_fusion: True
  recompute_granularity: null
  fp8: null
model_parallel:
  tensor_model_parallel_size: 2
  pipeline_model_parallel_size: 1
  virtual_pipeline_model_parallel_size: null
  sequence_parallel: True
  expert_model_parallel_size: 1
  bf16: True
  gradient_accumulation_fusion: True
  tp_comm_overlap: False
micro_batch_size: 2
global_batch_size: 128
rampup_batch_size: null
transformer_impl: transformer_engine
seed: 1234
optimizer: adam
lr: 2.5e-4
lr_decay_style: cosine
lr_decay_iters: null
lr_warmup_iters: 100
min_lr: 2.5e-5
weight_decay: 0.1
clip_grad: 1.0
adam_beta1: 0.9
adam_beta2: 0.95
adam_eps: 1.e-08
save: checkpoints
save_interval: 20000
load: null
train_iters: 500000
train_samples: null
eval_iters: 32
eval_interval: 2000
data_path: data/corpus_text_document
train_data_path: null
split: '99,1,0'
seq_length: 4096
num_workers: 2
tokenizer_type: GPTSentencePieceTokenizer
distributed_backend: nccl
distributed_timeout_minutes: 10
use_distributed_optimizer: True
overlap_grad_reduce: True
log_interval: 100
wandb_project: ''
)";

constexpr const char* kTorchtitan = R"([job]
dump_folder = "./outputs"
description = "Llama 3 8B training"

[profiling]
enable_profiling = true
profile_freq = 100

[metrics]
log_freq = 10
enable_tensorboard = true

[model]
name = "llama3"
flavor = "8B"
hf_assets_path = "./assets/hf/Llama-3.1-8B"

[optimizer]
name = "AdamW"
lr = 3e-4
eps = 1e-8

[lr_scheduler]
warmup_steps = 200  # lr scheduler warm up

[training]
local_batch_size = 1
seq_len = 8192
max_norm = 1.0  # grad norm clipping
steps = 1000
dataset = "c4"

[parallelism]
data_parallel_replicate_degree = 1
data_parallel_shard_degree = -1
tensor_parallel_degree = 2
pipeline_parallel_degree = 1
context_parallel_degree = 1

[checkpoint]
enable = false
folder = "checkpoint"
interval = 500
async_mode = "disabled"  # ["disabled", "async", "async_with_pinned_mem"]

[compile]
enable = false
components = ["model", "loss"]

[activation_checkpoint]
mode = "selective"  # ["none", "selective", "full"]
selective_ac_option = "op"

[validation]
enable = false
dataset = "c4_validation"
freq = 500
)";

class ForeignConfig : public ::testing::Test {
 protected:
  // |text| in a file with the ending |end|.
  std::string write(const std::string& text, const std::string& end = ".yaml") const {
    const std::string path = folder_.path() + "/config" + end;
    std::ofstream(path) << text;
    return path;
  }
  CommandLine read(const std::string& text, const std::string& end = ".yaml") const {
    return parse_command_line(std::vector<std::string>{"--config", write(text, end)});
  }
  std::vector<std::string> errors(const std::string& text, const std::string& end = ".yaml") const {
    try {
      read(text, end);
    } catch (const ConfigError& error) {
      return lines_of(error.what());
    }
    return {};
  }
  // Without the lines that begin with one of |names|.
  static std::string without(const std::string& text, const std::set<std::string>& names) {
    std::string rest;
    for (const std::string& line : lines_of(text)) {
      const size_t begin = line.find_first_not_of(' ');
      const size_t end = line.find_first_of(":= ", begin == std::string::npos ? 0 : begin);
      const bool is_named = begin != std::string::npos && names.contains(line.substr(begin, end - begin));
      if (!is_named) rest += line + "\n";
    }
    return rest;
  }
  static std::vector<std::string> lines_of(const std::string& text) {
    std::vector<std::string> lines;
    std::istringstream stream(text);
    for (std::string line; std::getline(stream, line);) lines.push_back(line);
    return lines;
  }

  tests::TemporaryFolder folder_;
};

// The names that the errors are about, each of which says what to do.
std::set<std::string> refused_names(const std::vector<std::string>& errors) {
  std::set<std::string> names;
  for (const std::string& error : errors) {
    EXPECT_THAT(error, Not(HasSubstr("unknown argument")));
    const size_t is = error.find(" is ");
    if (is == std::string::npos) continue;  // "3 errors in the arguments:"
    EXPECT_THAT(error, HasSubstr("which Concord does not support: ")) << "what to do instead";
    const size_t begin = error.rfind(' ', is - 1) + 1;
    names.insert(error.substr(begin, is - begin));
  }
  return names;
}

TEST_F(ForeignConfig, TheTrainingArgumentsOfHuggingFaceAreTaken) {
  const CommandLine line = read(kHuggingFace);
  const TrainingArguments& a = line.arguments;
  EXPECT_EQ(a.model.path, "models/qwen2");
  EXPECT_EQ(a.optimizer.optimizer, "adam");
  EXPECT_EQ(a.data.micro_batch_size, 4);
  EXPECT_EQ(a.lr.lr_scheduler_type, "cosine");
  EXPECT_EQ(a.evaluation.strategy, "no");
  EXPECT_TRUE(a.precision.bf16);
  EXPECT_LT(line.notes.size(), 12u) << "a line for each reason, not for each name";
  EXPECT_THAT(line.notes, ::testing::Contains(AllOf(HasSubstr("dataloader_pin_memory"), HasSubstr("have no effect"))));
  EXPECT_THAT(line.notes, ::testing::Contains(HasSubstr("do_train")));
}

TEST_F(ForeignConfig, OneOfLlamaFactoryIsTakenButForWhatIsNamed) {
  const std::set<std::string> refused = refused_names(errors(kLlamaFactory));
  EXPECT_EQ(refused, (std::set<std::string>{"deepspeed", "max_samples", "val_size"}));
  const TrainingArguments a = read(without(kLlamaFactory, refused)).arguments;
  EXPECT_EQ(a.model.path, "models/llama3-8b");
  EXPECT_EQ(a.data.cutoff_len, 2048);
  EXPECT_EQ(a.dataset.name, "identity,alpaca_en_demo");
  EXPECT_EQ(a.data.chat_template, "") << "the model's own";
  EXPECT_EQ(a.job.ddp_timeout, 180000000);
}

TEST_F(ForeignConfig, OneOfMegatronIsTakenButForWhatIsNamed) {
  const std::set<std::string> refused = refused_names(errors(kMegatron));
  EXPECT_EQ(refused, (std::set<std::string>{"num_layers", "hidden_size", "num_attention_heads", "normalization",
                                            "distributed_timeout_minutes"}));
  TrainingArguments a = read(without(kMegatron, refused) + "model_config: config.json\n").arguments;
  EXPECT_EQ(a.lr.learning_rate, 2.5e-4);
  EXPECT_EQ(a.steps.max_steps, 500000);
  EXPECT_EQ(a.data.path, "data/corpus_text_document");
  EXPECT_EQ(a.lr.warmup_steps, 100);
  EXPECT_EQ(a.optimizer.max_grad_norm, 1);
  EXPECT_EQ(a.output.dir, "checkpoints");
  EXPECT_EQ(a.logging.steps, 100);
  EXPECT_EQ(a.job.tensor_model_parallel_size, 2);
  EXPECT_TRUE(a.precision.bf16 && a.model_options.sequence_parallel);
  check_arguments(&a, 16);  // 8 of them data parallel
  EXPECT_EQ(a.data.accumulation, 8);
}

TEST_F(ForeignConfig, OneOfTorchtitanIsTakenButForWhatIsNamed) {
  const std::set<std::string> refused = refused_names(errors(kTorchtitan, ".toml"));
  EXPECT_EQ(refused, (std::set<std::string>{"model.name", "model.flavor", "training.dataset", "checkpoint.enable",
                                            "activation_checkpoint.mode"}));
  std::string rest = without(kTorchtitan, {"flavor", "dataset", "mode"});
  rest.replace(rest.find("name = \"llama3\"\n"), 16, "");
  rest.replace(rest.find("[checkpoint]\nenable = false\n"), 28, "[checkpoint]\n");
  const CommandLine line = read(rest, ".toml");
  EXPECT_EQ(line.arguments.lr.learning_rate, 3e-4);
  EXPECT_EQ(line.arguments.optimizer.optimizer, "adam");
  EXPECT_EQ(line.arguments.steps.max_steps, 1000);
  EXPECT_EQ(line.arguments.data.seq_length, 8192);
  EXPECT_EQ(line.arguments.lr.warmup_steps, 200);
  EXPECT_EQ(line.arguments.job.tensor_model_parallel_size, 2);
  EXPECT_EQ(line.arguments.saving.steps, 500);
  EXPECT_EQ(line.arguments.output.dir, "./outputs");
}

TEST_F(ForeignConfig, TheSameSectionsAreTakenFromYamlAndTheirNamesFromTheCommandLine) {
  EXPECT_EQ(read("training:\n  steps: 7\noptimizer:\n  lr: 1e-3\n").arguments.lr.learning_rate, 1e-3);
  const std::vector<std::string> words = {"--training.steps", "7", "--lr=2e-4", "--micro_batch_size", "3", "--packing"};
  const CommandLine line = parse_command_line(words);
  EXPECT_EQ(line.arguments.steps.max_steps, 7);
  EXPECT_EQ(line.arguments.lr.learning_rate, 2e-4);
  EXPECT_TRUE(line.arguments.data.packing);
  EXPECT_THAT(line.given, ElementsAre("max_steps", "learning_rate", "per_device_train_batch_size", "sequence_packing"));
}

TEST_F(ForeignConfig, AMistakeUnderAnotherNameIsToldUnderBoth) {
  EXPECT_THAT(errors("lr: fast\n"), ElementsAre(HasSubstr("lr (learning_rate) is 'fast', but must be a number >= 0")));
  EXPECT_THAT(errors("optim: adafactor\n"), ElementsAre(HasSubstr("must be one of: adam, lion, muon, sgd")));
  EXPECT_THAT(errors("lr: 1e-3\nlearning_rate: 1e-4\n"),
              ElementsAre(HasSubstr("'learning_rate' was already given as 'lr' in line 1")));
}

TEST_F(ForeignConfig, GlobalBatchSizeSaysHowManyMicroBatchesAStepHas) {
  const auto accumulation = [](int64_t global, int64_t given, int64_t world) {
    TrainingArguments a;
    a.model.path = a.data.path = "x";
    a.data.micro_batch_size = 2;
    a.job.tensor_model_parallel_size = 2;
    a.steps.global_batch_size = global;
    a.data.accumulation = given;
    check_arguments(&a, world);
    return a.data.accumulation;
  };
  EXPECT_EQ(accumulation(32, 1, 8), 4);
  EXPECT_EQ(accumulation(32, 4, 8), 4);
  EXPECT_EQ(accumulation(32, 1, 0), 1) << "until it is known how many processes there are";
  EXPECT_THROW(accumulation(32, 2, 8), ConfigError);
  EXPECT_THROW(accumulation(30, 1, 8), ConfigError);
  EXPECT_THROW(accumulation(4, 1, 8), ConfigError);
}

TEST_F(ForeignConfig, TomlThatIsNotReadIsRefusedWithItsLine) {
  for (const std::string bad : {"x", "[a", "a = ", "a = [1", "a = \"b", "a = {b = 1}", "a = \"\"\"b", "= 1",
                                "a = \"b\" c", "a = \"\\q\"", "[]", "a = [1 2]", "a = \x1b[2J"}) {
    try {
      parse_toml("\n" + bad + "\n", "x.toml");
      ADD_FAILURE() << bad;
    } catch (const ConfigError& error) {
      EXPECT_THAT(error.what(), HasSubstr("x.toml:2: "));
    }
  }
}

TEST_F(ForeignConfig, DamagedTomlIsReadOrRefusedAndNothingElse) {
  std::mt19937 random(11);
  for (int i = 0; i < 500; ++i) {
    std::string text = kTorchtitan;
    for (size_t changes = 1 + random() % 4; changes > 0; --changes) {
      const size_t at = random() % text.size();
      if (random() % 2 == 0) {
        text[at] = static_cast<char>(random());
      } else {
        text.erase(at, random() % 40);
      }
    }
    TrainingArguments arguments;
    try {
      read_yaml(text, "x.toml", &arguments);
    } catch (const ConfigError& error) {
      EXPECT_THAT(error.what(), HasSubstr("x.toml:"));
      EXPECT_THAT(error.what(), Not(HasSubstr("\x1b")));
    }
  }
}

TEST(ForeignArguments, EveryNameMeansOneThing) {
  std::set<std::string_view> names;
  for (const ArgumentAlias& alias : argument_aliases()) {
    EXPECT_TRUE(names.insert(alias.name).second) << alias.name;
    ASSERT_NE(find_argument(alias.name), nullptr) << alias.name;
    EXPECT_EQ(find_argument(alias.name)->name, alias.argument);
  }
  for (const IgnoredArguments& group : ignored_arguments()) {
    for (const std::string_view name : group.names) EXPECT_TRUE(names.insert(name).second) << name;
  }
  for (const RefusedArgument& refused : refused_arguments())
    EXPECT_TRUE(names.insert(refused.name).second) << refused.name;
  for (const std::string_view name : names) {
    const Argument* argument = find_argument(name);
    EXPECT_TRUE(argument == nullptr || argument->name != name) << name << " is an argument's own name";
  }
}

}  // namespace
}  // namespace concord
