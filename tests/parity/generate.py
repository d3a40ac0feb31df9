"""Greedy decoding by `concord generate` compared with transformers, for every family.

generate.py PROGRAM [--seed N] [--count N]

Each case is a random model of the next family (random_models.py). Three prompts of different lengths, in one batch here
and one by one in transformers, both in float32: 50 tokens must be equal. If they diverge, the logits of the two tokens
in transformers must be closer than rounding explains (BOUND), otherwise it is an error; the rest of such a prompt is
not compared, and more than one such prompt in a case is an error too.

Some cases also run with layouts, and sample tokens: the same seed must give the same tokens with all of them, and for
every batch size. Finally a prompt and a chat are given and returned as text. Exit code 77: transformers is missing,
nothing was compared.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path

import preloaded

sys.path.insert(0, str(Path(__file__).parent))
from random_models import FAMILIES, LINEAR, draw_config, make_model, rope_name, torch, transformers  # exits with 77 if missing

TOKENS = 50
# Logits of these models are sums of at most 200 products in each of at most 14 layers of sums, of magnitude up to 10:
# 14 * sqrt(200) * 10 * 2^-24 = 1.2e-4 is a generous estimate of how far two orders of summation are apart.
BOUND = 2e-4
LAID_OUT = ("llama", "mixtral", "qwen3_next")  # families that run under layouts as well
LAYOUTS = {"tp 2": ["--tensor_model_parallel_size", "2", "--nproc", "2"],
           "pp 2": ["--pipeline_model_parallel_size", "2", "--nproc", "2"]}


def run(program, folder, *more):
    command = [program, "generate", "--model", str(folder / "model"), "--prompts", str(folder / "prompts.jsonl"),
               "--max_new_tokens", str(TOKENS), "--json", *more]
    done = preloaded.run(command)
    if done.returncode != 0:
        raise AssertionError(f"{' '.join(command)}\n{done.stderr}")
    return [each["ids"] for each in json.loads(done.stdout)["generated"]]


def greedy(model, prompt):
    ids = torch.tensor([prompt])
    with torch.no_grad():
        made = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=TOKENS, do_sample=False, pad_token_id=0)
    return made[0, len(prompt):].tolist()


def compare(model, prompt, expected, found, where):
    """Returns whether they are equal; raises unless a near tie explains the divergence."""
    if expected == found:
        return True
    at = next((i for i, (a, b) in enumerate(zip(expected, found)) if a != b), min(len(expected), len(found)))
    if at >= min(len(expected), len(found)):
        raise AssertionError(f"{where}: {len(found)} tokens, transformers has {len(expected)}")
    with torch.no_grad():
        logits = model(torch.tensor([prompt + expected[:at]])).logits[0, -1].double()
    gap = (logits[expected[at]] - logits[found[at]]).item()
    if gap > BOUND:
        raise AssertionError(f"{where}: token {at} is {found[at]}, transformers has {expected[at]}, whose logit is "
                             f"larger by {gap:.3g}; bound {BOUND:g}")
    return False


def run_case(program, seed, folder):
    draw = random.Random(seed)
    family, settings = draw_config(draw, seed)
    settings["max_position_embeddings"] = 80
    settings["num_hidden_layers"] = 2
    settings |= {key: (2 * settings[key])[-2:] for key in ("layer_types", "mlp_layer_types") if key in settings}
    if family in (*LAID_OUT, "qwen3"):
        settings |= {"num_key_value_heads": 2, "num_attention_heads": 4, "hidden_size": 32}
    if family in LINEAR:
        settings |= {"linear_num_key_heads": 2, "linear_num_value_heads": 4, "layer_types": ["linear_attention", "full_attention"]}
    model = make_model(family, settings, seed).float().eval()
    prompts = [[draw.randrange(settings["vocab_size"]) for _ in range(length)] for length in (3, 17, 8)]
    model.save_pretrained(folder / "model")
    with open(folder / "prompts.jsonl", "w", encoding="utf-8") as file:
        file.writelines(json.dumps({"input_ids": prompt}) + "\n" for prompt in prompts)
    found = run(program, folder, "--dtype", "float32")
    same = [compare(model, prompt, greedy(model, prompt), ids, f"seed {seed}, {family} {json.dumps(settings)}, prompt {i}")
            for i, (prompt, ids) in enumerate(zip(prompts, found))]
    if sum(same) < 2:
        raise AssertionError(f"seed {seed}, {family}: near ties in {3 - sum(same)} of 3 prompts; choose another seed")
    return family, settings, sum(same)


def check_layouts(program, folder, where):
    drawn = ["--dtype", "float64", "--temperature", "0.9", "--top_k", "30", "--top_p", "0.95", "--seed", "11"]
    expected = run(program, folder, *drawn)
    if run(program, folder, *drawn[:-1], "12") == expected:
        raise AssertionError(f"{where}: another seed gives the same tokens")
    if run(program, folder, *drawn, "--batch_size", "1") != expected:
        raise AssertionError(f"{where}: other tokens in batches of one")
    for name, layout in LAYOUTS.items():
        if run(program, folder, *drawn, *layout) != expected:
            raise AssertionError(f"{where}: other tokens with {name}")


def check_refusals(program, folder, settings):
    """Prompts that the model cannot continue, each with its error."""
    cases = {"prompt 2 has 80 tokens, but the model has 80 positions": [[1], [1] * 80],
             f"prompt 1 has the token id {settings['vocab_size']}": [[0, settings["vocab_size"]]]}
    for words, prompts in cases.items():
        with open(folder / "refused.jsonl", "w", encoding="utf-8") as file:
            file.writelines(json.dumps({"input_ids": prompt}) + "\n" for prompt in prompts)
        done = subprocess.run([program, "generate", "--model", str(folder / "model"), "--prompts",
                               str(folder / "refused.jsonl")], capture_output=True, text=True)
        if done.returncode != 2 or words not in done.stderr:
            raise AssertionError(f"exit code {done.returncode}, not refused with {words!r}: {done.stderr}")


CHATML = ("{% for m in messages %}{{'<|im_start|>' + m['role'] + '\\n' + m['content'] + '<|im_end|>\\n'}}{% endfor %}"
          "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}")


def check_text(program, folder):
    """Text in and out: a prompt, a user's message, and both on a terminal, compared with transformers."""
    golden = Path(__file__).parent.parent / "golden" / "tokenizer" / "qwen" / "tokenizer.json"
    _, settings = draw_config(random.Random(2), 2)
    settings |= {"vocab_size": 600, "max_position_embeddings": 200, "rope_parameters": {"rope_type": "default", "rope_theta": 1e4}}
    model = make_model("llama", settings, 5).float().eval()
    model.save_pretrained(folder / "model")
    (folder / "model" / "tokenizer.json").write_bytes(golden.read_bytes())
    (folder / "model" / "tokenizer_config.json").write_text(json.dumps(
        {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>", "chat_template": CHATML}))
    tokenizer = transformers.AutoTokenizer.from_pretrained(str(folder / "model"))
    if len(tokenizer) > 600:
        raise AssertionError(f"the golden tokenizer has {len(tokenizer)} ids; make the model's vocabulary as large")
    said = "Grüße an 東京 <|im_end|>"
    asked = {"--prompt": tokenizer(said).input_ids,
             "--chat": tokenizer.apply_chat_template([{"role": "user", "content": said}], add_generation_prompt=True,
                                                     return_dict=False, sanitize_control_tokens=True)}
    for kind, ids in asked.items():
        command = [program, "generate", "--model", str(folder / "model"), "--dtype", "float32", "--max_new_tokens", "20",
                   "--prompt", said] + (["--chat"] if kind == "--chat" else [])
        environment = os.environ | {"CONCORD_PYTHON": sys.executable}
        shown = subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout
        document = subprocess.run([*command, "--json"], capture_output=True, text=True, check=True, env=environment).stdout
        found = json.loads(document)["generated"][0]
        if found["prompt_ids"] != ids:
            raise AssertionError(f"{kind}: prompt ids {found['prompt_ids']}, transformers has {ids}")
        end = tokenizer.convert_tokens_to_ids("<|im_end|>")
        made = model.generate(torch.tensor([ids]), attention_mask=torch.ones(1, len(ids), dtype=torch.long), max_new_tokens=20,
                              do_sample=False, pad_token_id=0, eos_token_id=end)[0, len(ids):].tolist()
        expected = made[:-1] if made[-1] == end else made
        if found["ids"] != expected or found["finish_reason"] != ("stop" if made[-1] == end else "length"):
            raise AssertionError(f"{kind}: {found}, transformers has {made}")
        text = tokenizer.decode(expected, skip_special_tokens=True)
        if found["text"] != text or shown != text + "\n":
            raise AssertionError(f"{kind}: text {found['text']!r}, shown {shown!r}, transformers has {text!r}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=len(FAMILIES))
    arguments = parser.parse_args()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    for seed in range(arguments.seed, arguments.seed + arguments.count):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            family, settings, same = run_case(arguments.program, seed, folder)
            if family in LAID_OUT:
                check_layouts(arguments.program, folder, f"seed {seed}, {family}")
                check_refusals(arguments.program, folder, settings)
        print(f"seed {seed}: {family}, rope {rope_name(settings)}: {same} of 3 prompts the same",
              flush=True)
    with tempfile.TemporaryDirectory() as name:
        check_text(arguments.program, Path(name))
    print("a prompt and a chat as text: the same", flush=True)


if __name__ == "__main__":
    main()
