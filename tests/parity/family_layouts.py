"""Every family with every kind of layout, compared with transformers.

family_layouts.py PROGRAM [--all] [--only FAMILY...]

For each family a random tiny model, for which `concord probe` computes logits, loss and gradients with one process and
with tensor, pipeline, context and, if it has experts, expert and expert-tensor parallelism, and combinations. Without
--all: the families that no other check covers with all of these. Families that no other check trains also train for 20
steps, and transformers loads what they save. Exit code 77: transformers is missing, nothing was compared.
"""

import argparse
import copy
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from random_models import FAMILIES, LINEAR, make_model, number_of_experts, torch, transformers  # exits with 77 if missing
import latent_attention
import linear_attention
import train_experts

TP = ["--tensor_model_parallel_size", "2"]
CP = ["--context_parallel_size", "2"]
EP = ["--expert_model_parallel_size", "2"]
EP4 = ["--expert_model_parallel_size", "4"]
ETP1 = ["--expert_tensor_parallel_size", "1"]
ETP2 = ["--expert_tensor_parallel_size", "2"]
PP = ["--pipeline_model_parallel_size", "2"]
SP = "--sequence_parallel"
LAYOUTS = {
    "one process": (1, []), "tp 2, sequence parallel": (2, [*TP, SP]), "cp 2": (2, CP), "tp 2, pp 2": (4, [*TP, *PP]),
    "cp 2, tokens for heads": (2, [*CP, "--cp_comm_type", "a2a"]),
    "pp 2, cp 2": (4, [*PP, *CP, "--cp_comm_type", "all_gather"])}
WITH_EXPERTS = {
    "dp 2, ep 2": (2, EP), "dp 2, etp 2": (2, ETP2), "tp 2, dp 2, ep 4": (4, [*TP, SP, *EP4, *ETP1]),
    "tp 2, cp 2, ep 2, etp 2": (4, [*TP, *CP, SP, *EP, *ETP2]), "pp 2, cp 2, ep 2": (4, [*PP, *CP, *EP])}

COMMON = {
    "vocab_size": 128, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 64, "initializer_range": 0.1, "tie_word_embeddings": False,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}, "attn_implementation": "eager",
    "pad_token_id": None, "bos_token_id": None, "eos_token_id": None}
QWEN_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "decoder_sparse_step": 1}
WINDOW = {"sliding_window": 5}
DELTA = linear_attention.SETTINGS | {"num_hidden_layers": 2, "layer_types": ["linear_attention", "full_attention"], "mlp_only_layers": []}
LATENT = latent_attention.SETTINGS | {"head_dim": None, "initializer_range": 0.1}
OWN = {
    "qwen2": {"head_dim": None}, "qwen3": {"attention_bias": True}, "llama": {"attention_bias": True, "mlp_bias": True},
    "mistral": WINDOW, "qwen2_moe": QWEN_EXPERTS | {"head_dim": None, "shared_expert_intermediate_size": 24},
    "qwen3_moe": QWEN_EXPERTS, "mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2},
    "granite": {"head_dim": None, "embedding_multiplier": 3.0, "residual_multiplier": 0.5, "attention_multiplier": 0.3, "logits_scaling": 2.0},
    "smollm3": {"head_dim": None, "no_rope_layers": [1, 0]},
    "seed_oss": {"attention_bias": True, "attention_out_bias": True, "attention_dropout": 0.0, "residual_dropout": 0.0},
    "olmo2": {"head_dim": None}, "phi3": {"head_dim": None} | WINDOW, "glm4": {"attention_bias": True},
    "glm4_moe": {"attention_bias": True, "use_qk_norm": True, "n_routed_experts": 8, "num_experts_per_tok": 2, "n_group": 2, "topk_group": 1,
                 "moe_intermediate_size": 16, "n_shared_experts": 1, "routed_scaling_factor": 2.5, "first_k_dense_replace": 1},
    "gemma2": WINDOW | {"query_pre_attn_scalar": 8, "attn_logit_softcapping": 2.0, "final_logit_softcapping": 5.0, "tie_word_embeddings": True},
    "gemma3_text": WINDOW | {"query_pre_attn_scalar": 8, "sliding_window_pattern": 2, "tie_word_embeddings": True, "rope_parameters": {
        "full_attention": {"rope_type": "default", "rope_theta": 10000.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 700.0}}},
    "gpt_oss": WINDOW | {"intermediate_size": 24, "num_local_experts": 4, "num_experts_per_tok": 2, "swiglu_limit": 2.0, "rope_parameters": {
        "rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "truncate": False, "original_max_position_embeddings": 16}},
    "deepseek_v3": LATENT,
    "qwen3_next": DELTA,
    "olmo3": WINDOW | {"head_dim": None, "layer_types": ["sliding_attention", "full_attention"], "rope_parameters": {
        "full_attention": {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 16},
        "sliding_attention": {"rope_type": "default", "rope_theta": 700.0}}},
    "ernie4_5": {"use_bias": True, "tie_word_embeddings": True},
    "hunyuan_v1_dense": {"attention_bias": True, "rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 1.0, "alpha": 9.0}},
    "ministral3": {"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 7,
                                       "mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.3}},
    "glm4_moe_lite": LATENT | {"n_group": 1, "topk_group": 1, "mlp_layer_types": ["dense", "sparse"],
                               "rope_parameters": {"rope_type": "default", "rope_theta": 1e4}},
    "minimax_m2": {"intermediate_size": 24, "num_local_experts": 4, "num_experts_per_tok": 2, "rotary_dim": 4},
    "ernie4_5_moe": {"head_dim": None, "moe_num_experts": 4, "moe_k": 2, "moe_intermediate_size": 16,
                     "moe_num_shared_experts": 2, "moe_layer_start_index": 0},
    "qwen3_5_text": {key: value for key, value in DELTA.items() if "expert" not in key}, "qwen3_5_moe_text": DELTA,
}
# hf_parity_test has golden files of these under such layouts and more.
GOLDEN = ("qwen2", "qwen2_moe", "qwen3_moe", "mixtral")
NORM, WEIGHT = train_experts.NORM, train_experts.WEIGHT
TRAINED = ("olmo3", "ernie4_5", "hunyuan_v1_dense", "ministral3", "glm4_moe_lite", "minimax_m2", "ernie4_5_moe",
           "qwen3_5_text", "qwen3_5_moe_text")
TRAINING = {"tp 2, pp 2": (4, ["tensor_model_parallel_size: 2", "sequence_parallel: true", "pipeline_model_parallel_size: 2",
                              "gradient_accumulation_steps: 4"])}
DENSE_TRAINING = {"cp 2": (2, ["context_parallel_size: 2", "gradient_accumulation_steps: 4"])}
EXPERT_TRAINING = {"dp 2, ep 2": (2, ["expert_model_parallel_size: 2", "gradient_accumulation_steps: 2",
                                      "use_distributed_optimizer: true"])}


def settings_of(family):
    settings = copy.deepcopy(COMMON | OWN[family])  # transformers changes the dictionaries of ropes
    return {key: value for key, value in settings.items() if key != "head_dim" or value is not None}


def layouts_of(settings):
    all_of_them = LAYOUTS | (WITH_EXPERTS if number_of_experts(settings) > 1 else {})
    return {name: [*words, "--nproc", str(world)] if world > 1 else words for name, (world, words) in all_of_them.items()}


def train(program, family, settings, folder):
    model = make_model(family, settings, 9).float()
    for name, bias in model.state_dict().items():
        if "moe_statics" in name:
            bias.mul_(0.1)  # all experts are chosen: the router's gradient for others is rounding only, which AdamW enlarges
    model.save_pretrained(folder / "trained")
    more = EXPERT_TRAINING if number_of_experts(settings) > 1 else DENSE_TRAINING
    # Gradients of linear attention differ by up to 6.6e-6. AdamW divides by the size of gradients, which are small for the
    # biases of keys, whose sums almost cancel (linear_attention.py).
    differs = family in (*LINEAR, "ernie4_5")
    train_experts.NORM, train_experts.WEIGHT = (6.6e-6, linear_attention.WEIGHT) if differs else (NORM, WEIGHT)
    train_experts.compare_all(program, folder / "trained", aux=0.0, layouts=TRAINING | more)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--only", nargs="+", choices=FAMILIES, default=FAMILIES)
    arguments = parser.parse_args()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    torch.set_num_threads(1)
    assert set(OWN) == set(FAMILIES), set(OWN) ^ set(FAMILIES)
    for family in arguments.only:
        if family in GOLDEN and not arguments.all:
            continue
        settings = settings_of(family)
        with tempfile.TemporaryDirectory() as folder:
            latent_attention.compare_layouts(arguments.program, family, family, settings, layouts_of(settings), 24, Path(folder))
            if family in TRAINED:
                train(arguments.program, family, settings, Path(folder))


if __name__ == "__main__":
    main()
