#include "trainer/arguments/foreign/samples_test.h"

namespace concord {

const char* const kHuggingFace = R"(model_name_or_path: models/qwen2
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

const char* const kLlamaFactory = R"(### model
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

const char* const kMegatron = R"(language_model:
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

const char* const kTorchtitan = R"([job]
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

}  // namespace concord
