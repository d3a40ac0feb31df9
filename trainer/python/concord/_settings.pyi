"""The settings of `concord train` (`concord train --help`). Written by tests/python/stubs_test.py."""

import os
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypedDict

_Path = str | os.PathLike[str]

class Settings(TypedDict, total=False):
    model_config: _Path | None
    'HF config.json of a new model, initialized from the seed; or its text, {"model_type": ...}'
    finetuning_type: Literal['full', 'lora', 'freeze'] | None
    'full: train all weights; lora: train an adapter on frozen weights; freeze: train some layers'
    lora_rank: int | None
    'rank of the adapter'
    lora_alpha: float | None
    'the adapter is multiplied by lora_alpha / lora_rank; 0: twice lora_rank'
    lora_dropout: float | None
    "dropout of the adapter's input"
    lora_target: Sequence[_Path | float] | _Path | float | None
    'layers that get an adapter: all-linear (all but lm_head), names (q_proj,v_proj), or a regular expression that matches the whole name of a module (model.layers.0.self_attn.q_proj)'
    lora_target_parameters: Sequence[_Path | float] | _Path | float | None
    'tensors with the weights of all experts of a layer that get an adapter, for GPT-OSS: mlp.experts.gate_up_proj,mlp.experts.down_proj, or of a layer: 7.mlp.experts.down_proj'
    use_rslora: bool | None
    'multiply by lora_alpha / sqrt(lora_rank) instead'
    use_dora: bool | None
    'also train the norm of every row of the adapted weights (DoRA)'
    init_lora_weights: _Path | None
    'initial adapter: true (adds nothing), or a part of the weights, which is removed from them during training: pissa, pissa_niter_N (faster), olora'
    rank_pattern: Mapping[str, Any] | None
    "other ranks for some layers: {q_proj: 16}; keys are regular expressions for the end of a module's name"
    alpha_pattern: Mapping[str, Any] | None
    'like rank_pattern, for lora_alpha'
    modules_to_save: Sequence[_Path | float] | _Path | float | None
    'modules that are trained entirely and saved with the adapter: embed_tokens, lm_head, norms'
    adapter_name_or_path: _Path | None
    'adapter to resume training from; its own rank and targets apply. Several are comma-separated: all but the last are merged into the weights first'
    create_new_adapter: bool | None
    'merge all of adapter_name_or_path into the weights and train a new adapter'
    freeze_trainable_layers: int | None
    'finetuning_type freeze: train this many layers at the end; -2: the first two'
    freeze_trainable_modules: Sequence[_Path | float] | _Path | float | None
    'their modules that are trained: all, or beginnings of names in a layer (mlp,self_attn)'
    freeze_extra_modules: Sequence[_Path | float] | _Path | float | None
    'parts of the names of parameters outside these layers that are trained too (lm_head,embed_tokens)'
    freeze_vision_tower: bool | None
    'models with images: do not train the vision tower (model.visual without its merger)'
    freeze_multi_modal_projector: bool | None
    'models with images: do not train the projector (model.visual.merger)'
    freeze_language_model: bool | None
    'models with images: train the vision tower and the projector only'
    quantization_bit: int | None
    '4: store the frozen weights of linear layers in nf4 with double quantization (QLoRA); 0: unchanged'
    stage: Literal['pt', 'sft', 'dpo', 'rm'] | None
    'pt, sft: predict the next tokens; dpo: train on pairs of completions; rm: train a reward model on them'
    pref_loss: Literal['sigmoid', 'hinge', 'ipo', 'robust', 'kto_pair', 'orpo', 'simpo'] | None
    'loss of a pair in stage dpo'
    pref_beta: float | None
    'strength of the constraint to the reference; larger is closer'
    pref_ftx: float | None
    "adds this times the mean loss of the chosen completion's tokens"
    dpo_label_smoothing: float | None
    'fraction of pairs assumed to be labelled wrongly, for sigmoid and robust'
    simpo_gamma: float | None
    'margin of simpo'
    ld_alpha: float | None
    "weight of tokens beyond the length of the pair's shorter completion"
    reference_free: bool | None
    'use a reference that gives all completions the same probability'
    ref_model: _Path | None
    'HF folder of the reference; empty: the initial model'
    precompute_ref_log_probs: bool | None
    'compute reference log-probs once, before training, and cache them in output_dir'
    center_rewards_coefficient: float | None
    "stage rm: adds this times the square of the sum of a pair's rewards"
    dataset: _Path | None
    'instead of train_data: name of a data set in dataset_info.json, as in LLaMA-Factory (docs/data.md); several are comma-separated'
    dataset_dir: _Path | None
    'folder of dataset_info.json'
    dataset_text_field: _Path | None
    'field of a record in train_data and eval_data that holds its text'
    data_cache_path: _Path | None
    'folder in which the tokens of text are cached for the next start; empty: $CONCORD_CACHE or ~/.cache/concord; none: no cache'
    train_data_blend: Sequence[_Path | float] | _Path | float | None
    'several sources instead: alternating weights and paths (0.3,a,0.7,b), or paths alone, weighted by size'
    split: Sequence[_Path | float] | _Path | float | None
    'weights of training, validation and test data in train_data (969,30,1), instead of eval_data and test_data'
    max_samples: int | None
    'use only the first N records, documents or rows of each data set; 0: all of them'
    eval_dataset: _Path | None
    'instead of eval_data: names in dataset_info.json, as in dataset'
    eval_data_blend: Sequence[_Path | float] | _Path | float | None
    'several sources instead, as in train_data_blend; weights need eval_iters'
    eval_datasets: Mapping[str, Any] | None
    'several named sets to evaluate on instead: {wiki: wiki.jsonl, code: code.jsonl}; the log has eval_NAME_loss of each and eval_loss over all of their tokens'
    test_data_blend: Sequence[_Path | float] | _Path | float | None
    'several sources instead, as in eval_data_blend'
    eval_iters: int | None
    'batches per evaluation, from the start of each set; 0: all'
    seq_length: int | None
    "tokens per sample; 0: the length found in the data, else the model's max_position_embeddings"
    cutoff_len: int | None
    'truncate samples to this many tokens; 0: reject samples longer than seq_length. Sets seq_length if that is 0'
    truncation: Literal['right', 'left', 'drop', 'split'] | None
    'samples longer than cutoff_len: right removes their end, left their start, drop omits them, split makes several samples of each'
    chat_template: _Path | None
    "Jinja file that formats conversations; empty: the tokenizer's own chat template"
    media_dir: _Path | None
    'folder of the images and videos in conversations; empty: that of the file with the conversations'
    skip_bad_images: bool | None
    'leave out samples whose images or videos cannot be read; false: stop'
    image_max_pixels: int | None
    'shrink images to this many pixels before the processor; 0: only the processor resizes them'
    image_min_pixels: int | None
    'enlarge images to this many pixels before the processor; 0: only the processor resizes them'
    video_max_pixels: int | None
    'shrink frames of videos to this many pixels before the processor; 0: only the processor resizes them'
    video_min_pixels: int | None
    'enlarge frames of videos to this many pixels before the processor; 0: only the processor resizes them'
    video_fps: float | None
    'frames per second that are taken of a video, and that a list of frames has; 0: those of the processor, or 2'
    video_maxlen: int | None
    'most frames that are taken of a video; 0: those of the processor'
    reset_position_ids: bool | None
    'text and Megatron data: positions start at 0 in every document of a row'
    reset_attention_mask: bool | None
    'text and Megatron data: the documents of a row do not attend to each other'
    eod_mask_loss: bool | None
    'text and Megatron data: exclude the first token of a document from the loss'
    eod_token_id: int | None
    "end-of-document token for these three; -1: that of the data's tokenizer"
    sequence_packing: bool | None
    'pack short samples into one sequence; samples do not attend to each other'
    packing_strategy: Literal['first_fit', 'best_fit'] | None
    "first_fit keeps more of the shuffled order, best_fit fills rows better (TRL's bfd)"
    shuffle: bool | None
    'false: read samples in file order'
    sample_order: Literal['computed', 'torch'] | None
    "permutation of shuffled samples: computed, for any number of them; torch, that of transformers' Trainer"
    dataloader_drop_last: bool | None
    "leave out samples at the end of an epoch that do not fill a step; false: train on them, as transformers' Trainer does"
    data_seed: int | None
    'seed of the sample order; 0: same as seed'
    dataloader_prefetch_factor: int | None
    'number of steps of data to prepare in advance'
    per_device_train_batch_size: int | None
    'samples per micro-batch'
    per_device_eval_batch_size: int | None
    'samples per micro-batch in evaluation'
    compute_accuracy: bool | None
    'also evaluate the fraction of tokens that the model ranks first: eval_accuracy, eval_NAME_accuracy'
    do_predict: bool | None
    'after the last step, write predictions for the test data to OUTPUT_DIR/predictions.jsonl: per sample its loss and for each counted token the label, its log-probability and the token ranked first'
    prediction_loss_only: bool | None
    "evaluate the loss only, without metrics that need the model's predictions"
    evaluate_ema_weights: bool | None
    'evaluate the EMA of ema_decay instead of the weights'
    gradient_accumulation_steps: int | None
    'micro-batches per step'
    global_batch_size: int | None
    'samples per step over all ranks; sets gradient_accumulation_steps; 0: computed from gradient_accumulation_steps'
    num_train_epochs: float | None
    'number of passes over the data'
    max_steps: int | None
    'number of steps; if > 0, overrides num_train_epochs'
    train_samples: int | None
    'number of samples, instead of max_steps; the learning rate then counts samples too; 0: not given'
    decrease_batch_size_if_needed: bool | None
    'round a global_batch_size that is not divisible by per_device_train_batch_size x data-parallel ranks down to one that is'
    rampup_batch_size: Sequence[_Path | float] | _Path | float | None
    'START,INCREMENT,SAMPLES: start with a global batch of START samples, which grows by INCREMENT in equal intervals to its full size after SAMPLES samples; needs max_steps'
    heterogeneous_split: _Path | None
    'divide the micro-batches of a step among the data-parallel replicas by their speed: auto measures it in five steps, and divides layers among pipeline stages too; 3,1: relative speeds of equal parts of the replicas; empty: equally'
    iterations_to_skip: Sequence[_Path | float] | _Path | float | None
    'steps, counted from 1, whose data is read but not trained on: 1200,1201'
    exit_interval: int | None
    'save and end the run after a step that is a multiple of this; 0: disabled'
    exit_duration_in_mins: float | None
    'save and end the run after the first step that ends later than this; 0: disabled'
    optimizer: Literal['adam', 'lion', 'muon', 'sgd'] | None
    'update rule'
    learning_rate: float | None
    'peak learning rate of the schedule'
    weight_decay: float | None
    'applied to parameters with two or more dimensions'
    lr_mult_pattern: Mapping[str, Any] | None
    'multiply the learning rate of some parameters: {embed_tokens: 0.1}; keys are regular expressions searched in parameter names'
    weight_decay_mult_pattern: Mapping[str, Any] | None
    'like lr_mult_pattern, for weight_decay'
    freeze: Sequence[_Path | float] | _Path | float | None
    'parameters that are not trained: regular expressions as in lr_mult_pattern (embed_tokens,layers\\.[0-3]\\.)'
    head_lr_mult: float | None
    'multiply the learning rate of the output layer (lm_head)'
    loraplus_lr_ratio: float | None
    "LoRA+: multiply the learning rate of an adapter's B matrices and of trained vectors (DoRA's magnitudes)"
    decoupled_lr: float | None
    'peak learning rate of the embedding and the output layer; 0: that of the other parameters'
    decoupled_min_lr: float | None
    'final learning rate of embedding and output layer; -1: min_lr'
    adam_beta1: float | None
    'also for lion'
    adam_beta2: float | None
    'also for lion'
    adam_epsilon: float | None
    ''
    sgd_momentum: float | None
    ''
    muon_momentum: float | None
    ''
    muon_use_nesterov: bool | None
    'Nesterov momentum for muon'
    muon_num_ns_steps: int | None
    'Newton-Schulz iterations per muon update'
    muon_scale_mode: Literal['shape_scaling', 'spectral', 'unit_rms_norm'] | None
    "muon's scale of an update with R rows and C columns: sqrt(max(1, R / C)), sqrt(max(R, C)) or sqrt(R / C)"
    muon_extra_scale_factor: float | None
    "additional factor; 0.2 with spectral matches the size of adam's updates"
    exp_avg_dtype: Literal['fp32', 'bf16', 'fp16', '8bit', 'fp8'] | None
    'type in which first moments and momentum are kept; updates are computed in fp32'
    exp_avg_sq_dtype: Literal['fp32', 'bf16', 'fp16', '8bit', 'fp8'] | None
    'like exp_avg_dtype, for second moments; bf16 needs adam_beta2 < 0.996, fp16 < 0.9995; not fp8'
    main_grads_dtype: Literal['fp32', 'bf16'] | None
    'type in which gradients of bf16 weights are added and reduced; bf16 for at most 16 micro-batches'
    main_params_dtype: Literal['fp32', 'remainder', 'kahan_sum', 'bf16_stochastic_round'] | None
    'how main weights are kept: in fp32, exactly the same as the bf16 weights and 16-bit remainders, as the weights and a bf16 Kahan compensation, or, rounded stochastically, as the weights alone'
    ema_decay: float | None
    'keep and save an exponential moving average of the weights: ema = decay ema + (1 - decay) weights after every update; 0: disabled'
    ema_start_step: int | None
    'for the first N updates the average equals the weights'
    max_grad_norm: float | None
    'clip gradients to this norm; 0: no clipping'
    lr_scheduler_type: _Path | None
    'learning rate schedule: constant, constant_with_warmup, linear, cosine, cosine_with_min_lr, inverse_sqrt, inverse_square_root, wsd, warmup_stable_decay'
    lr_scheduler_kwargs: Mapping[str, Any] | None
    'options of the schedule, e.g. {min_lr: 1e-5}'
    min_lr: float | None
    'final learning rate of the schedule'
    lr_warmup_init: float | None
    'learning rate at the start of warmup'
    warmup_steps: int | None
    'number of warmup steps; below 1: warmup_ratio'
    warmup_samples: int | None
    'warmup length in samples'
    warmup_ratio: float | None
    'warmup length as a fraction of all steps'
    lr_decay_steps: int | None
    'step at which the schedule ends; 0: at the end of the run'
    lr_decay_samples: int | None
    'like lr_decay_steps, in samples'
    lr_wsd_decay_steps: int | None
    'number of decay steps at the end of the wsd schedule'
    lr_wsd_decay_samples: int | None
    'like lr_wsd_decay_steps, in samples'
    lr_wsd_decay_style: Literal['linear', 'cosine', 'exponential', 'minus_sqrt'] | None
    ''
    lr_step_offset: int | None
    '1: the first update already uses the learning rate of warmup step 1'
    start_weight_decay: float | None
    'initial value of a weight decay schedule; -1: weight_decay'
    end_weight_decay: float | None
    'final value of a weight decay schedule; -1: weight_decay'
    weight_decay_incr_style: Literal['constant', 'linear', 'cosine'] | None
    ''
    label_smoothing_factor: float | None
    'fraction of every label that is spread evenly over the vocabulary, in training only'
    z_loss_coeff: float | None
    'add this times log(sum(exp(logits)))^2 to the loss of every token, in training only'
    attention_dropout: float | None
    "dropout probability of attention weights in training; -1: that of the model's config.json"
    hidden_dropout: float | None
    'dropout probability of the embedding and of the outputs of attention and MLP in training'
    neftune_noise_alpha: float | None
    "NEFTune: add uniform noise within +-alpha / sqrt(tokens of a row x hidden size) to the embedding's output in training; 0: none"
    calculate_per_token_loss: bool | None
    "weight all tokens of a step equally; false: weight all micro-batches equally (ROLL's default)"
    bf16: bool | None
    'compute in bfloat16, update in float32'
    fp16: bool | None
    'compute in float16 with loss scaling, update in float32'
    loss_scale: float | None
    'static loss scale for fp16; 0: dynamic'
    initial_loss_scale: float | None
    'initial value of the dynamic loss scale'
    min_loss_scale: float | None
    'lower bound of the dynamic loss scale'
    loss_scale_window: int | None
    'steps without overflow before the loss scale doubles'
    hysteresis: int | None
    'overflows before the loss scale is halved'
    seed: int | None
    'random seed for weight initialization and everything else random'
    deterministic_mode: bool | None
    'use only deterministic algorithms: runs with the same seed and layout, and resumed ones, are bitwise identical'
    tensor_model_parallel_size: int | None
    'ranks that each layer is split over'
    pipeline_model_parallel_size: int | None
    'number of pipeline stages'
    virtual_pipeline_model_parallel_size: int | None
    'model chunks per pipeline rank (interleaved schedules)'
    context_parallel_size: int | None
    'ranks that each sequence is split over'
    expert_model_parallel_size: int | None
    'ranks that the experts of a layer are split over'
    expert_tensor_parallel_size: int | None
    'ranks that each expert is split over; 0: same as tensor_model_parallel_size'
    sequence_parallel: bool | None
    'also split norms and residuals over the tensor-parallel ranks'
    platform: _Path | None
    'plugin to run on, as CONCORD_PLATFORM: cpu, cuda, ascend or the path of one, or several for equal parts of the ranks: cuda,ascend; empty: CONCORD_PLATFORM, or the best that has a device'
    order: _Path | None
    'order of the mesh axes, fastest-varying first'
    cp_comm_type: Literal['p2p', 'all_gather', 'a2a'] | None
    'how context-parallel ranks attend: p2p passes keys around a ring, all_gather gathers them, a2a exchanges tokens for heads (Ulysses); a2a+p2p is not supported'
    pipeline_schedule: _Path | None
    'a kind from `concord schedule`, or a file NAME.csv; auto: 1f1b, or interleaved with virtual stages'
    pipeline_model_parallel_layout: _Path | None
    'layers of each stage, e.g. E,t*3|t*4,L'
    account_for_embedding_in_pipeline_split: bool | None
    'count the embedding as a layer'
    account_for_loss_in_pipeline_split: bool | None
    'count the loss as a layer'
    variable_seq_lengths: bool | None
    'stages exchange the sequence length of each micro-batch'
    replay_steps: bool | None
    'record the passes of a step once and replay them (CUDA graphs), if the device supports it and steps are identical'
    check_memory: bool | None
    'refuse a run whose tensors need more memory than a device or the host has; `concord plan memory` prints what a run needs'
    make_vocab_size_divisible_by: int | None
    'pad the vocabulary to a multiple of this times tensor_model_parallel_size'
    ddp_timeout: int | None
    'timeout in seconds for a rank waiting on others'
    recompute_granularity: Literal['', 'full', 'selective'] | None
    'recompute activations in the backward pass: full layers, or selected modules; empty: off'
    recompute_method: Literal['uniform', 'block'] | None
    'for full: recompute units over all layers, or only the first layers of each stage'
    recompute_num_layers: int | None
    'for full: layers per unit (uniform), or number of layers recomputed (block)'
    recompute_modules: Sequence[Literal['core_attn', 'mlp', 'layernorm', 'mlp_act', 'moe_act']] | str | None
    'for selective; default: core_attn; layernorm, mlp_act (gate and up) and moe_act (experts) cost little'
    cpu_offloading: bool | None
    'keep the inputs of recomputed layers in pinned host memory between forward and backward; the last one stays on the device; requires recompute_granularity: full'
    cpu_offloading_num_layers: int | None
    'cpu_offloading for the first layers of each model chunk, this many; 0: for all if cpu_offloading is set'
    tiled_mlp: bool | None
    'compute MLPs in tiles of the sequence, which are recomputed in the backward pass: their activations exist for one tile at a time'
    tiled_mlp_num_shards: int | None
    'tiles of tiled_mlp; 0: the tokens of a row divided by the hidden size, rounded up'
    loss_chunk_size: int | None
    'tokens of a micro-batch whose logits exist at a time; saves memory; 0: all; -1: 16384 if that costs nothing'
    moe_router_load_balancing_type: Literal['', 'aux_loss', 'seq_aux_loss', 'global_aux_loss', 'pooled_aux_loss', 'none'] | None
    'loss that spreads tokens over experts: per layer, per layer and sequence, per layer over the step so far, or over all layers as in transformers; empty: pooled_aux_loss if config.json has output_router_logits, else aux_loss'
    moe_aux_loss_coeff: float | None
    'coefficient of that loss; 0: none, for pooled_aux_loss router_aux_loss_coef of config.json'
    moe_z_loss_coeff: float | None
    'coefficient of the mean squared logsumexp of router logits; 0: none'
    moe_router_bias_update_rate: float | None
    'step of the expert biases after each update, if the model has them; 0: constant biases'
    moe_expert_capacity_factor: float | None
    'expert capacity as a multiple of an even share; tokens beyond it are dropped; 0: no limit'
    moe_token_drop_policy: Literal['probs', 'position'] | None
    'which tokens an expert keeps: those with the largest weights, or the first ones'
    moe_pad_expert_input_to_capacity: bool | None
    'pad the input of experts to moe_expert_capacity_factor: same results with fixed sizes, which need no synchronization'
    moe_shared_expert_overlap: bool | None
    'overlap the shared expert with the dispatch and combine all-to-alls'
    mtp_num_layers: int | None
    'MTP layers to train, at most num_nextn_predict_layers; 0: disable MTP'
    mtp_loss_scaling_factor: float | None
    'factor of the mean of the MTP losses'
    fp8: Literal['none', 'hybrid', 'e4m3'] | None
    'compute the linear layers of attention and MLP in FP8; hybrid: e4m3, and e5m2 for gradients'
    fp8_recipe: Literal['delayed', 'current', 'blockwise'] | None
    'scales from earlier steps (delayed), each tensor (current), or blocks of 128 (blockwise; e4m3 only)'
    fp8_amax_history_len: int | None
    'fp8_recipe delayed: number of steps whose largest value counts'
    first_last_layers_bf16: bool | None
    "compute the first and the last layer in the model's type"
    use_distributed_optimizer: bool | None
    'shard optimizer state over the data-parallel ranks (ZeRO-1)'
    accumulate_allreduce_grads_in_fp32: bool | None
    'accumulate gradients in float32; with bf16 and fp16 main_grads_dtype is used instead'
    overlap_grad_reduce: bool | None
    'overlap gradient reduction with the backward pass, bucket by bucket'
    delay_grad_reduce: bool | None
    'pipeline parallelism: reduce a stage only once all its gradients are ready'
    overlap_param_gather: bool | None
    'overlap the gathering of updated weights with the next forward pass'
    ddp_average_in_collective: bool | None
    'average in the collective instead of scaling gradients before it'
    ddp_bucket_size: int | None
    "elements per bucket; 0: Megatron's rule"
    check_for_nan_in_loss_and_grad: bool | None
    'stop on a NaN or Inf loss or gradient; false: skip such steps'
    optimizer_cpu_offload: bool | None
    'keep optimizer state in host memory'
    optimizer_offload_fraction: float | None
    'fraction of the optimizer state to offload'
    optimizer_offload_update: Literal['host', 'device'] | None
    'where offloaded state is updated: on the host, or on the device, through which it is streamed in chunks'
    host_memory_limit: float | None
    'GiB of host memory that the ranks of a machine may use together for offloading; 0: what the machine and its cgroup have available'
    log_num_zeros_in_grad: bool | None
    'log the number of zero gradient elements'
    check_replicas_steps: int | None
    'compare checksums of replicated tensors every N steps and before every checkpoint; 0: never'
    on_replica_mismatch: Literal['stop', 'warn'] | None
    'if they differ: stop the run, or warn and continue'
    rerun_mode: Literal['validate', 'disabled'] | None
    'validate: recompute a step whose loss or gradient is NaN, Inf or a spike, on the same and on other ranks, to tell a faulty device from the data'
    rerun_action: Literal['continue', 'skip', 'stop'] | None
    'after that: continue if the second result is usable, else stop; skip the update; or always stop'
    spike_factor: float | None
    'a loss or gradient norm above this multiple of the median of the last 100 steps is a spike; 0: disabled'
    output_dir: _Path | None
    'output folder for checkpoints, metrics and reports'
    overwrite_output_dir: bool | None
    'allow an output_dir that holds another run, and delete that run'
    logging_strategy: Literal['no', 'steps', 'epoch'] | None
    ''
    logging_steps: float | None
    '0: every fiftieth of all steps, at least every 10th (HF: 500)'
    logging_first_step: bool | None
    ''
    logging_nan_inf_filter: bool | None
    'NaN and Inf losses are excluded from the logged mean'
    timing_log_level: int | None
    '1: log the duration of forward_backward, reduce, optimizer, data and save, synchronizing with the device before and after each; 2: also forward and backward; 0: disabled'
    timing_log_option: Literal['max', 'minmax', 'all'] | None
    'which of these times are logged: the largest over ranks, also the smallest, or all'
    profile: bool | None
    'write a timeline of some steps, OUTPUT_DIR/profile/rank_N.json, for Perfetto or chrome://tracing'
    profile_step_start: int | None
    'profile from the step after this many steps'
    profile_step_end: int | None
    'until this many steps are done'
    profile_ranks: Sequence[_Path | float] | _Path | float | None
    'ranks that are profiled; empty: all'
    log_params_norm: bool | None
    'log the norm of all trained weights'
    log_token_metrics: Literal['auto', 'true', 'false'] | None
    'log entropy and mean_token_accuracy, and for pairs logits/chosen and logits/rejected, like TRL, at the cost of one more pass over the logits; auto: in stage dpo'
    eval_strategy: Literal['auto', 'no', 'steps', 'epoch'] | None
    'auto: no without evaluation data; with it, steps if eval_steps is set, else epoch. The last step is always evaluated'
    eval_steps: float | None
    '0: same as logging_steps if that is set, else 500'
    eval_delay: float | None
    'no evaluation before this step, or with eval_strategy epoch before the end of this epoch'
    eval_on_start: bool | None
    'also evaluate before the first step, whatever eval_delay is'
    sample_prompts: _Path | None
    'file with prompts (as for concord generate) that the model continues at every evaluation, for the report'
    sample_max_new_tokens: int | None
    'maximum number of tokens per continuation'
    save_strategy: Literal['no', 'steps', 'epoch'] | None
    ''
    save_steps: float | None
    ''
    save_total_limit: int | None
    'number of checkpoints to keep, oldest are deleted first; 0: keep all'
    save_only_model: bool | None
    'save checkpoints without optimizer state; runs cannot be resumed from them'
    save_on_each_node: bool | None
    'jobs on several machines: each machine writes complete checkpoints, the final model and the logs to its own output_dir, which machines do not share; resuming uses the latest checkpoint that all of them have'
    async_save: bool | None
    'continue training while a checkpoint is written; the run waits for the last one'
    async_save_when_busy: Literal['wait', 'skip'] | None
    'if the previous checkpoint is still being written: wait for it, or skip this one'
    save_memory_limit: float | None
    'GiB of host memory per rank for copies of what async_save writes; 0: the larger of 1 GiB and twice the largest shard'
    resume_from_checkpoint: _Path | None
    'continue a run: true or latest for the latest checkpoint in output_dir, or the folder of a checkpoint'
    finetune: bool | None
    'resume_from_checkpoint: take the weights only and start a new run at step 0'
    no_load_optim: bool | None
    'resume_from_checkpoint: start with fresh optimizer state and at the start of the learning rate schedule'
    no_load_rng: bool | None
    'resume_from_checkpoint: start the random generators from the seed'
    ignore_data_skip: bool | None
    'resume_from_checkpoint: start at the beginning of the data'
    override_opt_param_scheduler: bool | None
    "resume_from_checkpoint: allow learning rate and weight decay settings that differ from the checkpoint's"
    max_restarts: int | None
    'with --nproc: maximum number of consecutive restarts, without a new checkpoint in between, of a job that fails or hangs'
    memory_checkpoint_steps: int | None
    'with max_restarts: keep a complete checkpoint in memory every N steps, from which a restart resumes; 0: disabled'
    spares: int | None
    'with max_restarts: keep N more processes per machine that have loaded everything and replace failed ranks; a fully warm restart needs one for each rank of the machine'
    allow_fewer_ranks: bool | None
    'with max_restarts: continue with fewer data-parallel ranks and the same global batch if a device is faulty or a machine does not return; results then differ in the last bits'
    rejoin_timeout: float | None
    'with max_restarts and --nnodes: seconds in which the launcher of a lost machine may be started again'
    load_best_model_at_end: bool | None
    'save the checkpoint with the best evaluation as the final model'
    metric_for_best_model: _Path | None
    'metric to compare: loss, perplexity, or for a set of eval_datasets NAME_loss or NAME_perplexity, with or without eval_; default with load_best_model_at_end or early_stopping_patience: loss'
    greater_is_better: Literal['auto', 'true', 'false'] | None
    'auto: false, since lower loss and perplexity are better'
    early_stopping_patience: int | None
    'stop after N consecutive evaluations without improvement; 0: disabled'
    early_stopping_threshold: float | None
    'minimum change of metric_for_best_model that counts as an improvement'
    verify_checkpoint: bool | None
    'compare a checkpoint with its checksums before resuming from it; the ranks divide the bytes'
    ckpt_fully_parallel_load: Literal['auto', 'true', 'false'] | None
    'read each byte of weights and state once per data-parallel group and send it to the others, instead of on every rank; auto: for jobs on several machines that read from a network file system'
    exit_signal_grace: int | None
    'seconds a run may take to save and exit after SIGTERM, SIGINT or SIGHUP; after that it exits without saving'
    report_to: Sequence[Literal['all', 'none', 'tensorboard', 'html', 'wandb', 'mlflow', 'prometheus', 'otel']] | str | None
    'reports in addition to metrics.jsonl: tensorboard and html (all is both of them) write files; wandb, mlflow, prometheus and otel (OpenTelemetry) are services (docs/reporting.md)'
    run_name: _Path | None
    'name of the run at wandb, mlflow, prometheus and otel; empty: output_dir'
    prometheus_port: int | None
    'with report_to prometheus: port at which rank 0 answers /metrics'
    prometheus_host: _Path | None
    'address to listen on; 0.0.0.0: the metrics can be read from other machines'
    disable_tqdm: bool | None
    'print plain lines instead of a progress bar'
    peak_flops: float | None
    "peak FLOP/s of one device in the training data type, for MFU; 0: the plugin's value"
    straggler_action: Literal['warn', 'replace', 'none'] | None
    'for a rank at least 10 % slower than its peers: warn with the rank and the cause; replace: warn, and restart its process like after a failure (with max_restarts; at most twice per rank); or none'
    loss_floor: float | None
    'lowest achievable loss, if known; drawn in the report; 0: unknown'

class JobSettings(TypedDict, total=False):
    seed: int | None
    'random seed for weight initialization and everything else random'
    deterministic_mode: bool | None
    'use only deterministic algorithms: runs with the same seed and layout, and resumed ones, are bitwise identical'
    tensor_model_parallel_size: int | None
    'ranks that each layer is split over'
    pipeline_model_parallel_size: int | None
    'number of pipeline stages'
    virtual_pipeline_model_parallel_size: int | None
    'model chunks per pipeline rank (interleaved schedules)'
    context_parallel_size: int | None
    'ranks that each sequence is split over'
    expert_model_parallel_size: int | None
    'ranks that the experts of a layer are split over'
    expert_tensor_parallel_size: int | None
    'ranks that each expert is split over; 0: same as tensor_model_parallel_size'
    platform: _Path | None
    'plugin to run on, as CONCORD_PLATFORM: cpu, cuda, ascend or the path of one, or several for equal parts of the ranks: cuda,ascend; empty: CONCORD_PLATFORM, or the best that has a device'
    order: _Path | None
    'order of the mesh axes, fastest-varying first'
    ddp_timeout: int | None
    'timeout in seconds for a rank waiting on others'
