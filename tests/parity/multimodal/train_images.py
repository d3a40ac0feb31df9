"""`concord train` on conversations with images compared with transformers: 20 steps, packed and padded, over two ranks,
parts of the model frozen, adapters; and the folder that is saved.

train_images.py PROGRAM [--only FAMILY...]

A tiny random model with a tokenizer, a chat template and an image processor in its folder; every sample is converted by
the program itself. Exit code 77: transformers or pillow is missing, nothing was compared.
"""

import argparse
import json
import os
import shutil
import sys
import tempfile
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parent)]
import images
import train_experts
import preloaded
from image_data import END, IMAGE, PICTURE, expected_sample, image_processor, make_images, make_tokenizer, open_images, write_processors
from random_models import torch, transformers

STEPS, MICRO, ROWS = train_experts.STEPS, train_experts.MICRO, 4
# Two rows are a micro-batch: the second and fifth have no image, so that one of two ranks has none.
QUESTIONS = [("What is it?", [0]), ("", []), ("Hm", []), ("Why not", []), ("Compare", [1, 2]), ("And this one, which is longer?", [3]),
             ("So", [4]), ("Is it", [5, 0]), ("", []), ("Well", []), ("Two", [2, 2]), ("A", [])]
SPLIT = {"qwen3_vl": {"dp 2, tp 2, sp": (4, ["gradient_accumulation_steps: 1", "tensor_model_parallel_size: 2", "sequence_parallel: true"])},
         "qwen2_5_vl": {"pp 2, cp 2, sharded": (4, ["pipeline_model_parallel_size: 2", "context_parallel_size: 2",
                                                   "use_distributed_optimizer: true"])},
         "qwen3_vl_moe": {"dp 2, ep 2": (2, ["gradient_accumulation_steps: 1", "expert_model_parallel_size: 2"])}}
# Relative differences of losses, of gradient norms, and of weights after 20 steps. The gradient of a key's bias almost
# vanishes, since softmax ignores what all scores of a query share, and AdamW enlarges its rounding.
LOSS, NORM, WEIGHT, BIAS = 5e-6, 1e-5, 1e-5, 1e-4


def make_model(family, folder):
    images.TEXT |= {"vocab_size": 264, "max_position_embeddings": 512, "initializer_range": 0.05}
    images.IMAGE, images.VIDEO = IMAGE, IMAGE + 1
    torch.manual_seed(3)
    text, tower = images.FAMILIES[family]
    config = transformers.AutoConfig.for_model(
        family, text_config=images.TEXT | text | {"tie_word_embeddings": False}, vision_config=images.TOWER | tower,
        image_token_id=IMAGE, video_token_id=IMAGE + 1, tie_word_embeddings=False)
    model = transformers.AutoModelForImageTextToText.from_config(config, dtype=torch.float32, attn_implementation="eager")
    model.save_pretrained(folder)
    write_processors(folder)


def make_data(folder, model):
    """Writes the conversations, and returns them as transformers would process them."""
    make_images(folder / "images", 6)
    tokenizer, processor = make_tokenizer(), image_processor(model)
    lines, samples = [], []
    for i in range(STEPS * ROWS):
        question, numbers = QUESTIONS[i % len(QUESTIONS)]
        question, answer = f"{question} {i % 3}", f"answer {i % 5} of {len(numbers)}"
        record = {"messages": [{"role": "user", "content": "<image>" * len(numbers) + question},
                               {"role": "assistant", "content": answer}]}
        lines.append(json.dumps(record | ({"images": [f"images/{n}.png" for n in numbers]} if numbers else {})))
        told = (PICTURE * len(numbers) + question, answer)
        samples.append(expected_sample(tokenizer, processor, told, open_images(folder, numbers)))
    (folder / "data.jsonl").write_text("\n".join(lines) + "\n")
    return samples


def collated(samples):
    """A batch of transformers."""
    length = max(len(ids) for ids, _, _, _ in samples)
    pad = lambda x, value: torch.nn.functional.pad(x, (0, length - len(x)), value=value)
    batch = {"input_ids": torch.stack([pad(ids, 0) for ids, _, _, _ in samples]),
             "labels": torch.stack([pad(labels, -100) for _, labels, _, _ in samples]),
             "attention_mask": torch.stack([pad(torch.ones_like(ids), 0) for ids, _, _, _ in samples])}
    batch["mm_token_type_ids"] = (batch["input_ids"] == IMAGE).int()
    with_images = [(pixels, grids) for _, _, pixels, grids in samples if pixels is not None]
    if with_images:
        batch |= {"pixel_values": torch.cat([pixels for pixels, _ in with_images]),
                  "image_grid_thw": torch.cat([grids for _, grids in with_images])}
    return batch


def load_model(folder):
    return transformers.AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")


def is_all(name):
    return True


def train_reference(model, samples, is_trained=is_all):
    """Losses, gradient norms and weights; the mean over the micro-batches of a step, as the Trainer of transformers."""
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(parameter.requires_grad and is_trained(name))
    optimizer = train_experts.make_optimizer(model)
    steps = []
    for step in range(1, STEPS + 1):
        for group in optimizer.param_groups:
            group["lr"] = train_experts.lr_at(step)
        optimizer.zero_grad()
        rows, total = samples[(step - 1) * ROWS:step * ROWS], 0.0
        for begin in range(0, ROWS, MICRO):
            loss = model(**collated(rows[begin:begin + MICRO])).loss / (ROWS // MICRO)
            if loss.requires_grad:  # not without images if only the tower is trained
                loss.backward()
            total += loss.item()
        norm = torch.nn.utils.clip_grad_norm_([p for p in model.parameters() if p.requires_grad], train_experts.CLIP, foreach=False)
        optimizer.step()
        steps.append((total, norm.item()))
    return model, steps


def packed_rows(samples, length):
    """First fit, in the order of the samples."""
    rows = []
    for sample in samples:
        fits = (row for row in rows if sum(len(ids) for ids, _, _, _ in row) + len(sample[0]) <= length)
        row = next(fits, None)
        if row is None:
            row = rows.append([]) or rows[-1]
        row.append(sample)
    return rows


def train_packed_reference(model, rows):
    """A row per step, whose samples are computed alone; the mean over all their tokens."""
    optimizer = train_experts.make_optimizer(model)
    steps = []
    for step, row in enumerate(rows[:STEPS], 1):
        for group in optimizer.param_groups:
            group["lr"] = train_experts.lr_at(step)
        optimizer.zero_grad()
        count = sum((labels[1:] != -100).sum() for _, labels, _, _ in row)
        total = 0.0
        for sample in row:
            loss = model(**collated([sample])).loss * (sample[1][1:] != -100).sum() / count
            loss.backward()
            total += loss.item()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), train_experts.CLIP, foreach=False)
        optimizer.step()
        steps.append((total, norm.item()))
    return steps


def weights_of(model):
    """The tensors of a saved folder."""
    with tempfile.TemporaryDirectory() as name:
        model.save_pretrained(name)
        return train_experts.load_file(f"{name}/model.safetensors")


def train(program, folder, data, world, words):
    settings = {"train_data": data, "data_cache_path": folder / "cache", "gradient_accumulation_steps": ROWS // MICRO}
    given = {word.split(":")[0] for word in words}
    defaults = [f"{name}: {value}" for name, value in settings.items() if name not in given]
    return train_experts.run_here(program, folder, folder / "model", world, defaults + words)


def compare(where, steps, wanted, weights=None):
    """|weights|: those found, and those of transformers."""
    assert len(steps) == len(wanted)
    worst = {"loss": 0.0, "norm": 0.0, "weight": 0.0, "bias": 0.0}
    for number, ((loss, norm), (wanted_loss, wanted_norm)) in enumerate(zip(steps, wanted), 1):
        for key, share, bound in (("loss", abs(loss - wanted_loss) / wanted_loss, LOSS), ("norm", abs(norm - wanted_norm) / wanted_norm, NORM)):
            assert share <= bound, f"{where}: {key} of step {number} differs by {share:.3g}; bound {bound:g}"
            worst[key] = max(worst[key], share)
    if weights is not None:
        own, others = weights
        assert set(own) == set(others), f"{where}: {set(own) ^ set(others)}"
        for name, tensor in others.items():
            share = ((own[name] - tensor).norm() / tensor.norm().clamp_min(1e-12)).item()  # biases that are frozen are 0
            kind, bound = ("bias", BIAS) if name.endswith("bias") else ("weight", WEIGHT)
            assert share <= bound, f"{where}: {name} differs by {share:.3g}; bound {bound:g}"
            worst[kind] = max(worst[kind], share)
    print(f"{where}: " + ", ".join(f"{key} {value:.2g}" for key, value in worst.items()), flush=True)


def compare_family(program, family, folder):
    make_model(family, folder / "model")
    samples = make_data(folder, folder / "model")
    model, wanted = train_reference(load_model(folder / "model"), samples)
    weights = weights_of(model)
    data = folder / "data.jsonl"
    layouts = {"padded rows": (1, []), "two ranks": (2, ["gradient_accumulation_steps: 1"]),
               "two ranks, overlapped, sharded": (2, ["gradient_accumulation_steps: 1", "overlap_grad_reduce: true",
                                                      "overlap_param_gather: true", "use_distributed_optimizer: true"])}
    for where, (world, words) in (layouts | SPLIT.get(family, {})).items():
        steps, found = train(program, folder, data, world, words)
        compare(f"{family}, {where}", steps, wanted, (found, weights))
    with torch.no_grad():
        saved = transformers.AutoModelForImageTextToText.from_pretrained(folder / "out" / "model", dtype=torch.float32)
        batch = collated(samples[:MICRO])
        worst = (saved(**batch).logits - model(**batch).logits).abs().max().item()
    assert worst <= train_experts.LOADED, f"{family}: logits of the saved folder differ by {worst:.3g}"
    compare_generation(program, family, folder, saved)
    return samples


def compare_generation(program, family, folder, model):
    files = [str(folder / "images" / f"{i}.png") for i in (1, 3)]
    told = (PICTURE * 2 + "What are they?", "")
    ids, _, pixels, grids = expected_sample(make_tokenizer(), image_processor(folder / "model"), told, open_images(folder, [1, 3]))
    prompt = ids[:-2].unsqueeze(0)  # without the end of an empty answer
    wanted = model.generate(input_ids=prompt, attention_mask=torch.ones_like(prompt), pixel_values=pixels, image_grid_thw=grids,
                            mm_token_type_ids=(prompt == IMAGE).int(), max_new_tokens=12, do_sample=False)[0, prompt.shape[1]:]
    words = [word for file in files for word in ("--image", file)]
    done = preloaded.run([program, "generate", "--model", str(folder / "out" / "model"), "--prompt", "What are they?", "--chat", *words,
                          "--json", "--dtype", "float32", "--max_new_tokens", "12"])
    assert done.returncode == 0, done.stderr
    made = json.loads(done.stdout)["generated"][0]
    assert made["prompt_ids"] == prompt[0].tolist(), f"{family}: other prompts"
    found = made["ids"] + ([END] if made["finish_reason"] == "stop" else [])
    assert found == wanted.tolist(), f"{family}: generated {found}; transformers {wanted.tolist()}"
    print(f"{family}, generated: {len(found)} tokens", flush=True)


def compare_packed(program, folder, samples):
    rows = packed_rows(samples, 192)
    model = load_model(folder / "model")
    wanted = train_packed_reference(model, rows)
    steps, found = train(program, folder, folder / "data.jsonl", 1, [
        "sequence_packing: true", "seq_length: 192", "per_device_train_batch_size: 1", "gradient_accumulation_steps: 1"])
    compare("packed rows", steps, wanted, (found, weights_of(model)))


def compare_frozen(program, folder, samples):
    """Parts that are frozen, by their own settings and as LLaMA-Factory's files freeze them."""
    is_tower, is_merger = (lambda name: "visual." in name), (lambda name: "visual.merger." in name)
    (folder / "dataset_info.json").write_text(json.dumps({"pictures": {
        "file_name": "data.jsonl", "formatting": "sharegpt", "columns": {"messages": "messages", "images": "images"},
        "tags": {"role_tag": "role", "content_tag": "content", "user_tag": "user", "assistant_tag": "assistant"}}}))
    cases = {
        "frozen tower": (["freeze_vision_tower: true"], lambda name: is_merger(name) or not is_tower(name)),
        "frozen language model": (["freeze_language_model: true"], is_tower),
        "LLaMA-Factory's file": (["template: qwen2_vl", "image_min_pixels: 0", "dataset: pictures", f"dataset_dir: {folder}"], lambda name: not is_tower(name)),
    }
    for where, (words, is_trained) in cases.items():
        model = load_model(folder / "model")
        _, wanted = train_reference(model, samples, is_trained)
        data = '""' if "dataset" in words[-1] else folder / "data.jsonl"
        steps, found = train(program, folder, data, 1, words)
        compare(where, steps, wanted, (found, weights_of(model)))


def compare_adapter(program, folder, samples):
    """LoRA on the language model."""
    import peft
    torch.manual_seed(11)
    config = peft.LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj", "o_proj"], init_lora_weights=False)
    model = peft.get_peft_model(load_model(folder / "model"), config)
    model.save_pretrained(folder / "adapter")
    _, wanted = train_reference(model, samples)
    train_experts.load_file, load = (lambda path: {}), train_experts.load_file  # an adapter is saved, not a model
    try:
        steps, _ = train(program, folder, folder / "data.jsonl", 1, ["finetuning_type: lora", f"adapter_name_or_path: {folder}/adapter"])
    finally:
        train_experts.load_file = load
    compare("adapter", steps, wanted)


def check_changed_image(program, folder):
    """The cache holds what has been converted, until an image changes."""
    def converts():
        command = [program, "train", "--config", str(folder / "run.yaml"), "--max_steps", "1"]
        done = preloaded.run(command)
        assert done.returncode == 0, done.stderr
        return "0.png has changed; converting images again" in done.stderr

    train(program, folder, folder / "data.jsonl", 1, [])
    assert not converts(), "an image that has not changed was converted again"
    image = folder / "images" / "0.png"
    os.utime(image, ns=(0, image.stat().st_mtime_ns + 1))
    assert converts() and not converts(), "an image that has changed was not converted again"
    print("cache: converts again what has changed", flush=True)


def check_resume(program, folder, changes):
    """A run does not continue a checkpoint if one of |changes|, names and values of settings, gives it other samples."""
    steps = ["save_steps: 1", "max_steps: 2"]
    train(program, folder, folder / "data.jsonl", 1, steps)
    again = [*steps, "overwrite_output_dir: false", "resume_from_checkpoint: true"]
    for name, value in changes:
        try:
            train(program, folder, folder / "data.jsonl", 1, [*again, f"{name}: {value}"])
        except AssertionError as error:
            assert "but this run has contents " in str(error), f"{name}: {error}"
        else:
            raise AssertionError(f"a run with another {name} resumed the checkpoint")
    train(program, folder, folder / "data.jsonl", 1, again)
    print(f"resume: {', '.join(name for name, _ in changes)} are compared", flush=True)


def make_other_images(folder):
    """Returns a folder with images of the same names, of which one differs."""
    other = folder / "elsewhere"
    shutil.copytree(folder / "images", other / "images")
    shutil.copy(other / "images" / "1.png", other / "images" / "0.png")
    return other


def check_refusals(program, folder):
    def refused(words, why):
        try:
            train(program, folder, folder / "data.jsonl", 1, words)
        except AssertionError as error:
            assert why in str(error), f"{words}: {error}"
        else:
            raise AssertionError(f"{words} were accepted")

    refused(["data_cache_path: none"], "data.jsonl, line 1: has images or videos, which are converted in the token cache")
    refused(["freeze_vision_tower: true", "freeze_multi_modal_projector: true", "freeze_language_model: true"], "leave nothing to train")
    refused(["finetuning_type: lora", "freeze_language_model: true"], "adapters are on the language model only")
    config = json.loads((folder / "model" / "config.json").read_text())
    config["image_token_id"] = 5
    (folder / "other").mkdir()
    (folder / "other" / "config.json").write_text(json.dumps(config))
    built = next((folder / "cache" / "tokens").glob("*/media"))
    try:
        train_experts.run_here(program, folder, folder / "other", 1, [f"train_data: {built}"])
    except AssertionError as error:
        assert "image token and video token of its images are 4, 2, 2, 261, 262, but the model's are 4, 2, 2, 5, 262" in str(error), error
    print("refusals: each with its reason", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("--only", nargs="+", choices=list(images.FAMILIES), default=["qwen2_5_vl", "qwen3_vl"])
    arguments = parser.parse_args()
    os.environ["CONCORD_PYTHON"] = sys.executable
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    torch.set_num_threads(1)
    for family in arguments.only:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            samples = compare_family(arguments.program, family, folder)
            if family != "qwen2_5_vl":
                continue
            compare_packed(arguments.program, folder, samples)
            compare_frozen(arguments.program, folder, samples)
            compare_adapter(arguments.program, folder, samples)
            check_changed_image(arguments.program, folder)
            check_resume(arguments.program, folder, [("image_max_pixels", 600), ("image_min_pixels", 4000), ("media_dir", make_other_images(folder))])
            check_refusals(arguments.program, folder)


if __name__ == "__main__":
    main()
