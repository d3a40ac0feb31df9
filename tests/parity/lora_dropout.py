"""Adapters with lora_dropout in `concord train`, compared with peft with the same masks: lora_dropout.py PROGRAM

The masks are computed here with numpy: Philox 4x32-10, whose key is a stream's seed and whose subsequence is the hash
of its name (core/mesh/rng_tracker.h), counted through all draws of a run. A draw covers all targets of a fused layer
(q, k, v; gate, up), in the order of the tokens [s, b, features]. Compares the losses of all steps with layouts, with
weights that depend on dropout from the first step on; `concord probe` computes without dropout, like peft in
evaluation. Exit code 77: peft is missing.
"""

import json
import shutil
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from lora_in_peft import (GOLDEN, LOSS_BOUND, LR, MODEL, compare_logits, compare_losses, load, load_file, losses_of, save_file, torch,
                          train, transformers)  # exits with 77
from dropout import philox

import numpy

SEED, SHARE, ROWS, STEPS = 11, 0.3, 8, 3
FUSED = {"q_proj": "qkv", "k_proj": "qkv", "v_proj": "qkv", "gate_proj": "gate_up", "up_proj": "gate_up"}
# The random streams of ranks, by the part of a layer's input on a rank: all of it, its features, or its tokens.
LAYOUTS = {
    "one": ([], {}),
    "all recomputed": (["--recompute_granularity", "full"], {}),
    "tp 2": (["--nproc", 2, "--tensor_model_parallel_size", 2], {"o_proj": -1, "down_proj": -1}),
    "tp 2, sequence parallel": (["--nproc", 2, "--tensor_model_parallel_size", 2, "--sequence_parallel"],
                                {"qkv": 0, "o_proj": -1, "gate_up": 0, "down_proj": -1}),
}


class Stream:
    """A named stream of random numbers, starting at 0."""

    def __init__(self, name, seed):
        self.seed, self.subsequence, self.drawn = seed, 0xcbf29ce484222325, 0
        for letter in name.encode():  # FNV-1a
            self.subsequence = (self.subsequence ^ letter) * 0x100000001b3 % 2**64

    def mask(self, shape):
        positions = self.drawn + numpy.arange(numpy.prod(shape))
        self.drawn += positions.size
        words = philox(self.seed, self.subsequence, positions)
        uniform = (words >> numpy.uint64(8)).astype(numpy.float32) * numpy.float32(2.0**-24)
        return torch.from_numpy((uniform >= numpy.float32(SHARE)).astype(numpy.float32)).view(shape) / (1 - SHARE)


class Masks:
    """Draws for the layers of a model in the order of its forward; |cut|: the dim of [s, b, features] that is split
    over ranks."""

    def __init__(self, model, cut):
        self.whole, self.ranks = Stream("default", SEED), [Stream("model-parallel-rng", SEED + 2718 + rank) for rank in range(2)]
        self.cut, self.targets, self.made = cut, {}, {}
        for name, module in model.named_modules():
            if hasattr(module, "lora_dropout"):
                parent, _, last = name.rpartition(".")
                layer = (parent, FUSED.get(last, last))
                self.targets[layer] = self.targets.get(layer, 0) + 1
                module.lora_dropout["default"] = Dropped(self, layer)

    def draw(self, shape, cut):
        if cut is None:
            return self.whole.mask(shape)
        own = list(shape)
        own[cut] //= len(self.ranks)
        return torch.cat([stream.mask(own) for stream in self.ranks], cut)

    def of(self, layer, x):
        """Returns the same mask for all targets of |layer| in a forward."""
        mask, left = self.made.get(layer, (None, 0))
        if left == 0:
            mask = self.draw((x.numel() // x.shape[-1] // ROWS, ROWS, x.shape[-1]), self.cut.get(layer[1]))
            left = self.targets[layer]
        self.made[layer] = (mask, left - 1)
        return mask.transpose(0, 1).reshape(x.shape)


class Dropped(torch.nn.Module):

    def __init__(self, masks, layer):
        super().__init__()
        self.masks, self.layer = masks, layer

    def forward(self, x):
        return x * self.masks.of(self.layer, x) if torch.is_grad_enabled() else x


EXPERTS = GOLDEN / "hf/qwen3-moe-tiny"
# The expert-parallel streams that draw, by the rank of etp: the layouts of experts.
EXPERT_LAYOUTS = {
    "one": ([], [0]),
    "all recomputed": (["--recompute_granularity", "full"], [0]),
    "tp 2, etp 2": (["--nproc", 2, "--tensor_model_parallel_size", 2, "--sequence_parallel"], [0, 1]),
}


class DroppingExperts(torch.nn.Module):
    """The experts of a layer with an adapter on each, which peft has without dropout only. Rows are sorted by expert, then
    by token [s, b] and choice. Each rank of etp has the whole input of gate and up, a part of their outputs, and a part
    of the input of down."""

    def __init__(self, experts, pairs, scale, streams):
        super().__init__()
        self.gate_up, self.down, self.pairs, self.scale, self.streams = experts.gate_up_proj, experts.down_proj, pairs, scale, streams

    def pair(self, expert, name, x):
        a, b = self.pairs[f"{expert}.{name}"]
        return self.scale * x @ a.T @ b.T

    def forward(self, hidden, index, weights):
        order = torch.arange(len(hidden)).view(ROWS, -1).t().flatten()
        places = [(token, choice) for expert in range(len(self.gate_up)) for token in order.tolist()
                  for choice in (index[token] == expert).nonzero().flatten().tolist()]
        tokens, choices = map(torch.tensor, zip(*places))
        x, counts = hidden[tokens], torch.bincount(index.flatten(), minlength=len(self.gate_up)).tolist()
        inner = self.down.shape[-1] // len(self.streams)
        outer_masks = [stream.mask(x.shape) for stream in self.streams]
        inner_mask = torch.cat([stream.mask((len(x), inner)) for stream in self.streams], 1)
        result, begin = torch.zeros_like(hidden), 0
        for expert, count in enumerate(counts):
            rows = slice(begin, begin + count)
            gate, up = (x[rows] @ self.gate_up[expert].T).chunk(2, -1)
            parts = {}
            for name, plain in (("gate_proj", gate), ("up_proj", up)):
                own = [self.pair(expert, name, x[rows] * mask[rows])[:, i * inner:(i + 1) * inner] for i, mask in enumerate(outer_masks)]
                parts[name] = plain + torch.cat(own, 1)
            mixed = torch.nn.functional.silu(parts["gate_proj"]) * parts["up_proj"]
            y = mixed @ self.down[expert].T + self.pair(expert, "down_proj", mixed * inner_mask[rows])
            result = result.index_add(0, tokens[rows], y * weights[tokens[rows], choices[rows], None])
            begin += count
        return result


def compare_dropping_experts(program, data, folder):
    words = ["--lora_rank", 3, "--lora_alpha", 5, "--lora_target", r".*[.]experts[.].*"]
    train(program, data, folder / "start", *words, "--max_steps", 3, model=EXPERTS)
    adapter = with_dropout(folder / "start/model", folder / "adapter", EXPERTS)
    for layout, (words, ranks) in EXPERT_LAYOUTS.items():
        model = transformers.AutoModelForCausalLM.from_pretrained(EXPERTS, dtype=torch.float32, attn_implementation="eager")
        model.requires_grad_(False)
        tensors = {name: torch.nn.Parameter(value) for name, value in load_file(str(adapter / "adapter_model.safetensors")).items()}
        streams = [Stream("expert-parallel-rng", SEED + 1024 + rank) for rank in ranks]
        for number, layer in enumerate(model.model.layers):
            prefix = f"base_model.model.model.layers.{number}.mlp.experts."
            pairs = {name.removeprefix(prefix).removesuffix(".lora_A.weight"): (a, tensors[name.replace("lora_A", "lora_B")])
                     for name, a in tensors.items() if name.startswith(prefix) and name.endswith("lora_A.weight")}
            layer.mlp.experts = DroppingExperts(layer.mlp.experts, pairs, 5 / 3, streams)
        for number, tensor in enumerate(tensors.values()):
            model.register_parameter(f"pair_{number}", tensor)
        found = train(program, data, folder / layout, "--adapter_name_or_path", adapter, "--seed", SEED,
                      "--per_device_train_batch_size", ROWS, "--max_steps", STEPS, *words, model=EXPERTS)
        wanted = losses_of(model, load_file(str(data)), LR)
        compare_losses(f"experts, {layout}", found, wanted)
    plain = train(program, data, folder / "plain", "--adapter_name_or_path", folder / "start/model", "--max_steps", STEPS, model=EXPERTS)
    assert max(abs(a - b) for a, b in zip(plain, found)) > 100 * LOSS_BOUND, "dropout makes no difference"


def with_dropout(source, folder, model=MODEL):
    shutil.copytree(source, folder)
    config = json.loads((folder / "adapter_config.json").read_text())
    (folder / "adapter_config.json").write_text(json.dumps(config | {"lora_dropout": SHARE, "base_model_name_or_path": str(model)}))
    return folder


def compare(program, name, adapter, data, folder, layouts, model=MODEL):
    plain = losses_of(load(adapter, trainable=True, model=model).eval(), load_file(str(data)), LR)
    for layout in layouts:
        words, cut = LAYOUTS[layout]
        dropped = load(adapter, trainable=True, model=model).train()  # DoRA in peft drops the base weight's input too
        Masks(dropped, cut)
        wanted = losses_of(dropped, load_file(str(data)), LR)
        assert max(abs(a - b) for a, b in zip(plain, wanted)) > 100 * LOSS_BOUND, "dropout makes no difference"
        found = train(program, data, folder / layout, "--adapter_name_or_path", adapter, "--seed", SEED,
                      "--per_device_train_batch_size", ROWS, "--max_steps", STEPS, *words, model=model)
        compare_losses(f"{name}, {layout}", found, wanted)


def main():
    program = sys.argv[1]
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    with tempfile.TemporaryDirectory(prefix="concord-dropout-") as name:
        folder = Path(name)
        tokens, expected = load_file(GOLDEN / "train/tokens.safetensors"), load_file(GOLDEN / "lora/expected.safetensors")
        data = {"input_ids": tokens["input_ids"][:STEPS].contiguous(), "labels": tokens["labels_full"][:STEPS].contiguous()}
        save_file(data, str(folder / "data.safetensors"))
        save_file({key: expected[key] for key in ("input_ids", "labels")}, str(folder / "batch.safetensors"))
        adapter = with_dropout(GOLDEN / "lora", folder / "adapter")
        compare(program, "qwen2", adapter, folder / "data.safetensors", folder, LAYOUTS)
        compare_logits(program, adapter, folder / "batch.safetensors", folder)

        dora = folder / "dora"
        train(program, folder / "data.safetensors", dora, "--use_dora", "--lora_rank", 3, "--lora_target",
              "q_proj,k_proj,o_proj,up_proj,down_proj", "--max_steps", 3)
        adapter = with_dropout(dora / "model", folder / "dora_adapter")
        compare(program, "DoRA", adapter, folder / "data.safetensors", folder / "dora_runs", LAYOUTS)
        compare_logits(program, adapter, folder / "batch.safetensors", folder)

        # Layers that are replicated on every rank.
        gates, experts = folder / "gates", GOLDEN / "hf/qwen2-moe-tiny"
        save_file({key: torch.where(value < 0, value, value % 256) for key, value in data.items()}, str(folder / "few.safetensors"))
        train(program, folder / "few.safetensors", gates, "--lora_rank", 3, "--lora_target", "q_proj,shared_expert_gate,shared_expert.up_proj",
              "--max_steps", 3, model=experts)
        compare_dropping_experts(program, folder / "few.safetensors", folder / "dropping")
        compare(program, "qwen2_moe", with_dropout(gates / "model", folder / "gates_adapter", experts), folder / "few.safetensors", folder / "experts",
                ["one"], experts)


if __name__ == "__main__":
    main()
