"""Training with dropout and with NEFTune's noise by `concord train` with several layouts, compared with transformers
with the same masks and noise.

dropout.py PROGRAM

Masks and noise are computed here with numpy, as documented in docs/training.md (Philox 4x32-10 at global addresses), and
inserted into transformers' models: attention_dropout replaces torch's own dropout, hidden_dropout uses hooks at
Megatron's positions, and the noise one where transformers' activate_neftune has its own. Compares losses and gradient norms of a few steps, and the final weights. A layout with any
different mask or noise would be off by orders of magnitude. Exit code 77: transformers is missing, nothing was compared.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import preloaded

sys.path.insert(0, str(Path(__file__).parent))
from largest import largest
from random_models import load_file, make_model, save_file, torch, transformers  # exits with 77 if missing

import numpy

STEPS, BATCH, LENGTH, SEED, LR = 3, 4, 16, 7, 1e-2
ATTENTION, HIDDEN, NOISE = 0.2, 0.1, 15.0
# Bounds for float32: ten times the measured differences, as in train_experts.py; relative for norms and weights.
LOSS, NORM, WEIGHT = 4e-6, 2e-6, 4e-7
LLAMA = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
         "num_key_value_heads": 2, "max_position_embeddings": 64, "initializer_range": 0.1,
         "attention_dropout": ATTENTION, "pad_token_id": None, "bos_token_id": None, "eos_token_id": None}
SMALL = {key: LLAMA[key] for key in LLAMA if key != "rope_parameters"} | {"head_dim": 8}
# Families with other attention layers: the model, its trained parameters, and the modules whose output is added.
MODELS = {
    "llama": (LLAMA, [], ("self_attn", "mlp")),
    "gemma2": (SMALL | {"sliding_window": 5, "attn_logit_softcapping": 2.0, "query_pre_attn_scalar": 8}, [],
               ("post_attention_layernorm", "post_feedforward_layernorm")),
    "gpt_oss": (SMALL | {"sliding_window": 5, "num_local_experts": 4, "num_experts_per_tok": 2,
                         "rope_parameters": {"rope_type": "default", "rope_theta": 1e4}},
                ["moe_router_load_balancing_type: none"], ("self_attn", "mlp")),
}
# Families by what their embedding does: nothing more, multiplied outside or inside of the module that has the hook.
NOISY = {
    "llama": LLAMA | {"attention_dropout": 0.0},
    "granite": LLAMA | {"attention_dropout": 0.0, "embedding_multiplier": 3.0},
    "gemma2": SMALL | {"attention_dropout": 0.0, "query_pre_attn_scalar": 8},
}
LAYOUTS = {
    "one process": (1, ["per_device_train_batch_size: 4"]),
    "dp 2, distributed optimizer": (2, ["use_distributed_optimizer: true", "gradient_accumulation_steps: 2"]),
    "tp 2, sequence parallel, all recomputed": (2, ["tensor_model_parallel_size: 2", "sequence_parallel: true",
                                                    "per_device_train_batch_size: 2", "gradient_accumulation_steps: 2",
                                                    "recompute_granularity: full", "recompute_method: uniform"]),
    "cp 2, pp 2": (4, ["context_parallel_size: 2", "pipeline_model_parallel_size: 2", "per_device_train_batch_size: 2",
                       "gradient_accumulation_steps: 2", "recompute_granularity: selective",
                       "recompute_modules: [core_attn]"]),
    "cp 2, tokens for heads": (2, ["context_parallel_size: 2", "cp_comm_type: a2a", "per_device_train_batch_size: 4"]),
    "tp 2, cp 2": (4, ["tensor_model_parallel_size: 2", "context_parallel_size: 2", "sequence_parallel: true",
                       "per_device_train_batch_size: 4"]),
}


def philox(key, subsequence, positions):
    """Returns the word of each position: word p % 4 of block p / 4."""
    positions = positions.astype(numpy.uint64)
    low = numpy.uint64(0xffffffff)
    block = positions >> numpy.uint64(2)
    counter = [block & low, block >> numpy.uint64(32), numpy.full_like(block, subsequence & 0xffffffff),
               numpy.full_like(block, subsequence >> 32)]
    k0, k1 = key & 0xffffffff, key >> 32
    for _ in range(10):
        p0, p1 = numpy.uint64(0xd2511f53) * counter[0], numpy.uint64(0xcd9e8d57) * counter[2]
        counter = [(p1 >> numpy.uint64(32)) ^ counter[1] ^ numpy.uint64(k0), p1 & low,
                   (p0 >> numpy.uint64(32)) ^ counter[3] ^ numpy.uint64(k1), p0 & low]
        k0, k1 = (k0 + 0x9e3779b9) & 0xffffffff, (k1 + 0xbb67ae85) & 0xffffffff
    return numpy.choose((positions & numpy.uint64(3)).astype(int), counter)


def uniform(step, site, row, positions):
    words = philox((SEED << 32) + step, (site << 32) + row, positions)
    return (words >> numpy.uint64(8)).astype(numpy.float32) * numpy.float32(2.0**-24)


def kept(step, site, row, positions, p):
    return torch.from_numpy((uniform(step, site, row, positions) >= numpy.float32(p)).astype(numpy.float32)) / (1 - p)


def noise(step, shape):
    rows, tokens, size = shape
    positions, largest_noise = numpy.arange(tokens * size).reshape(tokens, size), NOISE / (tokens * size)**0.5
    numbers = [uniform(step, 0xffffffff, row, positions) for row in range(rows)]
    return torch.from_numpy((2 * numpy.stack(numbers) - 1) * numpy.float32(largest_noise))


def hidden_mask(step, site, shape):
    rows, tokens, size = shape
    positions = numpy.arange(tokens * size).reshape(tokens, size)
    return torch.stack([kept(step, site, row, positions, HIDDEN) for row in range(rows)])


def attention_mask(step, site, shape):
    rows, heads, queries, keys = shape
    h, q, k = numpy.ogrid[:heads, :queries, :keys]
    positions = ((h.astype(numpy.uint64) << numpy.uint64(48)) + (q.astype(numpy.uint64) << numpy.uint64(24)) + k.astype(
        numpy.uint64))
    return torch.stack([kept(step, site, row, positions, ATTENTION) for row in range(rows)])


class Masks:
    """Multiplies where the model would drop, in the order of a forward pass."""

    def __init__(self, model, modules):
        self.step, self.layer = 0, 0
        torch.nn.functional.dropout = self.drop
        model.model.embed_tokens.register_forward_hook(lambda m, i, x: self.hidden(x, 0))
        for number, layer in enumerate(model.model.layers):
            for part, module in enumerate(modules):
                getattr(layer, module).register_forward_hook(
                    lambda m, i, x, site=number * 3 + 2 + part: self.hidden(x, site))

    def hidden(self, x, site):
        if isinstance(x, tuple):
            return (self.hidden(x[0], site), *x[1:])
        return x * hidden_mask(self.step, site, x.shape)

    def drop(self, x, p=0.5, training=True, inplace=False):
        assert training and p == ATTENTION
        self.layer += 1
        return x * attention_mask(self.step, (self.layer - 1) * 3 + 1, x.shape)

    def begin(self, step):
        self.step, self.layer = step, 0


class Noise:

    def __init__(self, model):
        self.step = 0
        model.get_input_embeddings().register_forward_hook(lambda m, i, x: x + noise(self.step, x.shape))

    def begin(self, step):
        self.step = step


def train_reference(model, ids, insert):
    model = model.float().train()
    model.config._attn_implementation = "eager"
    plain = torch.nn.functional.dropout
    try:
        masks = insert(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=LR, momentum=0.9)
        steps = []
        for step in range(1, STEPS + 1):
            masks.begin(step)
            optimizer.zero_grad()
            part = ids[(step - 1) * BATCH:step * BATCH]
            loss = model(input_ids=part, labels=part).loss
            loss.backward()
            norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1e9, foreach=False)
            optimizer.step()
            steps.append((loss.item(), norm.item()))
        return steps
    finally:
        torch.nn.functional.dropout = plain


def train_here(program, folder, world, layout, more=()):
    config = [f"model: {folder}/model", f"train_data: {folder}/data.safetensors", f"output_dir: {folder}/out",
              "shuffle: false", f"max_steps: {STEPS}", f"learning_rate: {LR}", "lr_scheduler_type: constant",
              "optimizer: sgd", "sgd_momentum: 0.9", "weight_decay: 0", "max_grad_norm: 0", "logging_steps: 1",
              f"seed: {SEED}", f"hidden_dropout: {HIDDEN}", "report_to: [none]", "overwrite_output_dir: true",
              "per_device_train_batch_size: 1"]
    keys = {line.split(":")[0] for line in (*layout, *more)}
    config = [line for line in config if line.split(":")[0] not in keys] + [*layout, *more]
    (folder / "run.yaml").write_text("\n".join(config) + "\n")
    command = [program, "train", "--config", str(folder / "run.yaml"), "--nproc", str(world)]
    done = preloaded.run(command)
    if done.returncode != 0:
        raise AssertionError(f"{' '.join(command)}\n{done.stderr}")
    lines = [json.loads(line) for line in (folder / "out" / "metrics.jsonl").read_text().splitlines()]
    lines = [line for line in lines if "loss" in line]
    return [(line["loss"], line["grad_norm"]) for line in lines], load_file(folder / "out" / "model" / "model.safetensors")


def compare(name, steps, weights, wanted_steps, wanted_weights):
    worst = {"loss": 0.0, "norm": 0.0, "weight": 0.0}
    assert len(steps) == len(wanted_steps), f"{name}: {len(steps)} steps"
    for (loss, norm), (wanted_loss, wanted_norm) in zip(steps, wanted_steps):
        worst["loss"] = largest(worst["loss"], abs(loss - wanted_loss))
        worst["norm"] = largest(worst["norm"], abs(norm - wanted_norm) / wanted_norm)
    for tensor, wanted in wanted_weights.items():
        worst["weight"] = largest(worst["weight"], ((weights[tensor] - wanted).norm() / wanted.norm()).item())
    print(f"{name}: differences " + ", ".join(f"{what} {value:.2g}" for what, value in worst.items()), flush=True)
    for what, bound in (("loss", LOSS), ("norm", NORM), ("weight", WEIGHT)):
        assert worst[what] <= bound, f"{name}: {what} differs by {worst[what]:.3g}, bound {bound:g}"


def compare_packed(program, folder):
    """Packed rows with fewer tokens per rank have the masks of one process. The lengths need no padding for cp 2."""
    torch.manual_seed(3)
    lines = [{"input_ids": torch.randint(0, 64, (length, )).tolist()} for length in (8, 4, 12, 8, 16, 4, 8, 4) * STEPS]
    (folder / "data.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    packed = [f"train_data: {folder}/data.jsonl", "sequence_packing: true", "seq_length: 24"]
    wanted = train_here(program, folder, 1, [], packed)
    # What one process trains does depend on the masks.
    other, _ = train_here(program, folder, 1, [], [*packed, f"seed: {SEED + 1}"])
    assert abs(other[0][0] - wanted[0][0][0]) > 1e-3, f"another seed has the same loss {other[0][0]}"
    compare("packed, tp 2, cp 2", *train_here(program, folder, 4, ["tensor_model_parallel_size: 2",
                                                                  "context_parallel_size: 2"], packed), *wanted)


BETA, PROMPT = 0.1, 6


def log_probs(model, rows):
    """Returns the log-probabilities of completions, whose prompts have PROMPT tokens."""
    scores = model(input_ids=rows).logits[:, :-1].log_softmax(-1).gather(-1, rows[:, 1:, None]).squeeze(-1)
    return scores[:, PROMPT - 1:].sum(-1)


def train_pairs_reference(model, rows):
    """Like train_reference(), with DPO's loss. Rows 2i and 2i + 1 are a pair. The reference has no dropout."""
    with torch.no_grad():
        wanted = log_probs(model.eval(), rows)
    model = model.train()
    plain = torch.nn.functional.dropout
    try:
        masks = Masks(model, ("self_attn", "mlp"))
        optimizer = torch.optim.SGD(model.parameters(), lr=LR, momentum=0.9)
        steps = []
        for step in range(1, STEPS + 1):
            masks.begin(step)
            optimizer.zero_grad()
            part = slice((step - 1) * 2 * BATCH, step * 2 * BATCH)
            ratios = log_probs(model, rows[part]) - wanted[part]
            loss = -torch.nn.functional.logsigmoid(BETA * (ratios[::2] - ratios[1::2])).mean()
            loss.backward()
            norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1e9, foreach=False)
            optimizer.step()
            steps.append((loss.item(), norm.item()))
        return steps
    finally:
        torch.nn.functional.dropout = plain


def compare_pairs(program, folder):
    """DPO with dropout: batch sizes count pairs, and the masks of a pair are those of its two rows."""
    torch.manual_seed(17)
    rows = torch.randint(0, LLAMA["vocab_size"], (2 * STEPS * BATCH, LENGTH))
    rows[1::2, :PROMPT] = rows[::2, :PROMPT]
    lines = [{"prompt_input_ids": chosen[:PROMPT], "chosen_input_ids": chosen[PROMPT:], "rejected_input_ids": rejected[PROMPT:]}
             for chosen, rejected in zip(rows[::2].tolist(), rows[1::2].tolist())]
    (folder / "pairs.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    model = make_model("llama", LLAMA, 5).float()
    model.config._attn_implementation = "eager"
    model.save_pretrained(folder / "model")
    wanted_steps = train_pairs_reference(model, rows)
    model.save_pretrained(folder / "wanted")
    wanted = load_file(folder / "wanted" / "model.safetensors")
    more = ["stage: dpo", f"pref_beta: {BETA}", f"train_data: {folder}/pairs.jsonl", f"attention_dropout: {ATTENTION}"]
    for layout in ("one process", "dp 2, distributed optimizer", "tp 2, cp 2"):
        world, words = LAYOUTS[layout]
        compare(f"pairs, {layout}", *train_here(program, folder, world, words, more), wanted_steps, wanted)


def compare_resumed(program, folder, setting, other, more=()):
    """A resumed run is bitwise identical. |other|: a value of |setting| that it refuses."""
    _, wanted = train_here(program, folder, 1, ["per_device_train_batch_size: 4"], ["save_strategy: steps", "save_steps: 2", *more])
    config = (folder / "run.yaml").read_text().replace("overwrite_output_dir: true", "resume_from_checkpoint: "
                                                       f"{folder}/out/checkpoint-2")
    (folder / "run.yaml").write_text(config)
    command = [program, "train", "--config", str(folder / "run.yaml"), "--output_dir", str(folder / "resumed")]
    done = preloaded.run(command)
    assert done.returncode == 0, done.stderr
    weights = load_file(folder / "resumed" / "model" / "model.safetensors")
    for name, tensor in wanted.items():
        assert torch.equal(weights[name], tensor), f"resumed: {name} differs"
    refused = subprocess.run([*command[:-1], str(folder / "refused"), f"--{setting}", other], capture_output=True, text=True)
    assert refused.returncode == 2 and setting in refused.stderr, refused.stderr
    print(f"resumed with {setting}: bit-identical")


def write_model(folder, family, settings, ids):
    model = make_model(family, settings, 5).float()
    model.save_pretrained(folder / "model")
    save_file({"input_ids": ids, "labels": ids.clone()}, folder / "data.safetensors")
    return model


def compare_layouts(program, folder, family, model, ids, insert, layouts, more):
    wanted_steps = train_reference(model, ids, insert)
    model.save_pretrained(folder / "wanted")
    wanted = load_file(folder / "wanted" / "model.safetensors")
    for layout in layouts:
        world, words = LAYOUTS[layout]
        steps, weights = train_here(program, folder, world, words, more)
        compare(f"{family}, {layout}", steps, weights, wanted_steps, wanted)


def compare_noise(program, ids):
    more = ["hidden_dropout: 0", f"neftune_noise_alpha: {NOISE}"]
    for family, settings in NOISY.items():
        with tempfile.TemporaryDirectory() as name:
            folder, is_first = Path(name), family == "llama"
            model = write_model(folder, family, settings, ids)
            plain, _ = train_here(program, folder, *LAYOUTS["one process"], ["hidden_dropout: 0"])
            compare_layouts(program, folder, f"noise, {family}", model, ids, Noise, LAYOUTS if is_first else list(LAYOUTS)[-1:], more)
            noisy, _ = train_here(program, folder, *LAYOUTS["one process"], more)
            assert abs(plain[0][0] - noisy[0][0]) > 100 * LOSS, f"noise changes the loss {plain[0][0]} to {noisy[0][0]} only"
            if is_first:
                compare_resumed(program, folder, "neftune_noise_alpha", "5", more)


def main():
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    torch.set_num_threads(1)
    torch.manual_seed(11)
    ids = torch.randint(0, LLAMA["vocab_size"], (STEPS * BATCH, LENGTH))
    for family, (settings, more, modules) in MODELS.items():
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            model = write_model(folder, family, settings, ids)
            compare_layouts(sys.argv[1], folder, family, model, ids, lambda model, modules=modules: Masks(model, modules),
                            LAYOUTS if family == "llama" else list(LAYOUTS)[-1:], more)
            if family == "llama":
                compare_resumed(sys.argv[1], folder, "hidden_dropout", "0.2")
                compare_packed(sys.argv[1], folder)
                compare_pairs(sys.argv[1], folder)
    compare_noise(sys.argv[1], ids)


if __name__ == "__main__":
    main()
