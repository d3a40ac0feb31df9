// Arguments of the model, its adapter and the objective (training_arguments.h). Needs no libtorch.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/enum_names.h"

namespace concord {

enum class FinetuningType { full, lora, freeze };  // lora: an adapter on frozen weights
template <>
inline constexpr std::string_view kEnumNames<FinetuningType>[] = {"full", "lora", "freeze"};

enum class TrainingStage { pt, sft, dpo, rm };  // pt and sft: tokens, by the data; dpo: preferences; rm: a reward model
template <>
inline constexpr std::string_view kEnumNames<TrainingStage>[] = {"pt", "sft", "dpo", "rm"};

enum class PreferenceLoss { sigmoid, hinge, ipo, robust, kto_pair, orpo, simpo };
template <>
inline constexpr std::string_view kEnumNames<PreferenceLoss>[] = {"sigmoid",  "hinge", "ipo",  "robust",
                                                                  "kto_pair", "orpo",  "simpo"};

// Where the model comes from: exactly one of the two.
struct ModelSource {
  std::string path;    // an HF folder to start from
  std::string config;  // an HF config.json; weights are drawn from the seed
  bool operator==(const ModelSource&) const = default;
};

// Which weights are trained: all, an adapter, or some layers.
struct FinetuningArguments {
  FinetuningType type = FinetuningType::full;        // finetuning_type
  int64_t rank = 8;                                  // lora_rank
  double alpha = 0;                                  // lora_alpha; 0: two times the rank
  double dropout = 0;                                // lora_dropout
  std::vector<std::string> target = {"all-linear"};  // lora_target
  std::vector<std::string> target_parameters;        // lora_target_parameters
  bool use_rslora = false;
  bool use_dora = false;
  std::string init = "true";  // init_lora_weights
  std::map<std::string, std::string> rank_pattern, alpha_pattern;
  std::vector<std::string> modules_to_save;
  // adapter_name_or_path: comma-separated folders. All but the last are merged into the weights; training resumes the
  // last one with its own settings, or with new_adapter (create_new_adapter) merges it too and trains a new one.
  std::string adapter;
  bool new_adapter = false;
  int64_t trainable_layers = 2;                          // freeze_trainable_layers: the last ones; below 0: the first
  std::vector<std::string> trainable_modules = {"all"};  // freeze_trainable_modules: parts of their names
  std::vector<std::string> extra_modules = {};           // freeze_extra_modules: parts of names outside the layers
  // Parts of a model with images that are not trained, if there are images.
  bool freeze_vision_tower = false;
  bool freeze_multi_modal_projector = false;
  bool freeze_language_model = false;
  int64_t quantization_bit = 0;  // 4: frozen weights of linear layers are held in nf4

  bool is_lora() const { return type == FinetuningType::lora; }
  bool operator==(const FinetuningArguments&) const = default;
};

// Settings of the objective: the next tokens, or which of two completions is preferred (docs/preferences.md).
struct PreferenceArguments {
  TrainingStage stage = TrainingStage::sft;
  PreferenceLoss loss = PreferenceLoss::sigmoid;  // pref_loss, see trainer/objective/preference_loss.h
  double beta = 0.1;                              // pref_beta
  double ftx = 0;                                 // pref_ftx
  double label_smoothing = 0;                     // dpo_label_smoothing
  double simpo_gamma = 0.5;
  double ld_alpha = 1;
  bool reference_free = false;
  std::string ref_model = {};
  bool precompute_reference = false;  // precompute_ref_log_probs
  double center_rewards_coefficient = 0;

  bool learns_pairs() const { return stage == TrainingStage::dpo || stage == TrainingStage::rm; }
  // Whether the loss uses means over tokens of log-probabilities instead of sums.
  bool uses_average_logps() const { return loss == PreferenceLoss::orpo || loss == PreferenceLoss::simpo; }
  bool uses_reference() const { return stage == TrainingStage::dpo && !reference_free && !uses_average_logps(); }
  bool operator==(const PreferenceArguments&) const = default;
};

// Which parameters are trained, and how fast; patterns as in trainer/parameter_groups.h.
struct GroupArguments {
  std::vector<std::string> freeze;
  std::map<std::string, std::string> lr_mult_pattern, weight_decay_mult_pattern;
  double head_lr_mult = 1;
  double loraplus_lr_ratio = 1;
  double decoupled_lr = 0;       // 0: as the others
  double decoupled_min_lr = -1;  // -1: min_lr
  bool operator==(const GroupArguments&) const = default;
};

}  // namespace concord
