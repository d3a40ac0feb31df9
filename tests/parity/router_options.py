"""Router losses and expert capacities in `concord train`, compared with transformers with Megatron's definitions in
torch.

router_options.py PROGRAM

Three steps of eight samples for each case: losses, gradient norms and all final weights, including the expert biases.
The definitions are those of Megatron's router.py and moe_utils.py, reimplemented here over all experts. Exit code 77:
transformers is missing, nothing was compared.
"""

import argparse
import itertools
import json
import math
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import train_experts
from random_models import load_file, make_model, torch, transformers  # exits with 77 if missing

train_experts.STEPS = 3
train_experts.WEIGHT = 3e-5  # the first updates of Adam are signs, so that gradients near 0 have large ones
BATCH, MICRO, LENGTH = train_experts.BATCH, train_experts.MICRO, train_experts.LENGTH

COMMON = {"vocab_size": 96, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
          "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 64, "initializer_range": 0.2,
          "moe_intermediate_size": 16, "num_experts_per_tok": 2, "tie_word_embeddings": False,
          "pad_token_id": None, "bos_token_id": None, "eos_token_id": None}
MODELS = {
    "qwen3_moe": COMMON | {"num_experts": 8, "norm_topk_prob": True},
    "qwen2_moe": COMMON | {"num_experts": 4, "shared_expert_intermediate_size": 24},
    "glm4_moe": COMMON | {"n_routed_experts": 8, "n_shared_experts": 1, "n_group": 2, "topk_group": 1,
                          "first_k_dense_replace": 0, "routed_scaling_factor": 1.5},
}
MODELS["glm4_moe, one group"] = MODELS["glm4_moe"] | {"n_group": 1}  # the biases change the choice of the best scores
AUX, Z, BIAS_RATE = 0.5, 0.02, 0.01

TP_SP = ["tensor_model_parallel_size: 2", "sequence_parallel: true"]
EP = ["expert_model_parallel_size: 2", "expert_tensor_parallel_size: 1"]
ACCUMULATE = {1: "gradient_accumulation_steps: 4", 2: "gradient_accumulation_steps: 2"}  # by data-parallel ranks


def ring(tokens):  # four chunks, the first and the last on one rank
    quarter = tokens // 4
    return [[*range(quarter), *range(3 * quarter, tokens)], range(quarter, 3 * quarter)]


def whole(tokens):
    return [range(tokens)]


def halves(tokens):  # one per sequence-parallel rank
    return [range(tokens // 2), range(tokens // 2, tokens)]


# name: (processes, data-parallel ranks, arguments, positions of a sequence that a router sees together)
ONE = ("one process", 1, 1, [], whole)
DP = ("dp 2, ep 2", 2, 2, EP + ["use_distributed_optimizer: true"], whole)
ETP = ("dp 2, etp 2", 2, 2, ["expert_tensor_parallel_size: 2"], whole)
TP = ("tp 2, ep 2", 2, 1, TP_SP + EP, whole)
SP_EP = ("tp 2, sequence parallel, ep 2", 2, 1, TP_SP + EP, halves)
SP_ETP = ("tp 2, sequence parallel, etp 2", 2, 1, TP_SP, halves)
TP_ONLY = ("tp 2", 2, 1, TP_SP[:1], whole)
CP = ("cp 2, ep 2", 2, 1, ["context_parallel_size: 2"] + EP, ring)
PP = ("pp 2", 2, 1, ["pipeline_model_parallel_size: 2"], whole)
ZB = ("pp 2, dp 2, ep 2, zb-h1", 4, 2, ["pipeline_model_parallel_size: 2", "pipeline_schedule: zb-h1"] + EP, whole)
TOKENS = ("per token, recomputed", 1, 1, ["calculate_per_token_loss: true", "recompute_granularity: full"], whole)

PADDED = ("dp 2, ep 2, padded to capacity", 2, 2, EP + ["moe_pad_expert_input_to_capacity: true"], whole)
UNEVEN = (32, 4, 12, 28)  # tokens of the rows of each micro-batch of a step, so that data-parallel ranks differ

# model, moe_router_load_balancing_type, (capacity factor, policy), layouts, tokens of rows
CASES = [
    ("qwen3_moe", "global_aux_loss", None, [ONE, DP, TP, CP, ZB, TOKENS]),
    ("glm4_moe", "seq_aux_loss", None, [ONE, DP, CP, PP, TOKENS]),
    ("glm4_moe", "aux_loss", (1.0, "probs"), [ONE, SP_EP]),
    ("glm4_moe, one group", "global_aux_loss", None, [DP]),
    ("glm4_moe, one group", "seq_aux_loss", (0.75, "probs"), [ONE, DP, PADDED, ETP], UNEVEN),
    ("qwen3_moe", "none", (0.75, "probs"), [ONE, DP, CP, ETP, SP_EP, TP_ONLY]),
    ("qwen2_moe", "none", (1.0, "position"), [ONE, CP, ZB, ETP, TOKENS, SP_ETP]),
]


def scores_of(logits, sigmoid):
    if not sigmoid:
        return logits.softmax(-1)
    scores = logits.sigmoid()
    return scores / (scores.sum(-1, keepdim=True) + 1e-20)


def dense_map(indices, experts):
    return torch.zeros(len(indices), experts, dtype=torch.bool).scatter(1, indices, True)


def kept(weights, indices, experts, factor, policy):
    """apply_router_token_dropping: [tokens, k], whether a choice is within the expert's capacity."""
    tokens, k = indices.shape
    capacity = math.ceil(tokens * k / experts * factor)
    if capacity > tokens:
        return torch.ones_like(indices, dtype=torch.bool)
    dense = torch.zeros(tokens, experts).scatter(1, indices, weights.detach())
    if policy == "position":  # the first ones among those that chose it
        dense = dense_map(indices, experts) * torch.arange(tokens, 0, -1).unsqueeze(1)
    best = dense.sort(dim=0, descending=True, stable=True).indices[:capacity]  # topk does not specify the order of ties
    return torch.zeros(tokens, experts, dtype=torch.bool).scatter(0, best, True).gather(1, indices)


class Routers:
    """The gates of a model, which drop choices and record their logits."""

    def __init__(self, model, capacity, positions):
        self.gates = [m for m in model.modules() if type(m).__name__.endswith(("TopKRouter", "TopkRouter"))]
        self.logits, self.chosen, self.length = [], [0] * len(self.gates), 0
        for number, gate in enumerate(self.gates):
            gate.forward = self.patched(number, gate.forward, capacity, positions)

    def patched(self, number, forward, capacity, positions):
        def call(hidden):
            logits, weights, indices = forward(hidden)
            experts, length = logits.shape[-1], self.length
            rows = logits.numel() // experts // length
            self.logits.append(logits.reshape(rows, length, experts).float())
            used = dense_map(indices, experts)
            if capacity:
                mask = torch.ones_like(indices, dtype=torch.bool)
                for part in positions(length):  # tokens in Megatron's order: all rows of a position
                    places = torch.tensor([row * length + at for at in part for row in range(rows)])
                    mask[places] = kept(weights[places], indices[places], experts, *capacity)
                weights = weights * mask
                used = torch.zeros_like(used).scatter(1, indices, mask)
            self.chosen[number] = self.chosen[number] + used.sum(0)
            return logits, weights, indices
        return call

    def take(self):
        taken, self.logits = self.logits, []
        return taken

    def update_biases(self):
        for number, gate in enumerate(self.gates):
            if hasattr(gate, "e_score_correction_bias"):
                counts = self.chosen[number].float()
                gate.e_score_correction_bias += BIAS_RATE * torch.sign(counts.mean() - counts)
            self.chosen[number] = 0


def balancing_loss(kind, logits, sigmoid, k, counts_of_step):
    rows, tokens, experts = logits.shape
    scores = scores_of(logits, sigmoid)
    chosen = torch.zeros_like(scores).scatter(-1, scores.topk(k, dim=-1).indices, 1.0)
    if kind == "seq_aux_loss":
        return (scores.sum(1) * chosen.sum(1)).sum() * experts / (k * tokens**2) / rows
    counts, total = chosen.sum((0, 1)), rows * tokens
    if kind == "global_aux_loss":  # the fractions of the step so far
        counts = counts_of_step / counts_of_step.sum() * k * total
    return (scores.sum((0, 1)) * counts).sum() * experts / (k * total**2)


def train_reference(folder, batches, kind, capacity, dp, positions):
    """|batches|: the micro-batches of all steps."""
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    k, sigmoid = model.config.num_experts_per_tok, model.config.model_type == "glm4_moe"
    routers = Routers(model, capacity, positions)
    optimizer = train_experts.make_optimizer(model)
    steps = []
    for step in range(1, train_experts.STEPS + 1):
        for group in optimizer.param_groups:
            group["lr"] = train_experts.lr_at(step)
        optimizer.zero_grad()
        count = BATCH // MICRO
        parts = batches[(step - 1) * count:step * count]
        logged, so_far = 0.0, [0] * len(routers.gates)
        for first in range(0, len(parts), dp):  # the micro-batches of the data-parallel ranks at the same time
            outputs = []
            for part in parts[first:first + dp]:
                routers.length = part.shape[1]
                loss = model(input_ids=part, labels=part).loss
                outputs.append((loss, routers.take()))
            for layer in range(len(so_far)):
                for _, logits in outputs:
                    best = scores_of(logits[layer], sigmoid).topk(k, dim=-1).indices.flatten()
                    so_far[layer] = so_far[layer] + torch.bincount(best, minlength=logits[layer].shape[-1])
            for loss, logits in outputs:
                logged += loss.item() / len(parts)
                for layer, of_layer in enumerate(logits):
                    if kind != "none":
                        loss = loss + AUX * balancing_loss(kind, of_layer, sigmoid, k, so_far[layer])
                        loss = loss + Z * of_layer.logsumexp(-1).square().mean()
                (loss / len(parts)).backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), train_experts.CLIP, foreach=False)
        optimizer.step()
        routers.update_biases()
        steps.append((logged, norm.item()))
    return model, steps


def arguments_of(kind, capacity, dp):
    words = [f"moe_router_load_balancing_type: {kind}", f"moe_router_bias_update_rate: {BIAS_RATE}", ACCUMULATE[dp]]
    if kind != "none":
        words += [f"moe_aux_loss_coeff: {AUX}", f"moe_z_loss_coeff: {Z}"]
    if capacity:
        words += [f"moe_expert_capacity_factor: {capacity[0]}", f"moe_token_drop_policy: {capacity[1]}"]
    return words


def check_drop_rate(folder, capacity):
    lines = train_experts.metrics_of(folder)
    rates = [line[f"token_drop_rate_layer_{layer}"] for line in lines for layer in (0, 1)] if capacity else []
    if capacity:
        assert all(0 < rate < 0.7 for rate in rates), f"drop rates {rates}"
    else:
        assert not any("token_drop_rate" in line for line in lines)


def compare_case(program, name_of_model, kind, capacity, layouts, lengths=(LENGTH, )):
    family = name_of_model.split(",")[0]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = make_model(family, MODELS[name_of_model], 3).float()
        for key, buffer in model.named_buffers():
            if key.endswith("e_score_correction_bias"):
                buffer.copy_(torch.linspace(-0.2, 0.2, len(buffer)))
        model.save_pretrained(folder / "model")
        batches = train_experts.make_tokens(COMMON["vocab_size"]).split(MICRO)
        batches = [part[:, :length] for part, length in zip(batches, itertools.cycle(lengths))]
        (folder / "data.jsonl").write_text("".join(json.dumps({"input_ids": row}) + "\n" for part in batches for row in part.tolist()))
        for layout, world, dp, words, positions in layouts:
            wanted, steps = train_reference(folder / "model", batches, kind, capacity, dp, positions)
            wanted.save_pretrained(folder / "wanted")
            words = [f"train_data: {folder}/data.jsonl", *arguments_of(kind, capacity, dp), *words]
            if len(lengths) > 1:
                words.append("calculate_per_token_loss: false")  # like the weights of micro-batches in the reference
            got = train_experts.run_here(program, folder, folder / "model", world, words)
            train_experts.compare(f"{name_of_model}, {kind}, {capacity}, {layout}", *got, steps,
                                  load_file(folder / "wanted" / "model.safetensors"))
            check_drop_rate(folder, capacity)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    program = parser.parse_args().program
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    torch.set_num_threads(1)
    for case in CASES:
        compare_case(program, *case)


if __name__ == "__main__":
    main()
