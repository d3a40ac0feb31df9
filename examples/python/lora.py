"""Trains a small base model and an adapter for it that turns its sentences: python lora.py [OUTPUT_DIR]. No download is needed.

With another model: model="models/Qwen2.5-0.5B" instead of the first run, without tokenizer, and data of your own. peft
loads the adapter, and `concord merge` adds it to the weights. For two ranks: concord launch --nproc 2 -- python lora.py
"""

import functools
import os
import pathlib
import sys

import concord

CONFIG = pathlib.Path(__file__).parent.parent / "lora/config.json"
OUTPUT = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else "lora-python")
ANIMALS = ["cat", "dog", "bird", "fox", "horse", "child", "farmer", "baker"]
VERBS = ["sees", "hears", "likes", "follows", "finds", "knows"]


def sentences(form: str) -> list[dict[str, str]]:
    return [{"prompt": f"{a} {v} {b}: ", "completion": form.format(a=a, v=v, b=b)}
            for a in ANIMALS for v in VERBS for b in ANIMALS]


if __name__ == "__main__":
    train = functools.partial(concord.train, tokenizer="byte", seq_length=64, per_device_train_batch_size=16, warmup_steps=10,
                              logging_steps=10, save_steps=1000, overwrite_output_dir=True)
    base = train(model_config=CONFIG, train_data=sentences("the {a} {v} the {b}."), max_steps=200, learning_rate=3e-3,
                 output_dir=OUTPUT / "base")
    adapter = train(model=base.model, finetuning_type="lora", lora_rank=8, lora_alpha=16, lora_target="all-linear",
                    train_data=sentences("the {b}, the {a} {v}."), max_steps=150, learning_rate=5e-3,
                    output_dir=OUTPUT / "adapter")
    for model in (base.model, adapter.model) if os.environ.get("RANK", "0") == "0" else ():
        [answer] = concord.generate(model, "fox likes bird: ", tokenizer="byte", max_new_tokens=40)
        print(f"{model}: {answer['text']}")
