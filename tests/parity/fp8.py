"""Training in FP8 by `concord train`, compared with transformers with the same roundings.

fp8.py PROGRAM [RECIPE...]

Rounding and scaling are implemented here in float64, as documented in docs/training.md, and inserted into a model of
transformers: queries, keys and values are one layer, and so are gate and up. Compares, for each recipe, the losses of a
few steps without a learning rate, in which delayed scales come from earlier steps, all gradients, and the amax history
of delayed scaling; the same with an adapter, which is not in FP8, and losses and gradients of DPO and a reward model. With delayed scaling a checkpoint of one process is
then resumed in other layouts, with the same scales, losses, gradients and amax.

An operand with a relative error d is rounded to the other side in d / s of all cases, where s is the relative distance
of two FP8 numbers, and everything after it then differs: from 1e-7 to 1e-1 in three layers. So the data are chosen, by
the reference alone, such that no operand is within MARGIN of a midpoint, relative to it and to the numbers of its row,
from which sums are computed. With these data every comparison must hold. The bound is a fraction of the effect of FP8,
which is measured in the same run: its roundings are 2^-4 or 2^-3 relative, those of float32 about 2^-20 of that. Exit
code 77: transformers is missing.
"""

import copy
import json
import math
import sys
import tempfile
from pathlib import Path

import preloaded
from largest import largest

sys.path.insert(0, str(Path(__file__).parent))
from random_models import load_file, make_model, save_file, torch, transformers  # exits with 77 if missing

BATCH, LR = 2, 0.05
SHARE = 100  # differences are less than 1 / this of the effect of FP8
MARGIN = 2.0**-22  # 4 roundings of float32: 1 to 3 times it are the worst errors among 10,000 operands
SEEDS = range(11, 2011)  # candidates for the data; about one of 10 is certain enough, with blocks one of 100
AMAX = 1e-5  # relative error of an amax: float32 rounding of it and of the previous scales
LLAMA = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
         "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64, "initializer_range": 0.05,
         "pad_token_id": None, "bos_token_id": None, "eos_token_id": None}
BLOCKS = {"intermediate_size": 136, "num_hidden_layers": 1}  # more than one of 128
RANK, SCALE, ADAPTER = 4, 2.0, "base_model.model."
E4M3, E5M2 = (3, -6, 448.0), (2, -14, 57344.0)  # bits of the fraction, smallest exponent, largest number
RECIPES = {
    "delayed": ("hybrid", E5M2, []),
    "delayed, 3 steps, e4m3": ("e4m3", E4M3, ["fp8_amax_history_len: 3"]),
    "current": ("hybrid", E5M2, []),
    "blockwise": ("e4m3", E4M3, []),
    "delayed, the inner layer only": ("hybrid", E5M2, ["first_last_layers_bf16: true"]),
    "delayed, an adapter": ("hybrid", E5M2, []),
    "current, an adapter": ("hybrid", E5M2, []),
    "blockwise, an adapter": ("e4m3", E4M3, []),
    "delayed, pairs": ("hybrid", E5M2, []),
    "current, pairs": ("hybrid", E5M2, []),
    "delayed, rewards": ("hybrid", E5M2, []),
}
BETA, PROMPT = 0.1, 2
# A checkpoint after this step is continued in these layouts.
RESUMED = 2
LAYOUTS = {
    "dp 2, distributed optimizer": (2, ["per_device_train_batch_size: 1", "use_distributed_optimizer: true"]),
    "tp 2, sequence parallel": (2, ["tensor_model_parallel_size: 2", "sequence_parallel: true"]),
    "pp 2, all recomputed": (2, ["pipeline_model_parallel_size: 2", "per_device_train_batch_size: 1",
                                 "gradient_accumulation_steps: 2", "recompute_granularity: full",
                                 "recompute_method: uniform"]),
    "tp 2, pp 2, zero bubble": (4, ["tensor_model_parallel_size: 2", "pipeline_model_parallel_size: 2",
                                    "per_device_train_batch_size: 1", "gradient_accumulation_steps: 2",
                                    "pipeline_schedule: zb-h1"]),
}


def rounded(x, form):
    """Rounds to the nearest number of the format, half to even; saturates. Also returns the distances between
    numbers there."""
    fraction, least, largest = form
    exponent = torch.floor(torch.log2(x.abs().clamp_min(1e-300))).clamp_min(least)
    step = torch.exp2(exponent - fraction)
    return (torch.round(x / step) * step).clamp(-largest, largest), step


def least_margin(x, scale, step, largest):
    """Returns how close an operand is to a midpoint of two FP8 numbers, relative to it and to its row; except where
    a step is less than MARGIN, and where everything is the largest number."""
    size, scaled = (x.abs() + x.square().mean(-1, keepdim=True).sqrt()) * scale, x.double() * scale
    away = ((scaled / step).frac().abs() - 0.5).abs() * step / size
    return away[(step > MARGIN * size) & (scaled.abs() < largest)].amin().item()


def with_scale(x, amax, form):
    """Returns numbers, the steps between them, and the scale."""
    scale = (torch.tensor(form[2]) / torch.tensor(amax, dtype=torch.float32)).double() if amax > 0 else torch.tensor(1.0).double()
    return *rounded((x.float() * scale.float()).double(), form), scale


def in_blocks(x, lines):
    """Like with_scale(), with a power of two for |lines| x 128 elements."""
    height, width = -(-x.shape[0] // lines) * lines, -(-x.shape[1] // 128) * 128
    whole = torch.zeros(height, width, dtype=torch.float64)
    whole[:x.shape[0], :x.shape[1]] = x
    largest = whole.view(height // lines, lines, width // 128, 128).abs().amax((1, 3))
    scale = torch.exp2(torch.floor(torch.log2(448.0 / largest.clamp_min(1e-300))))
    scale = scale.repeat_interleave(lines, 0).repeat_interleave(128, 1)[:x.shape[0], :x.shape[1]]
    return *rounded(x.double() * scale, E4M3), scale


class Layer:
    """The scales of one layer; |recipe| None: not in FP8."""

    def __init__(self, recipe, gradients, history):
        self.recipe, self.forms = recipe, {"x": E4M3, "w": E4M3, "g": gradients}
        self.past, self.seen, self.length = {"x": [], "w": [], "g": []}, {"x": 0.0, "w": 0.0, "g": 0.0}, history
        self.margin, self.count = math.inf, 0  # minimum over inputs and gradients, and their number

    def narrow(self, what, x, transposed=False):
        if self.recipe is None:
            return x.double()
        if self.recipe == "blockwise":
            turned = transposed and what != "w"
            made = in_blocks(x.t() if turned else x, 128 if what == "w" else 1)
            numbers, step, scale = (each.t() if turned else each for each in made)
        else:
            own = x.abs().max().item()
            self.seen[what] = max(self.seen[what], own)
            known = self.recipe == "delayed" and self.past[what]
            numbers, step, scale = with_scale(x, max(self.past[what]) if known else own, self.forms[what])
        if what != "w":
            self.margin, self.count = min(self.margin, least_margin(x, scale, step, self.forms[what][2])), self.count + x.numel()
        return numbers / scale

    def end_step(self):
        for what, amax in self.seen.items():
            self.past[what] = [amax, *self.past[what]][:self.length]
            self.seen[what] = 0.0


class Product(torch.autograd.Function):

    @staticmethod
    def forward(context, x, weight, layer):
        context.save_for_backward(x, weight)
        context.layer = layer
        rows = x.reshape(-1, x.shape[-1])
        y = layer.narrow("x", rows) @ layer.narrow("w", weight).t()
        return y.float().reshape(*x.shape[:-1], -1)

    @staticmethod
    def backward(context, grad):
        x, weight = context.saved_tensors
        layer, rows, g = context.layer, x.reshape(-1, x.shape[-1]), grad.reshape(-1, grad.shape[-1])
        dx = layer.narrow("g", g) @ layer.narrow("w", weight)
        if not context.needs_input_grad[1]:
            return dx.float().reshape(x.shape), None, None
        dw = layer.narrow("g", g, transposed=True).t() @ layer.narrow("x", rows, transposed=True)
        return dx.float().reshape(x.shape), dw.float(), None


class Part(torch.nn.Module):
    """One of several linear layers of the same input, which are computed together."""

    def __init__(self, joint, linear):
        super().__init__()
        self.weight, self.joint, self.pair = linear.weight, joint, None
        joint.parts.append(self)

    def forward(self, x):
        y = self.joint.part(self, x)
        return y if self.pair is None else y + x @ self.pair[0].t() @ self.pair[1].t() * SCALE


class Joint:

    def __init__(self, layer):
        self.layer, self.parts, self.last = layer, [], None

    def part(self, part, x):
        if part is self.parts[0]:
            y = Product.apply(x, torch.cat([each.weight for each in self.parts]), self.layer)
            self.last = dict(zip(self.parts, y.split([each.weight.shape[0] for each in self.parts], -1)))
        return self.last[part]


def patch(model, recipe, gradients, history, skips_ends):
    layers = []
    for number, block in enumerate(model.model.layers):
        is_end = number in (0, len(model.model.layers) - 1)
        for module, names in ((block.self_attn, ("q_proj", "k_proj", "v_proj")), (block.self_attn, ("o_proj", )),
                              (block.mlp, ("gate_proj", "up_proj")), (block.mlp, ("down_proj", ))):
            layer = Layer(None if skips_ends and is_end else recipe, gradients, history)
            joint = Joint(layer)
            for name in names:
                setattr(module, name, Part(joint, getattr(module, name)))
            layers.append(layer)
    return layers


def make_adapter(folder, model):
    """Creates an adapter for every FP8 layer, neither factor of which is 0."""
    targets = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    folder.mkdir()
    (folder / "adapter_config.json").write_text(json.dumps({
        "peft_type": "LORA", "task_type": "CAUSAL_LM", "r": RANK, "lora_alpha": SCALE * RANK, "target_modules": targets,
        "base_model_name_or_path": str(folder.parent / "model")}))
    tensors = {}
    for name, weight in model.named_parameters():
        if name.split(".")[-2] in targets:
            module = ADAPTER + name.removesuffix(".weight")
            tensors[module + ".lora_A.weight"] = torch.randn(RANK, weight.shape[1]) * 0.05
            tensors[module + ".lora_B.weight"] = torch.randn(weight.shape[0], RANK) * 0.05
    save_file(tensors, folder / "adapter_model.safetensors")


def add_adapter(folder, model):
    """Adds the adapters and returns their parameters, by their names in files."""
    model.requires_grad_(False)
    pairs = {name: torch.nn.Parameter(value) for name, value in load_file(folder / "adapter_model.safetensors").items()}
    for name, module in model.named_modules():
        if isinstance(module, Part):
            module.pair = [pairs[f"{ADAPTER}{name}.lora_{side}.weight"] for side in "AB"]
    return pairs


def log_probs(model, ids):
    scores = model(input_ids=ids).logits[:, :-1].log_softmax(-1).gather(-1, ids[:, 1:, None]).squeeze(-1)
    return scores[:, PROMPT - 1:].double().sum(-1)


def loss_of(model, ids, labels, other):
    """Rows 2i and 2i + 1 of pairs are chosen and rejected. |other| is DPO's reference."""
    if hasattr(model, "score"):
        rewards = model.score(model.model(input_ids=ids).last_hidden_state)[:, -1, 0]
        return -torch.nn.functional.logsigmoid(rewards[::2] - rewards[1::2]).mean()
    if other is None:
        return model(input_ids=ids, labels=labels).loss
    with torch.no_grad():
        wanted = log_probs(other, ids)
    ratios = log_probs(model, ids) - wanted
    return -torch.nn.functional.logsigmoid(BETA * (ratios[::2] - ratios[1::2])).mean()


def train_reference(model, batches, layers, trained, other):
    """Returns losses and gradients of steps without updates, and the amax history of each layer after them."""
    steps = []
    for ids, labels in batches:
        for each in trained.values():
            each.grad = None
        loss = loss_of(model, ids, labels, other)
        loss.backward()
        for layer in layers:
            layer.end_step()
        steps.append({"loss": loss.item(), "gradients": {name: each.grad.clone() for name, each in trained.items()},
                      "amax": [{what: list(values) for what, values in layer.past.items()} for layer in layers]})
    return steps


def run_here(program, folder, name, world, words):
    out = folder / name
    config = [f"model: {folder}/model", f"train_data: {folder}/data.safetensors", f"output_dir: {out}", "shuffle: false",
              "learning_rate: 0", "lr_scheduler_type: constant", "optimizer: sgd",
              "sgd_momentum: 0", "weight_decay: 0", "max_grad_norm: 0", "logging_steps: 1", "report_to: [none]",
              f"per_device_train_batch_size: {BATCH}", "save_strategy: no"]
    keys = {line.split(":")[0] for line in words}
    config = [line for line in config if line.split(":")[0] not in keys] + words
    (folder / "run.yaml").write_text("\n".join(config) + "\n")
    command = [program, "train", "--config", str(folder / "run.yaml"), "--nproc", str(world)]
    done = preloaded.run(command)
    if done.returncode != 0:
        raise AssertionError(f"{name}: {' '.join(command)}\n{done.stderr}")
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return [line["loss"] for line in lines if "loss" in line]


def step_here(program, folder, name, world, words):
    """Returns the loss of one more step with a learning rate, its gradients from the change of weights, and the
    folder of its checkpoint."""
    losses = run_here(program, folder, name, world, [*words, f"learning_rate: {LR}", "save_strategy: steps", "save_steps: 1"])
    start, file = ("adapter", "adapter_model") if any("adapter_name" in word for word in words) else ("model", "model")
    checkpoint = max((folder / name).glob("checkpoint-*"), key=lambda path: int(path.name.split("-")[1]))
    before, after = (load_file(path / f"{file}.safetensors") for path in (folder / start, checkpoint))
    return losses[-1], {tensor: (before[tensor] - after[tensor]) / LR for tensor in before}, checkpoint


def worst(losses, wanted):
    assert len(losses) == len(wanted), f"{len(losses)} losses, {len(wanted)} wanted"
    return largest(*(abs(a - b) for a, b in zip(losses, wanted)))


def worst_share(gradients, wanted):
    assert gradients.keys() == wanted.keys()
    return largest(*(((gradients[name] - wanted[name]).norm() / wanted[name].norm()).item() for name in wanted))


def compare(what, off, effect):
    print(f"{what}: off by {off:.2g}; 8 bits change {effect:.2g}", flush=True)
    if off * SHARE > effect:
        raise AssertionError(f"{what}: off by {off:.3g}, and 8 bits change {effect:.3g}")


def compare_amax(what, checkpoint, wanted, counted):
    """Compares the amax of inputs, weights and gradients in a checkpoint, latest first. Gradients are those of the
    sum of the losses of |counted| tokens, which is divided in the end."""
    found = load_file(checkpoint / "fp8.safetensors")
    names = [f"model.layers.{number}.{module}.weight.amax_history" for number in range(len(wanted) // 4)
             for module in ("self_attn.qkv_proj", "self_attn.o_proj", "mlp.gate_up_proj", "mlp.down_proj")]
    assert set(found) == set(names), set(found) ^ set(names)
    off = 0.0
    for name, layer in zip(names, wanted):
        values = torch.tensor([layer[which] for which in "xwg"], dtype=torch.float64).t() * torch.tensor([1, 1, counted])
        off = largest(off, ((found[name][:len(values)] - values).abs() / values.clamp_min(1e-30)).max().item())  # 0: no gradient
    print(f"{what}: largest values off by {off:.2g}", flush=True)
    if not off <= AMAX:
        raise AssertionError(f"{what}: largest values are off by a share of {off:.3g}, bound {AMAX:g}")


class Case:
    """A recipe with data for which its roundings are certain, and the results of the reference."""

    def __init__(self, program, folder, recipe):
        self.program, self.folder, self.recipe = program, folder, recipe
        self.short, (self.format, self.form, self.words) = recipe.split(",")[0], RECIPES[recipe]
        self.has_adapter, self.skips_ends = "adapter" in recipe, "only" in recipe
        self.stage = "dpo" if "pairs" in recipe else "rm" if "rewards" in recipe else None
        self.history, self.steps = 3 if "3 steps" in recipe else 1, 3 if self.short == "delayed" else 1  # others remember nothing
        self.tokens = 3 if self.short == "blockwise" else 4  # tokens per row; with blocks every operand is rounded twice
        self.counted = BATCH * (self.tokens - 2)
        sizes = {"num_hidden_layers": 3 if self.skips_ends else 2} | (BLOCKS if self.short == "blockwise" else {})
        self.model = make_model("llama", LLAMA | sizes, 5).float().train()
        self.other = make_model("llama", LLAMA | sizes, 6).float() if self.stage == "dpo" else None
        if self.other:
            self.other.save_pretrained(folder / "other")
        if self.stage == "rm":
            config = transformers.LlamaConfig(**LLAMA, num_labels=1)
            self.model = transformers.LlamaForSequenceClassification._from_config(config, attn_implementation="eager").train()
        self.model.save_pretrained(folder / "model")
        torch.manual_seed(3)
        if self.has_adapter:
            make_adapter(folder / "adapter", self.model)
        for seed in SEEDS:
            self.batches = self.draw(seed)
            self.wanted, layers = self.reference(self.short)
            if min(layer.margin for layer in layers) >= MARGIN:
                break
        else:
            raise AssertionError(f"{recipe}: no data whose roundings are certain")
        print(f"{recipe}: data of seed {seed}, {sum(layer.count for layer in layers)} roundings", flush=True)
        self.plain, _ = self.reference(None)
        ids, labels = map(torch.cat, zip(*self.batches))
        with open(folder / "pairs.jsonl", "w") as file:
            for chosen, rejected in zip(ids[::2].tolist(), ids[1::2].tolist()):
                file.write(json.dumps({"prompt_input_ids": chosen[:PROMPT], "chosen_input_ids": chosen[PROMPT:],
                                       "rejected_input_ids": rejected[PROMPT:]}) + "\n")
        save_file({"input_ids": ids, "labels": labels}, folder / "data.safetensors")

    def draw(self, seed):
        torch.manual_seed(seed)
        rows = 2 * BATCH if self.stage else BATCH
        ids = torch.randint(0, LLAMA["vocab_size"], (self.steps * rows, self.tokens))
        if self.stage:
            ids[1::2, :PROMPT] = ids[::2, :PROMPT]
        labels = ids.clone()
        labels[:, :2] = -100  # those that count are a power of two, by which scales of blocks do not change
        return list(zip(ids.split(rows), labels.split(rows)))

    def reference(self, recipe):
        """Returns the steps, and the layers."""
        model = copy.deepcopy(self.model)
        layers = patch(model, recipe, self.form, self.history, self.skips_ends)
        trained = add_adapter(self.folder / "adapter", model) if self.has_adapter else dict(model.named_parameters())
        other = copy.deepcopy(self.other)
        # The reference is not trained, so it has no history of scales.
        more = patch(other, recipe and "current", self.form, 1, False) if other else []
        return train_reference(model, self.batches, layers, trained, other), layers + more

    def effect(self, step):
        """Returns the change of the gradients of a step due to FP8."""
        return worst_share(self.plain[step]["gradients"], self.wanted[step]["gradients"])

    def run(self):
        words = [f"fp8: {self.format}", f"fp8_recipe: {self.short}", *self.words]
        if self.has_adapter:
            words += ["finetuning_type: lora", f"adapter_name_or_path: {self.folder}/adapter"]
        if self.stage:
            words += [f"stage: {self.stage}", f"train_data: {self.folder}/pairs.jsonl"]
        if self.other:
            words += [f"ref_model: {self.folder}/other", f"pref_beta: {BETA}"]
        losses = run_here(self.program, self.folder, "run", 1,
                          [*words, f"max_steps: {self.steps}", "save_strategy: steps", f"save_steps: {RESUMED}"])
        effect = worst(*([step["loss"] for step in steps] for steps in (self.plain, self.wanted)))
        compare(f"{self.recipe}, losses", worst(losses, [step["loss"] for step in self.wanted]), effect)
        _, gradients, _ = step_here(self.program, self.folder, "step", 1, [*words, "max_steps: 1"])
        compare(f"{self.recipe}, gradients", worst_share(gradients, self.wanted[0]["gradients"]), self.effect(0))
        if self.short == "delayed" and not self.skips_ends and not self.stage:
            compare_amax(self.recipe, self.folder / f"run/checkpoint-{RESUMED}", self.wanted[RESUMED - 1]["amax"], self.counted)
        if self.recipe in ("delayed", "delayed, an adapter"):
            self.compare_layouts(words, effect)
        if self.recipe == "delayed, an adapter":
            self.refuse_dora(words[:2])

    def refuse_dora(self, words):
        """The row norms would be those of weights that are not in FP8."""
        try:
            run_here(self.program, self.folder, "dora", 1, [*words, "max_steps: 1", "finetuning_type: lora", "use_dora: true"])
        except AssertionError as refused:
            assert "use_dora with fp8 hybrid is not supported" in str(refused), refused
        else:
            raise AssertionError("use_dora was taken with fp8")

    def compare_layouts(self, words, effect):
        """Compares the last step, from a checkpoint of one process."""
        wanted = self.wanted[-1]
        for layout, (world, more) in LAYOUTS.items():
            resumed = [f"resume_from_checkpoint: {self.folder}/run/checkpoint-{RESUMED}", "override_opt_param_scheduler: true"]
            loss, gradients, checkpoint = step_here(self.program, self.folder, layout.replace(" ", "-"), world,
                                                    [*words, *more, *resumed, f"max_steps: {self.steps}"])
            name = f"{self.recipe}, {layout}, resumed"
            compare(f"{name}, loss", abs(loss - wanted["loss"]), effect)
            compare(f"{name}, gradients", worst_share(gradients, wanted["gradients"]), self.effect(-1))
            compare_amax(name, checkpoint, wanted["amax"], self.counted)


def main():
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    torch.set_num_threads(1)
    for recipe in sys.argv[2:] or RECIPES:
        with tempfile.TemporaryDirectory() as name:
            Case(sys.argv[1], Path(name), recipe).run()


if __name__ == "__main__":
    main()
