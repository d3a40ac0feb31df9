"""DPO on pairs whose prompts have images, compared with TRL's DPOTrainer on transformers in float64: losses and metrics
with one and two ranks, packed, with log-probabilities of the reference that are computed first, and with an adapter.

preferences_with_images.py PROGRAM

Exit code 77: a package is missing, nothing was compared.
"""

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parent)]
import preferences
import train_images
from image_data import PICTURE, expected_sample, image_processor, make_images, make_tokenizer, open_images
from random_models import torch, transformers

QUESTIONS = [("What is it?", [0]), ("No picture", []), ("Compare", [1, 2]), ("And this?", [3])]
ANSWERS = [("A picture.", "Nothing"), ("Yes, it is so", "No"), ("They differ", "Both are the same, I think"), ("Long", "Short.")]


def make_pairs(folder, model, count):
    """Writes the pairs, and returns the two samples of each as transformers would process them."""
    make_images(folder / "images", 6)
    tokenizer, processor = make_tokenizer(), image_processor(model)
    lines, pairs = [], []
    for i in range(count):
        (question, numbers), (chosen, rejected) = QUESTIONS[i % 4], ANSWERS[i // 2 % 4]
        say = lambda text: [{"role": "assistant", "content": text}]
        record = {"prompt": [{"role": "user", "content": "<image>" * len(numbers) + question}], "chosen": say(chosen), "rejected": say(rejected)}
        lines.append(json.dumps(record | ({"images": [f"images/{n}.png" for n in numbers]} if numbers else {})))
        told, opened = PICTURE * len(numbers) + question, open_images(folder, numbers)
        pairs.append([expected_sample(tokenizer, processor, (told, answer), opened) for answer in (chosen, rejected)])
    (folder / "pairs.jsonl").write_text("\n".join(lines) + "\n")
    return pairs


def batch_of(pairs):
    """Like TRL's collator: chosen rows, then rejected ones."""
    batch = train_images.collated([pair[side] for side in (0, 1) for pair in pairs])
    batch["completion_mask"] = (batch.pop("labels") != -100).long()
    return {name: value.double() if value.is_floating_point() else value for name, value in batch.items()}


def expected(folder, steps, adapter=None):
    model, reference = (train_images.load_model(folder).double() for _ in range(2))
    if adapter:
        model = preferences.peft.PeftModel.from_pretrained(model, adapter, is_trainable=True).double()
    wrapped = preferences.WithLogProbs(model)
    trainer = preferences.trl_trainer(wrapped, None if wrapped.is_peft else preferences.WithLogProbs(reference), {})
    metrics = trainer._metrics["train"]
    return preferences.steps_of(model, steps, lambda some: preferences.LOSS(trainer, wrapped, batch_of(some), False), metrics)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    program = parser.parse_args().program
    os.environ["CONCORD_PYTHON"] = sys.executable
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model, data = folder / "model", folder / "pairs.jsonl"
        train_images.make_model("qwen2_5_vl", model)
        pairs = make_pairs(folder, model, preferences.STEPS * preferences.PAIRS)
        cached = ["--data_cache_path", folder / "cache"]
        steps = preferences.micro_batches(pairs)
        wanted = expected(model, steps)
        runs = {"one": [], "dp 2": ["--nproc", 2], "packed": ["--sequence_packing", "--seq_length", 512, "--per_device_train_batch_size", 1,
                                                              "--global_batch_size", 1],
                "reference first": ["--precompute_ref_log_probs"]}
        for number, (name, words) in enumerate(runs.items()):
            if name == "packed":
                rows = packed_rows(pairs)
                assert 2 <= len(rows) < len(pairs)
                goal = expected(model, [[row] for row in rows])
                words = [*words, "--max_steps", len(rows)]
            found = preferences.train(program, data, folder / f"out-{number}", *cached, *words, model=model)
            preferences.compare(f"images, {name}", found, goal if name == "packed" else wanted, 2)
        lora = [*cached, "--finetuning_type", "lora", "--lora_rank", 4, "--lora_target", "q_proj,v_proj,o_proj"]
        preferences.train(program, data, folder / "start", *lora, "--max_steps", 1, "--learning_rate", 0, model=model)
        found = preferences.train(program, data, folder / "out-adapter", *lora, model=model)
        preferences.compare("images, adapter", found, expected(model, steps, folder / "start/model"))


def packed_rows(pairs):
    """First fit into rows of 512 tokens."""
    rows = []
    for pair in pairs:
        size = sum(len(ids) for ids, _, _, _ in pair)
        row = next((row for row in rows if row[0] + size <= 512), None)
        if row is None:
            rows.append(row := [0, []])
        row[0] += size
        row[1].append(pair)
    return [row[1] for row in rows]


if __name__ == "__main__":
    main()
