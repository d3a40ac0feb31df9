// Combinations of settings that are refused although each of them is supported: what they are, why, and what to do. The
// checks report them, and docs/refused-combinations.md lists them. Settings that contradict each other are not among
// them. Threads: any.
#pragma once

#include <span>
#include <string>

namespace concord {

enum class Refused {
  dora_with_fp8,
  dora_with_init,
  dora_of_experts,
  init_of_experts,
  dropout_of_parameters,
  merge_of_parameters,
  merged_adapter_on_images,
  four_bits_with_init,
  four_bits_with_fp8,
  fp8_of_custom_model,
  hidden_dropout_with_mtp,
  mtp_with_pairs,
  average_of_best_model,
  predictions_of_packed_rows,
  predictions_of_pairs,
  predictions_with_masks,
  train_samples_with_packing,
  divisible_ramp,
  collator_with_packing,
  sharded_state_on_each_node,
  tiled_mlp_of_experts,
  tiled_mlp_with_fp8,
  tiled_mlp_with_bf16_grads,
  tiled_mlp_with_recomputed_mlp,
};

struct RefusedCombination {
  Refused key;
  const char* settings;  // by name, without values
  const char* why;       // a clause
  const char* remedy;    // an imperative
};

// Returns all of them, in the order of Refused.
std::span<const RefusedCombination> refused_combinations();

// Returns the message of a check: |given|, the settings with their values, by default without, the reason and the
// remedy.
std::string refusal_message(Refused combination, const std::string& given = "");

// Returns the text of docs/refused-combinations.md.
std::string refused_combinations_page();

}  // namespace concord
