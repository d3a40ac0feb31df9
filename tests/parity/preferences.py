"""Preference training compared with TRL: preferences.py PROGRAM [--platform P]

Trains for some steps on pairs with the program and with transformers, where losses and metrics are computed by the code
of TRL and LLaMA-Factory (preference_peers.py, and RewardTrainer.compute_loss), with layouts, packed, with an adapter,
with every loss. The tokens of pairs are those of DPOTrainer._prepare_dataset. With --platform it is one run with an
adapter, on that platform. Exit code 77: a package is missing.
"""

import argparse
import itertools
import json
import logging
import os
import random
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

import preloaded
from largest import largest
from types import SimpleNamespace

try:
    import peft
    import torch
    import transformers
    from safetensors.torch import load_file
    from lora_in_peft import make_four_bit_models
    from preference_peers import LOSS, TRL, WithLogProbs, factory_loss, functions_of, in_trl, nothing, passed_on, trl_trainer
except ImportError as missing:
    print(f"skipped: {missing}; ./run installs torch, transformers, peft, trl and llamafactory into .venv")
    sys.exit(77)

GOLDEN = Path(__file__).parent.parent / "golden"
MODEL = GOLDEN / "hf/qwen2-tiny"
STEPS, PAIRS, MICRO, LR = 5, 4, 2, 1e-3
# Far above the rounding of gradients in float32, some 1e-8: by AdamW's own 1e-8, elements whose gradient is nothing but
# rounding would take steps of the whole learning rate into either direction, in TRL as here, and losses would be 2e-6
# apart.
EPSILON = 1e-3
# Bounds for losses, metrics and each element of gradients in float32, compared with TRL's code in float64; relative
# above 1. The difference is the rounding of log-probabilities of tokens, some 3e-7 each, in sums of up to 40 of them,
# times beta.
BOUND = 1e-6

LAYOUTS = {
    "one": [],
    "dp 2": ["--nproc", 2],
    "tp 2, sequence parallel": ["--nproc", 2, "--tensor_model_parallel_size", 2, "--sequence_parallel"],
    "cp 2": ["--nproc", 2, "--context_parallel_size", 2],
    "pp 2": ["--nproc", 2, "--pipeline_model_parallel_size", 2],
    "pp 2, vpp 2, dp 2": ["--nproc", 4, "--pipeline_model_parallel_size", 2, "--virtual_pipeline_model_parallel_size", 2,
                          "--per_device_train_batch_size", 1, "--use_distributed_optimizer"],
    "tp 2, cp 2": ["--nproc", 4, "--tensor_model_parallel_size", 2, "--context_parallel_size", 2],
}


def run(*command, fails=False):
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CONCORD_LOG": "warn", "CONCORD_PYTHON": sys.executable}
    done = preloaded.run(command, environment)
    if (done.returncode != 0) != fails:
        raise AssertionError(f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}")
    return done.stdout + done.stderr


# ----------------------------------------------------------------------------------------------------------- TRL's code


REWARD_LOSS = functions_of(TRL, "trainer/reward_trainer.py", ["compute_loss"], {"torch": torch, "nn": torch.nn})["compute_loss"]


class Rows(list):
    """The parts of a datasets.Dataset that TRL uses."""

    column_names = property(lambda self: list(self[0]))

    def map(self, function, fn_kwargs=None, **_):
        return Rows(dict(row) | function(dict(row), **(fn_kwargs or {})) for row in self)

    def filter(self, function, **_):
        return Rows(row for row in self if function(row))


def trl_tokens(rows, tokenizer, max_length):
    helpers = functions_of(TRL, "data_utils.py", ["_tokenize", "common_prefix_length", "extract_prompt", "is_conversational"],
                           {"ProcessorMixin": transformers.ProcessorMixin})
    warned = logging.getLogger("trl")
    warned.warning_once = lambda text: None
    prepare = functions_of(TRL, "trainer/dpo_trainer.py", ["_prepare_dataset"], {
        **helpers, "Dataset": Rows, "IterableDataset": type(None), "json": json, "logger": warned,
        "global_then_local_main_first": nothing})["_prepare_dataset"]
    args = SimpleNamespace(dataset_num_proc=None, max_length=max_length, truncation_mode="keep_start")
    prepared = prepare(SimpleNamespace(_tokenizer=tokenizer), Rows(rows), tokenizer, args, "train")
    return [{key: list(row[key]) for key in ("prompt_ids", "chosen_ids", "rejected_ids")} for row in prepared]


# ------------------------------------------------------------------------------------------------------------ the data


def random_pairs(count, seed=3, longest=20):
    draw = random.Random(seed)
    ids = lambda least, most: [draw.randrange(3, 320) for _ in range(draw.randint(least, most))]
    return [{"prompt_input_ids": ids(2, 9), "chosen_input_ids": ids(longest // 10, longest), "rejected_input_ids": ids(longest // 10, longest)}
            for _ in range(count)]


def batch_of(pairs):
    """Like TRL's collator: chosen rows, then rejected ones."""
    rows = [(pair["prompt_input_ids"], pair[side]) for side in ("chosen_input_ids", "rejected_input_ids") for pair in pairs]
    width = max(len(prompt) + len(answer) for prompt, answer in rows)
    pad = lambda values: torch.tensor([row + [0] * (width - len(row)) for row in values])
    return {"input_ids": pad([prompt + answer for prompt, answer in rows]),
            "attention_mask": pad([[1] * (len(prompt) + len(answer)) for prompt, answer in rows]),
            "completion_mask": pad([[0] * len(prompt) + [1] * len(answer) for prompt, answer in rows])}


# ------------------------------------------------------------------------------------------------------------- training


def optimizer_of(parameters):
    decays = [{"params": [p for p in parameters if p.dim() >= 2]}, {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0}]
    return torch.optim.AdamW(decays, lr=LR, betas=(0.9, 0.95), eps=EPSILON, weight_decay=0.1)


def micro_batches(pairs):
    """Yields the micro-batches of each step, MICRO pairs each."""
    return [[pairs[begin:begin + MICRO] for begin in range(first, first + PAIRS, MICRO)] for first in range(0, len(pairs), PAIRS)]


def packed_rows(pairs, capacity, multiple):
    """Returns the pairs of each row of |capacity| tokens, by first fit; both sequences of a pair are padded to a
    multiple."""
    rows = []
    for pair in pairs:
        lengths = [len(pair["prompt_input_ids"]) + len(pair[side]) for side in ("chosen_input_ids", "rejected_input_ids")]
        size = sum(-(-length // multiple) * multiple for length in lengths)
        row = next((row for row in rows if row[0] + size <= capacity), None)
        if row is None:
            rows.append(row := [0, []])
        row[0] += size
        row[1].append(pair)
    return [row[1] for row in rows]


def steps_of(model, steps, loss_of, metrics):
    """Returns loss, gradients and metrics of every step, a list of micro-batches with the same number of pairs."""
    trained = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    parameters = list(trained.values())
    optimizer, logged = optimizer_of(parameters), []
    for step in steps:
        metrics.clear()
        # Over all micro-batches together: every token has the same weight, and extremes are those of the step.
        with torch.no_grad():
            loss_of(sum(step, []))
        whole = {name: values[0] for name, values in metrics.items() if name in OF_STEPS}
        metrics.clear()
        total = 0
        for some in step:
            loss = loss_of(some) / len(step)
            loss.backward()
            total += loss.item()
        gradients = {name.replace(".default", ""): parameter.grad.clone() for name, parameter in trained.items()}
        norm = torch.nn.utils.clip_grad_norm_(parameters, 1.0).item()
        optimizer.step()
        optimizer.zero_grad()
        means = {name: sum(values) / len(values) for name, values in metrics.items()}
        logged.append({"loss": total, "grad_norm": norm, "gradients": gradients} | means | whole)
    return logged


def load(folder=MODEL):
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")


def expected(steps, settings, adapter=None, reference=MODEL, dtype=torch.float64, start=MODEL):
    model = load(start)
    if adapter:
        model = peft.PeftModel.from_pretrained(model, adapter, is_trainable=True)
    model, reference_model = model.to(dtype), load(reference).to(dtype)
    wrapped = WithLogProbs(model)
    trainer = trl_trainer(wrapped, None if wrapped.is_peft else WithLogProbs(reference_model), settings)
    metrics = trainer._metrics["train"]

    def loss_of(some):
        inputs = batch_of(some)
        if in_trl(settings):
            return LOSS(trainer, wrapped, inputs, False)
        return factory_loss(model, reference_model, inputs, settings, metrics)

    return steps_of(model, steps, loss_of, metrics)


def train(program, data, output, *words, model=MODEL, stage="dpo"):
    run(program, "train", "--model", model, "--stage", stage, "--train_data", data, "--shuffle", "false", "--global_batch_size", PAIRS,
        "--per_device_train_batch_size", MICRO, "--learning_rate", LR, "--lr_scheduler_type", "constant", "--adam_beta2", 0.95,
        "--adam_epsilon", EPSILON, "--weight_decay", 0.1, "--max_steps", STEPS, "--logging_steps", 1, "--report_to", "none",
        "--output_dir", output, *words)
    return [json.loads(line) for line in open(output / "metrics.jsonl")]


def first_step(program, data, output, *words, **options):
    """Includes the gradients: AdamW's first moment if it keeps none of the past."""
    found = train(program, data, output, "--max_steps", 1, "--save_steps", 1, "--learning_rate", 0, "--adam_beta1", 0, "--max_grad_norm", 0,
                  *words, **options)
    states = load_file(output / "checkpoint-1/optimizer.safetensors")
    found[0]["gradients"] = {name.removeprefix("exp_avg."): value for name, value in states.items() if name.startswith("exp_avg.")}
    return found


def gradient_error(found, wanted):
    """Returns the largest error of an element, relative to the norm of all if that is above 1."""
    if set(found) != set(wanted):
        raise AssertionError(f"gradients of {sorted(set(found) ^ set(wanted))} are of one side only")
    norm = sum(value.square().sum() for value in wanted.values()).sqrt().item()
    if norm < 0.01:
        raise AssertionError(f"gradients of norm {norm:g} show nothing")
    return largest(*((found[name] - value).abs().max().item() for name, value in wanted.items())) / max(1, norm)


def compare(name, found, wanted, factor=1):
    if len(found) != len(wanted):
        raise AssertionError(f"{name}: {len(found)} steps instead of {len(wanted)}")
    worst = defaultdict(float)
    ours = set(NAMES) | {"loss", "grad_norm"}
    for step, (a, b) in enumerate(zip(found, wanted)):
        for key in ours & set(b):
            # A margin is the difference of two rewards, which are large without a reference.
            size = max(1, *(abs(b[of]) for of in (("rewards/chosen", "rewards/rejected") if key == "rewards/margins" else (key,))))
            bound = BOUND * factor * size
            worst[key] = max(worst[key], abs(a[key] - b[key]) / size)
            if not abs(a[key] - b[key]) <= bound:
                raise AssertionError(f"{name}, step {step}: {key} is {a[key]}, expected {b[key]}, bound {bound:g}")
        if "gradients" in a:
            worst["gradients"] = gradient_error(a["gradients"], b["gradients"])
            if not worst["gradients"] <= BOUND:
                raise AssertionError(f"{name}: gradients differ by {worst['gradients']:g}, bound {BOUND:g}")
    if not {"loss", "rewards/margins"} <= set(worst) and not {"loss", "margin"} <= set(worst):
        raise AssertionError(f"{name}: nothing was compared but {set(worst)}")
    rest = {key: value for key, value in worst.items() if key not in ("loss", "grad_norm", "gradients")}
    shown = {"loss": worst["loss"], max(rest, key=rest.get): max(rest.values())} | {k: worst[k] for k in ("gradients", "grad_norm") if k in worst}
    print(f"{name}: " + ", ".join(f"{key} within {value:.2g}" for key, value in shown.items()), flush=True)


TOKEN_NAMES = ("entropy", "mean_token_accuracy", "logits/chosen", "logits/rejected")
OF_STEPS = (*TOKEN_NAMES, "min_reward", "max_reward")
NAMES = ("rewards/chosen", "rewards/rejected", "rewards/accuracies", "rewards/margins", "logps/chosen", "logps/rejected",
         "accuracy", "margin", "mean_reward", "min_reward", "max_reward", *TOKEN_NAMES)

LOSSES = {
    "hinge": {"pref_loss": "hinge", "pref_beta": 0.15},
    "ipo": {"pref_loss": "ipo"},
    "robust": {"pref_loss": "robust", "dpo_label_smoothing": 0.2},
    "kto_pair": {"pref_loss": "kto_pair"},
    "orpo": {"pref_loss": "orpo"},
    "simpo": {"pref_loss": "simpo", "pref_beta": 2.0, "simpo_gamma": 1.0},
    "label smoothing": {"dpo_label_smoothing": 0.1},
    "ftx": {"pref_ftx": 0.5},
    "ld_alpha": {"ld_alpha": 0.4},
    "reference_free": {"reference_free": True},
}


def words_of(settings):
    return [word for name, value in settings.items() for word in (f"--{name}", str(value).lower())]


def compare_training(program, data, pairs, folder):
    steps = micro_batches(pairs)
    wanted = expected(steps, {})
    compare("TRL itself in float32", expected(steps, {}, dtype=torch.float32), wanted)
    for number, (layout, words) in enumerate(LAYOUTS.items()):
        compare(layout, train(program, data, folder / f"layout {number}", *words), wanted)
    # The last loss of the first run shows that its end differs from its start, which is the reference of the others.
    other = folder / "layout 0/model"
    found = train(program, data, folder / "other", "--ref_model", other, *LAYOUTS["pp 2"])
    compare("another reference, pp 2", found, expected(steps, {}, reference=other))
    # Interrupted: the table is read again, and the reference is still the model at the start.
    once = ["--precompute_ref_log_probs", *LAYOUTS["pp 2, vpp 2, dp 2"]]
    train(program, data, folder / "precomputed", *once, "--max_steps", 3, "--save_steps", 3)
    found = train(program, data, folder / "precomputed", *once, "--resume_from_checkpoint", "latest")
    compare("precomputed and resumed, pp 2, vpp 2, dp 2", found, wanted)
    train(program, data, folder / "resumed", "--max_steps", 3, "--save_steps", 3)
    try:
        train(program, data, folder / "resumed", "--resume_from_checkpoint", "latest", "--pref_beta", 0.3)
    except Exception as refused:
        assert "pref_beta 0.1, but this run has pref_beta 0.3" in str(refused), refused
    else:
        raise AssertionError("a run was resumed with another pref_beta")
    compare("resumed", train(program, data, folder / "resumed", "--resume_from_checkpoint", "latest"), wanted)
    # In the first step the model equals its reference; the next two test the loss.
    for name, settings in LOSSES.items():
        compare(name, train(program, data, folder / name, "--max_steps", 3, *words_of(settings)), expected(steps[:3], settings))


def compare_first_steps(program, folder):
    """Every loss on the same weights: those of an earlier run, with another model as the reference, and pairs that
    neither has seen."""
    start, pairs, data = folder / "layout 0/model", random_pairs(PAIRS, seed=4), folder / "unseen.jsonl"
    data.write_text("".join(json.dumps(pair) + "\n" for pair in pairs))
    for (name, settings), layout in zip({"sigmoid": {}, **LOSSES}.items(), itertools.cycle(LAYOUTS)):
        words = words_of(settings)
        if settings.get("pref_loss") not in ("orpo", "simpo") and not settings.get("reference_free"):
            words += ["--ref_model", MODEL]
        found = first_step(program, data, folder / f"{name}, first step", *words, *LAYOUTS[layout], model=start)
        compare(f"{name}, same weights, {layout}", found, expected(micro_batches(pairs), settings, start=start))
    # Sums of hundreds of tokens, thousands, of which fp32 would have no more than four digits after the point.
    long = random_pairs(PAIRS, seed=5, longest=240)
    data.write_text("".join(json.dumps(pair) + "\n" for pair in long))
    for layout in ("one", "cp 2"):
        found = first_step(program, data, folder / f"long, {layout}", "--ref_model", MODEL, "--pref_beta", 0.05, *LAYOUTS[layout], model=start)
        compare(f"long, same weights, {layout}", found, expected(micro_batches(long), {"pref_beta": 0.05}, start=start))


def compare_packed(program, data, pairs, folder):
    for layout, multiple, settings in (("one", 1, {}), ("dp 2", 1, {"ld_alpha": 0.4}), ("cp 2", 4, {"ld_alpha": 0.4})):
        rows = packed_rows(pairs, 96, multiple)
        if not any(len(row) > 1 for row in rows):
            raise AssertionError("no row has two pairs")
        steps = [[sum(rows[first:first + 2], [])] for first in range(0, len(rows) - 1, 2)]
        found = train(program, data, folder / f"packed {layout}", "--sequence_packing", "--seq_length", 96, "--global_batch_size", 2,
                      "--per_device_train_batch_size", 1, "--max_steps", len(steps), *words_of(settings), *LAYOUTS[layout])
        compare(f"packed, {layout}", found, expected(steps, settings))


def write_pairs(file, pairs):
    file.write_text("".join(json.dumps(pair) + "\n" for pair in pairs))
    return file


def compare_sources(program, data, pairs, folder):
    """A split and a blend have the pairs of a file with these pairs in this order: the same bits."""

    def losses(name, *words, source=("--train_data", data)):
        output = folder / f"source {name}"
        run(program, "train", "--model", MODEL, "--stage", "dpo", *source, "--shuffle", "false", "--global_batch_size", PAIRS,
            "--per_device_train_batch_size", MICRO, "--learning_rate", LR, "--max_steps", 3, "--logging_steps", 1, "--report_to", "none",
            "--output_dir", output, *LAYOUTS["dp 2"], *words)
        evaluations = output / "eval_metrics.jsonl"
        return [[json.loads(line)[key] for line in open(file)] for file, key in
                ((output / "metrics.jsonl", "loss"), (evaluations, "eval_loss")) if file.exists()]

    first, rest = write_pairs(folder / "first.jsonl", pairs[:12]), write_pairs(folder / "rest.jsonl", pairs[12:])
    if losses("split", "--split", "3,2", "--eval_steps", 2) != losses("files", "--eval_data", rest, "--eval_steps", 2,
                                                                      source=("--train_data", first)):
        raise AssertionError("a split of pairs is not its two parts")
    halves = [write_pairs(folder / f"half {i}.jsonl", pairs[i::2]) for i in (0, 1)]
    once = ["--precompute_ref_log_probs"]
    for name, blend in {"all": halves, "weights": [0.5, halves[0], 0.5, halves[1]]}.items():
        if losses(f"blend, {name}", *once, source=("--train_data_blend", ",".join(map(str, blend)))) != losses(f"whole, {name}", *once):
            raise AssertionError(f"a blend of pairs, {name}, is not the pairs in turn")
    print("a split and blends of pairs: the same bits as files of these pairs", flush=True)


def compare_average(program, data, folder):
    """The EMA is that of the weights in the checkpoints of all steps, and is evaluated without changing them."""
    words = ["--ema_decay", 0.5, "--ema_start_step", 1, "--evaluate_ema_weights", "--eval_data", data, "--eval_steps", 1]
    output = folder / "average"
    plain = train(program, data, folder / "no average", *LAYOUTS["pp 2, vpp 2, dp 2"])
    found = train(program, data, output, *words, "--save_steps", 1, *LAYOUTS["pp 2, vpp 2, dp 2"])
    if [line["loss"] for line in found if "loss" in line] != [line["loss"] for line in plain]:
        raise AssertionError("an average changes the training")
    average = None
    for step in range(1, STEPS + 1):
        weights = load_file(output / f"checkpoint-{step}/model.safetensors")
        average = weights if step <= 1 else {name: 0.5 * average[name] + 0.5 * value for name, value in weights.items()}
    worst = largest(*((value - average[name]).abs().max().item() for name, value in load_file(output / "ema_model/model.safetensors").items()))
    if not worst <= 1e-7:  # rounding of weights of up to 1
        raise AssertionError(f"the average differs by {worst:g}")
    print(f"the average of the weights: within {worst:.2g}", flush=True)


def compare_adapters(program, data, pairs, folder, layouts=("one", "tp 2, sequence parallel", "pp 2, vpp 2, dp 2"), platform=None):
    lora = ["--finetuning_type", "lora", "--lora_rank", 4]
    train(program, data, folder / "start", *lora, "--max_steps", 1, "--learning_rate", 0)
    wanted = expected(micro_batches(pairs), {}, folder / "start/model")
    if platform:
        os.environ["CONCORD_PLATFORM"] = platform
    for layout in layouts:
        compare(f"LoRA, {layout}", train(program, data, folder / f"lora {layout}", *lora, *LAYOUTS[layout]), wanted)


def compare_four_bits(program, data, pairs, folder):
    """The reference is the NF4 model with the adapter disabled."""
    make_four_bit_models(folder, 7, vocab_size=320, hidden_size=64, intermediate_size=128, num_hidden_layers=2)
    lora = ["--finetuning_type", "lora", "--lora_rank", 4, "--quantization_bit", 4]
    train(program, data, folder / "start", *lora, "--max_steps", 1, "--learning_rate", 0, model=folder / "base")
    wanted = expected(micro_batches(pairs), {}, folder / "start/model", start=folder / "dequantised")
    for layout in ("one", "pp 2"):
        compare(f"in 4 bits, {layout}", train(program, data, folder / layout, *lora, *LAYOUTS[layout], model=folder / "base"), wanted)
    once = ["--precompute_ref_log_probs", *LAYOUTS["dp 2"]]
    compare("in 4 bits, precomputed, dp 2", train(program, data, folder / "once", *lora, *once, model=folder / "base"), wanted)
    # A copy of the initial model, if the reference is not the model with the adapter disabled, is in NF4 too.
    found = train(program, data, folder / "further", *lora[:2], *lora[4:], "--adapter_name_or_path", folder / "start/model", model=folder / "base")
    compare("in 4 bits, an adapter of which B is 0", found, wanted)


def compare_several(program, data, folder):
    """Merged adapters are part of the reference, unless that is another folder."""
    lora = ["--finetuning_type", "lora", "--lora_rank", 4, "--max_steps", 3]
    first, merged = folder / "lora one/model", folder / "merged"
    run(program, "merge", "--model", MODEL, "--adapter", first, "--out", merged)
    beside = ["--adapter_name_or_path", first, "--create_new_adapter"]
    for name, words in {"off": [], "another": ["--ref_model", MODEL], "once": ["--precompute_ref_log_probs"]}.items():
        by_hand = train(program, data, folder / f"by hand {name}", *lora, *words, model=merged)
        found = train(program, data, folder / f"beside {name}", *lora, *words, *beside)
        if [line["loss"] for line in found] != [line["loss"] for line in by_hand]:
            raise AssertionError(f"reference {name}: with an adapter merged {found}, with the folder of `concord merge` {by_hand}")
    print("an adapter that is merged: as from the folder of `concord merge`", flush=True)


# -------------------------------------------------------------------------------------------------------- reward models


def load_reward(folder):
    """Uses a padding token that occurs in no pair."""
    model = transformers.AutoModelForSequenceClassification.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    if model.config.num_labels != 1:
        raise AssertionError(f"{folder} has {model.config.num_labels} labels")
    model.config.pad_token_id = 0
    return model


def expected_rewards(start, steps, center, adapter=None):
    model = load_reward(start)
    if adapter:
        model = peft.PeftModel.from_pretrained(model, adapter, is_trainable=True)
    model = model.double()
    trainer = SimpleNamespace(model=model, args=SimpleNamespace(center_rewards_coefficient=center), _metrics={"train": defaultdict(list)},
                              _total_train_tokens=0, _tp_size=1, accelerator=SimpleNamespace(gather_for_metrics=passed_on, gather=passed_on))

    def loss_of(some):
        inputs = {key: value for key, value in batch_of(some).items() if key != "completion_mask"}
        if "margin" in some[0]:
            inputs["margin"] = torch.tensor([pair["margin"] for pair in some])
        return REWARD_LOSS(trainer, lambda margin=None, **words: model(**words), inputs)

    model.train()
    return steps_of(model, steps, loss_of, trainer._metrics["train"])


# Bound for scores of single sequences after steps that round all weights; on the same weights they are within 1e-6 too.
REWARD_FACTOR = 2


def compare_rewards(program, pairs, folder):
    pairs = [pair | {"margin": 0.5 * (i % 3)} for i, pair in enumerate(pairs)]
    data = folder / "margins.jsonl"
    data.write_text("".join(json.dumps(pair) + "\n" for pair in pairs))
    center = ["--center_rewards_coefficient", 0.05]
    start = folder / "reward start/model"
    train(program, data, start.parent, *center, "--max_steps", 1, "--learning_rate", 0, stage="rm")
    wanted = expected_rewards(start, micro_batches(pairs), 0.05)
    for layout in ("one", "tp 2, sequence parallel", "cp 2", "pp 2, vpp 2, dp 2"):
        found = train(program, data, folder / f"reward {layout}", *center, *LAYOUTS[layout], stage="rm")
        compare(f"reward model, {layout}", found, wanted, factor=REWARD_FACTOR)
    again = train(program, data, folder / "reward again", *center, model=start, stage="rm")
    compare("reward model, from one", again, wanted, factor=REWARD_FACTOR)

    lora = [*center, "--finetuning_type", "lora", "--lora_rank", 4]
    train(program, data, folder / "reward lora start", *lora, "--max_steps", 1, "--learning_rate", 0, stage="rm")
    wanted = expected_rewards(start, micro_batches(pairs), 0.05, folder / "reward lora start/model")
    found = train(program, data, folder / "reward lora", *lora, *LAYOUTS["tp 2, sequence parallel"], stage="rm")
    compare("reward model, LoRA, tp 2, sequence parallel", found, wanted, factor=REWARD_FACTOR)

    # The saved model is the trained one: its scores equal the metrics of a step without an update.
    trained = folder / "reward pp 2, vpp 2, dp 2/model"
    found = first_step(program, data, folder / "reward same", *center, *LAYOUTS["tp 2, cp 2"], model=trained, stage="rm")
    compare("reward model, saved, tp 2, cp 2", found, expected_rewards(trained, micro_batches(pairs)[:1], 0.05))
    said = run(program, "generate", "--model", trained, "--prompt", "a", "--tokenizer", "byte", fails=True)
    if "reward model" not in said:
        raise AssertionError(said)


# ---------------------------------------------------------------------------------------------------------------- tokens

TEMPLATE = ("{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\\n' + m['content'] + '<|im_end|>\\n' }}{% endfor %}"
            "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n<think>' if messages | length > 2 else "
            "'<|im_start|>assistant\\n' }}{% endif %}")
USER, ASSISTANT = (lambda text, role=role: {"role": role, "content": text} for role in ("user", "assistant"))
TEXTS = [
    {"prompt": "The sky is", "chosen": " blue.", "rejected": " green, I think."},
    {"prompt": "Grüße aus", "chosen": " Köln 🙂", "rejected": " Kyōto<|endoftext|>"},
    {"prompt": "Say th", "chosen": "e end", "rejected": "is one"},  # the first begins with a token that reaches into the prompt
    {"prompt": "a long prompt " * 20, "chosen": "x", "rejected": "y"},
]
IMPLICIT = [
    {"chosen": "The sky is blue.", "rejected": "The sky is green."},
    {"chosen": "Grüße Ä", "rejected": "Grüße Ö"},
    {"chosen": "same but longer", "rejected": "same but"},
]
CHATS = [
    {"prompt": [USER("Hi there")], "chosen": [ASSISTANT("Hello!")], "rejected": [ASSISTANT("What?")]},
    {"prompt": [USER("1 + 1?"), ASSISTANT("2"), USER("Sure?")], "chosen": [ASSISTANT("Yes.")], "rejected": [ASSISTANT("No 東京.")]},
]
IMPLICIT_CHATS = [{"chosen": [USER("Hi"), ASSISTANT("Hello!")], "rejected": [USER("Hi"), ASSISTANT("Go away.")]}]


def compare_tokens(program, folder):
    home = folder / "tokenizer"
    home.mkdir()
    (home / "tokenizer.json").write_bytes((GOLDEN / "tokenizer/qwen/tokenizer.json").read_bytes())
    (home / "chat_template.jinja").write_text(TEMPLATE)
    (home / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|endoftext|>"}))
    tokenizer = transformers.PreTrainedTokenizerFast.from_pretrained(home)
    keys = {"prompt_ids": "prompt_input_ids", "chosen_ids": "chosen_input_ids", "rejected_ids": "rejected_input_ids"}
    for name, rows in {"texts": TEXTS, "implicit": IMPLICIT, "chats": CHATS, "implicit chats": IMPLICIT_CHATS}.items():
        lines, ids = folder / f"{name}.jsonl", folder / f"{name} ids.jsonl"
        lines.write_text("".join(json.dumps(row) + "\n" for row in rows))
        run(program, "data", "build", "--sft", "--input", lines, "--output", ids, "--tokenizer", home)
        found = [json.loads(line) for line in open(ids)]
        wanted = [{keys[key]: value for key, value in row.items()} for row in trl_tokens(rows, tokenizer, None)]
        if found != wanted:
            raise AssertionError(f"{name}: tokens are\n{found}, expected\n{wanted}")
        if not all(row["chosen_input_ids"] and row["rejected_input_ids"] for row in found):
            raise AssertionError(f"{name}: {found}")
    print("tokens are TRL's", flush=True)


def compare_truncation(program, pairs, folder):
    """cutoff_len: pairs are truncated, or dropped if the prompt fills it, like TRL."""
    cutoff = 7
    kept = [{"prompt_input_ids": pair["prompt_input_ids"]} | {
        side: pair[side][:cutoff - len(pair["prompt_input_ids"])] for side in ("chosen_input_ids", "rejected_input_ids")}
        for pair in pairs if len(pair["prompt_input_ids"]) < cutoff]
    if not PAIRS <= len(kept) < len(pairs):
        raise AssertionError(f"{len(kept)} pairs are left")
    data = folder / "long.jsonl"
    data.write_text("".join(json.dumps(pair) + "\n" for pair in pairs))
    found = train(program, data, folder / "cut", "--cutoff_len", cutoff, "--max_steps", 1, *words_of({"reference_free": True}))
    compare("cut", found, expected(micro_batches(kept[:PAIRS]), {"reference_free": True}))


def compare_evaluation(program, data, pairs, folder):
    """One pair is left for the last batch, which is padded."""
    rest = folder / "rest.jsonl"
    rest.write_text("".join(json.dumps(pair) + "\n" for pair in pairs[:7]))
    wanted = expected([[pairs[:7]]], {"reference_free": True})[0]
    for layout in ("one", "dp 2", "pp 2"):
        output = folder / f"evaluated {layout}"
        train(program, data, output, "--max_steps", 1, "--learning_rate", 0, "--eval_data", rest, "--eval_steps", 1,
              "--per_device_eval_batch_size", 2, "--reference_free", *LAYOUTS[layout])
        found = json.loads((output / "eval_metrics.jsonl").read_text().splitlines()[-1])
        for key, value in wanted.items():
            if key in NAMES and not abs(found["eval_" + key] - value) <= BOUND * max(1, abs(value)):
                raise AssertionError(f"{layout}: eval_{key} is {found['eval_' + key]}, expected {value}")
    print("evaluation: the same metrics", flush=True)


def refuse_other_data(program, data, folder):
    text = folder / "text.jsonl"
    text.write_text('{"text": "a"}\n')
    for words, reason in ((["--stage", "dpo", "--train_data", text], "train on pairs"),
                          (["--stage", "sft", "--train_data", data], "set stage: dpo"),
                          (["--stage", "dpo", "--train_data", data, "--pref_loss", "orpo", "--ref_model", MODEL], "uses no reference"),
                          (["--stage", "sft", "--train_data", data, "--pref_beta", 1], "stage sft does not have")):
        said = run(program, "train", "--model", MODEL, "--tokenizer", "byte", "--output_dir", folder / "refused", *words, fails=True)
        if reason not in said:
            raise AssertionError(f"{words}: {said}")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("program")
    parser.add_argument("--platform")
    arguments = parser.parse_args()
    program = arguments.program
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    with tempfile.TemporaryDirectory(prefix="concord-pairs-") as name:
        folder = Path(name)
        pairs, data = random_pairs(STEPS * PAIRS), folder / "pairs.jsonl"
        data.write_text("".join(json.dumps(pair) + "\n" for pair in pairs))
        if arguments.platform:
            return compare_adapters(program, data, pairs, folder, ["dp 2"], arguments.platform)
        compare_training(program, data, pairs, folder)
        compare_first_steps(program, folder)
        compare_sources(program, data, pairs, folder)
        compare_average(program, data, folder)
        compare_packed(program, data, pairs, folder)
        compare_adapters(program, data, pairs, folder)
        compare_four_bits(program, data, pairs, folder / "four")
        compare_several(program, data, folder)
        compare_rewards(program, pairs, folder)
        compare_tokens(program, folder)
        compare_truncation(program, pairs, folder)
        compare_evaluation(program, data, pairs, folder)
        refuse_other_data(program, data, folder)


if __name__ == "__main__":
    main()
