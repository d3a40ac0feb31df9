#include "core/base/refused_combinations.h"

#include <fmt/core.h>

namespace concord {
namespace {

constexpr RefusedCombination kRefused[] = {
    {Refused::dora_with_fp8, "use_dora with fp8",
     "the lengths that DoRA divides by would be those of weights that are not in FP8", "remove one of them"},
    {Refused::dora_with_init, "use_dora with init_lora_weights pissa or olora",
     "DoRA's lengths would have to be those of the residual weights, and no implementation exists to compare with",
     "choose one of them"},
    {Refused::dora_of_experts, "use_dora for experts",
     "the norms of rows would have to be computed for every expert, and peft has none to compare with",
     "leave it out, or choose a lora_target without experts, such as "
     "self_attn.q_proj,self_attn.k_proj,self_attn.v_proj,self_attn.o_proj"},
    {Refused::init_of_experts, "init_lora_weights pissa or olora for experts",
     "every expert would be decomposed, and peft has no such adapters to compare with",
     "leave it out, or choose a lora_target without experts, such as "
     "self_attn.q_proj,self_attn.k_proj,self_attn.v_proj,self_attn.o_proj"},
    {Refused::dropout_of_parameters, "lora_dropout with lora_target_parameters",
     "peft changes the tensor of all experts itself, whose input cannot be dropped, and loads no such adapter",
     "remove one of them"},
    {Refused::merge_of_parameters, "merging an adapter with lora_target_parameters",
     "weights are merged row by row, and these are stored by columns", "merge it with peft's merge_and_unload"},
    {Refused::merged_adapter_on_images, "adding adapters to a model that has images before training",
     "only its text part is loaded, whose weights are named differently in the adapters",
     "merge them first, with `concord merge`"},
    {Refused::four_bits_with_init, "quantization_bit with init_lora_weights pissa or olora",
     "what is left of the weights cannot be held in 4 bits", "choose one of them"},
    {Refused::four_bits_with_fp8, "quantization_bit with fp8", "weights would be rounded twice, to nf4 and to FP8",
     "choose one of them"},
    {Refused::fp8_of_custom_model, "fp8 with a custom model", "a custom model does not name its linear layers",
     "set fp8 to none"},
    {Refused::hidden_dropout_with_mtp, "hidden_dropout with mtp_num_layers",
     "the embeddings that an MTP layer gets have no address for their random numbers", "remove one of them"},
    {Refused::mtp_with_pairs, "mtp_num_layers with stage dpo or rm",
     "MTP's losses are of the tokens that follow in a text, and a preference is no such loss", "remove it"},
    {Refused::average_of_best_model, "ema_decay with load_best_model_at_end and save_only_model",
     "a checkpoint of weights only has no average that could be loaded", "remove one of them"},
    {Refused::predictions_of_packed_rows, "do_predict with sequence_packing",
     "predictions are listed by sample, and a packed row has several", "remove one of them"},
    {Refused::predictions_of_pairs, "do_predict with stage dpo or rm",
     "predictions are tokens, and the results of pairs are their metrics, which test data has without it",
     "remove one of them"},
    {Refused::predictions_with_masks, "do_predict with reset_attention_mask",
     "predictions are listed by sample, and rows are then packed by document", "remove one of them"},
    {Refused::train_samples_with_packing, "train_samples with sequence_packing",
     "it counts samples, but rows with several of them are trained", "use max_steps"},
    {Refused::divisible_ramp, "decrease_batch_size_if_needed with rampup_batch_size",
     "every size of the ramp would be another one, and so would its end",
     "give sizes that are multiples of per_device_train_batch_size x data-parallel ranks"},
    {Refused::collator_with_packing, "a data collator with sequence_packing, preferences or reset_attention_mask",
     "the positions of sequences and pairs in a row would be unknown after it", "remove one of them"},
    {Refused::sharded_state_on_each_node, "save_on_each_node with use_distributed_optimizer",
     "a machine has only its shards of the optimizer's state, and every save would send the others to all machines",
     "set use_distributed_optimizer to false or save_only_model to true, or set save_on_each_node to false and "
     "output_dir to a folder on a file system that all machines share"},
    {Refused::tiled_mlp_of_experts, "tiled_mlp with a model that has experts",
     "experts take tokens of the whole micro-batch, which tiles would divide before their capacity is known",
     "set tiled_mlp to false"},
    {Refused::tiled_mlp_with_fp8, "tiled_mlp with fp8", "each tile would have its own scale", "remove one of them"},
    {Refused::tiled_mlp_with_bf16_grads, "tiled_mlp with main_grads_dtype bf16",
     "the sum over tiles would be rounded after every tile", "set main_grads_dtype to fp32"},
    {Refused::tiled_mlp_with_recomputed_mlp, "tiled_mlp with recompute_modules mlp or mlp_act",
     "a tile is recomputed already, and would be computed a third time",
     "leave them out of recompute_modules; core_attn and layernorm can be recomputed"},
};

constexpr bool is_in_order() {
  for (size_t i = 0; i < std::size(kRefused); ++i) {
    if (kRefused[i].key != static_cast<Refused>(i)) return false;
  }
  return kRefused[std::size(kRefused) - 1].key == Refused::tiled_mlp_with_recomputed_mlp;
}
static_assert(is_in_order());

constexpr const char* kBeginning = R"(# Refused combinations

Settings that are supported, but not together. The program reports them with these words. The table is generated from
the checks (core/base/refused_combinations.cpp); after a change write it again with

    CONCORD_WRITE_DOCS=1 build/tests/base_test --gtest_filter='RefusedCombinations.*'

Settings that contradict each other (`fp16` with `bf16`) are not listed. What a model or a device lacks is in
[models](models.md) and in the [table of devices](../README.md#what-works-on-which-device).

| settings | why | instead |
|---|---|---|
)";

}  // namespace

std::span<const RefusedCombination> refused_combinations() { return kRefused; }

std::string refusal_message(Refused combination, const std::string& given) {
  const RefusedCombination& refused = kRefused[static_cast<size_t>(combination)];
  return fmt::format("{} is not supported: {}; {}", given.empty() ? refused.settings : given, refused.why,
                     refused.remedy);
}

std::string refused_combinations_page() {
  std::string page = kBeginning;
  for (const RefusedCombination& each : kRefused) {
    page += fmt::format("| {} | {} | {} |\n", each.settings, each.why, each.remedy);
  }
  return page;
}

}  // namespace concord
