// Conversions of settings of other programs that are more than another name (Converted in foreign.h). All throw
// Refusal for values that have no counterpart. Threads: pure functions, except those that read a file.
#pragma once

#include "trainer/arguments/foreign/foreign.h"

namespace concord {

// Returns the values of a list, or those in a scalar: a,b or a b. Throws Refusal for a mapping.
std::vector<std::string> items_of(const ArgumentValue& value);

using Convert = Conversion(const ArgumentValue& value, const TrainingArguments& arguments, const ForeignValues& given);

// Hugging Face, TRL, LLaMA-Factory, ROLL
Convert recompute_all_layers;
Convert llama_factory_defaults;     // template, which all of its files have
Convert recompute_unless_disabled;  // disable_gradient_checkpointing
Convert on_cpu;
Convert evaluation_in_bf16;
Convert evaluation_in_fp16;
Convert kind_of_optimizer;  // optim
Convert fsdp_modes;
Convert fsdp_settings;   // fsdp_config: a mapping
Convert deepspeed_file;  // the path of a JSON file
Convert eval_packing;
Convert truncation_mode;
Convert load_in_4bit;
Convert use_peft;
Convert dtype_of_model;
Convert loss_type;
Convert disable_dropout;
Convert validation_part;  // val_size
Convert pissa;
Convert use_muon;
Convert mixed_precision;
Convert unshuffled;    // disable_shuffling
Convert dataset_path;  // dataset_name
Convert trains_pairs;  // ROLL's chosen_key

// Megatron
Convert weighted_paths;  // 0.3 a 0.7 b
Convert weighted_eval_paths;
Convert weighted_test_paths;
Convert selective_recomputation;
Convert expert_recomputation;
Convert load_folder;
Convert minutes_as_seconds;
Convert tokenizer_files;
Convert layers_per_virtual_stage;
Convert fully_sharded;
Convert sharding_strategy;
Convert supervised;                    // sft
Convert whole_validation;              // full_validation
Convert weights_only;                  // no_save_optim
Convert main_weights_with_remainders;  // store_param_remainders
Convert swap_optimizer;                // MindSpeed's

// torchtitan
Convert assets_folder;
Convert data_set;
Convert float8_converters;
Convert activation_checkpoint;
Convert checkpoint_enable;
Convert schedule_name;
Convert decay_type;
Convert decay_ratio;
Convert min_lr_factor;
Convert training_dtype;
Convert cpu_offload;

}  // namespace concord
