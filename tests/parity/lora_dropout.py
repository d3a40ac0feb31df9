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
        compare(program, "qwen2_moe", with_dropout(gates / "model", folder / "gates_adapter", experts), folder / "few.safetensors", folder / "experts",
                ["one"], experts)


if __name__ == "__main__":
    main()
