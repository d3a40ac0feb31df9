// Settings of the model, its adapter and what it is trained for (table.h).
#include "trainer/arguments/table_columns.h"

namespace concord {
namespace {

using T = TrainingArguments;

constexpr Argument kModelArguments[] = {
    {.name = "model",
     .member = field<&T::model, &ModelSource::path>,
     .help = "HF folder to start from: config.json and safetensors; or an adapter's, which names its base model",
     .is_input = true,
     .resume = Resume::model},
    {.name = "model_config",
     .member = field<&T::model, &ModelSource::config>,
     .help = "HF config.json of a new model, initialized from the seed",
     .is_input = true,
     .resume = Resume::model},
};

constexpr std::string_view kFinetuningTypeChoices[] = {"full", "lora"};
constexpr Argument kAdaptersArguments[] = {
    {.name = "finetuning_type",
     .member = field<&T::finetuning, &FinetuningArguments::type>,
     .help = "full: train all weights; lora: train an adapter on frozen weights",
     .choices = kFinetuningTypeChoices,
     .resume = Resume::adapter},
    {.name = "lora_rank",
     .member = field<&T::finetuning, &FinetuningArguments::rank>,
     .help = "rank of the adapter",
     .range = between(1, 1 << 16),
     .resume = Resume::adapter},
    {.name = "lora_alpha",
     .member = field<&T::finetuning, &FinetuningArguments::alpha>,
     .help = "the adapter is multiplied by lora_alpha / lora_rank; 0: twice lora_rank",
     .range = at_least(0),
     .resume = Resume::adapter},
    {.name = "lora_dropout",
     .member = field<&T::finetuning, &FinetuningArguments::dropout>,
     .help = "dropout of the adapter's input",
     .range = below_one(),
     .resume = Resume::adapter},
    {.name = "lora_target",
     .member = field<&T::finetuning, &FinetuningArguments::target>,
     .help = "layers that get an adapter: all-linear (all but lm_head), names (q_proj,v_proj), or a regular expression "
             "that matches the whole name of a module (model.layers.0.self_attn.q_proj)",
     .resume = Resume::adapter},
    {.name = "use_rslora",
     .member = field<&T::finetuning, &FinetuningArguments::use_rslora>,
     .help = "multiply by lora_alpha / sqrt(lora_rank) instead",
     .resume = Resume::adapter},
    {.name = "use_dora",
     .member = field<&T::finetuning, &FinetuningArguments::use_dora>,
     .help = "also train the norm of every row of the adapted weights (DoRA); without lora_dropout",
     .resume = Resume::adapter},
    {.name = "init_lora_weights",
     .member = field<&T::finetuning, &FinetuningArguments::init>,
     .help = "initial adapter: true (adds nothing), or a part of the weights, which is removed from them during "
             "training: pissa, pissa_niter_N (faster), olora",
     .resume = Resume::objective},
    {.name = "rank_pattern",
     .member = field<&T::finetuning, &FinetuningArguments::rank_pattern>,
     .help = "other ranks for some layers: {q_proj: 16}; keys are regular expressions for the end of a module's name",
     .resume = Resume::adapter},
    {.name = "alpha_pattern",
     .member = field<&T::finetuning, &FinetuningArguments::alpha_pattern>,
     .help = "like rank_pattern, for lora_alpha",
     .resume = Resume::adapter},
    {.name = "modules_to_save",
     .member = field<&T::finetuning, &FinetuningArguments::modules_to_save>,
     .help = "modules that are trained entirely and saved with the adapter: embed_tokens, lm_head, norms",
     .resume = Resume::adapter},
    {.name = "adapter_name_or_path",
     .member = field<&T::finetuning, &FinetuningArguments::adapter>,
     .help = "adapter to resume training from; its own rank and targets apply. Several are comma-separated: all but "
             "the last are merged into the weights first",
     .is_input = true,
     .resume = Resume::adapter},
    {.name = "create_new_adapter",
     .member = field<&T::finetuning, &FinetuningArguments::new_adapter>,
     .help = "merge all of adapter_name_or_path into the weights and train a new adapter",
     .resume = Resume::adapter},
    {.name = "quantization_bit",
     .member = field<&T::finetuning, &FinetuningArguments::quantization_bit>,
     .help = "4: store the frozen weights of linear layers in nf4 with double quantization (QLoRA); 0: unchanged",
     .range = at_least(0),
     .resume = Resume::objective},
};

constexpr std::string_view kStageChoices[] = {"pt", "sft", "dpo", "rm"};
constexpr std::string_view kPrefLossChoices[] = {"sigmoid", "hinge", "ipo", "robust", "kto_pair", "orpo", "simpo"};
constexpr Argument kPreferencesArguments[] = {
    {.name = "stage",
     .member = field<&T::preference, &PreferenceArguments::stage>,
     .help = "pt, sft: predict the next tokens; dpo: train on pairs of completions; rm: train a reward model on them",
     .choices = kStageChoices,
     .resume = Resume::objective},
    {.name = "pref_loss",
     .member = field<&T::preference, &PreferenceArguments::loss>,
     .help = "loss of a pair in stage dpo",
     .choices = kPrefLossChoices,
     .resume = Resume::objective},
    {.name = "pref_beta",
     .member = field<&T::preference, &PreferenceArguments::beta>,
     .help = "strength of the constraint to the reference; larger is closer",
     .range = above(0),
     .resume = Resume::objective},
    {.name = "pref_ftx",
     .member = field<&T::preference, &PreferenceArguments::ftx>,
     .help = "adds this times the mean loss of the chosen completion's tokens",
     .range = at_least(0),
     .resume = Resume::objective},
    {.name = "dpo_label_smoothing",
     .member = field<&T::preference, &PreferenceArguments::label_smoothing>,
     .help = "fraction of pairs assumed to be labelled wrongly, for sigmoid and robust",
     .range = {.min = 0, .max = 0.5, .open_max = true},
     .resume = Resume::objective},
    {.name = "simpo_gamma",
     .member = field<&T::preference, &PreferenceArguments::simpo_gamma>,
     .help = "margin of simpo",
     .range = at_least(0),
     .resume = Resume::objective},
    {.name = "ld_alpha",
     .member = field<&T::preference, &PreferenceArguments::ld_alpha>,
     .help = "weight of tokens beyond the length of the pair's shorter completion",
     .range = between(0, 1),
     .resume = Resume::objective},
    {.name = "reference_free",
     .member = field<&T::preference, &PreferenceArguments::reference_free>,
     .help = "use a reference that gives all completions the same probability",
     .resume = Resume::objective},
    {.name = "ref_model",
     .member = field<&T::preference, &PreferenceArguments::ref_model>,
     .help = "HF folder of the reference; empty: the initial model",
     .is_input = true,
     .resume = Resume::objective},
    {.name = "precompute_ref_log_probs",
     .member = field<&T::preference, &PreferenceArguments::precompute_reference>,
     .help = "compute reference log-probs once, before training, and cache them in output_dir",
     .resume = Resume::may_differ},
    {.name = "center_rewards_coefficient",
     .member = field<&T::preference, &PreferenceArguments::center_rewards_coefficient>,
     .help = "stage rm: adds this times the square of the sum of a pair's rewards",
     .range = at_least(0),
     .resume = Resume::objective},
};

constexpr ArgumentGroup kModelGroups[] = {
    {.title = "Model (give exactly one)", .arguments = kModelArguments},
    {.title = "Adapters (docs/fine-tuning.md)", .arguments = kAdaptersArguments},
    {.title = "Preferences (docs/preferences.md)", .arguments = kPreferencesArguments},
};

}  // namespace

std::span<const ArgumentGroup> model_groups() { return kModelGroups; }

}  // namespace concord
