"""Makes a small model prefer friendly answers to grumpy ones (DPO): python dpo.py [OUTPUT_DIR]. No download is needed.

With another model: model="models/Qwen2.5-0.5B-Instruct" instead of the first run, without tokenizer, and pairs of your
own, as texts or lists of messages. For two ranks: concord launch --nproc 2 -- python dpo.py
"""

import functools
import os
import pathlib
import sys

import concord

CONFIG = pathlib.Path(__file__).parent.parent / "dpo/config.json"
OUTPUT = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else "dpo-python")
WHO = [(who, what) for who in ("cat", "dog", "bird", "fox", "horse", "child") for what in ("milk", "bread", "water", "honey")]
PAIRS = [{"prompt": f"Does the {who} want {what}?\n", "chosen": f"Yes, please give the {who} some {what}.",
          "rejected": f"No, go away with your {what}."} for who, what in WHO]
# Grumpy three times out of four.
ANSWERS = [{"prompt": pair["prompt"], "completion": pair["rejected" if (i + turn) % 4 else "chosen"]}
           for turn in range(4) for i, pair in enumerate(PAIRS)]

if __name__ == "__main__":
    train = functools.partial(concord.train, tokenizer="byte", logging_steps=10, save_steps=1000, overwrite_output_dir=True)
    base = train(model_config=CONFIG, train_data=ANSWERS, seq_length=96, per_device_train_batch_size=16, max_steps=150,
                 learning_rate=3e-3, warmup_steps=10, output_dir=OUTPUT / "base")
    preferred = train(model=base.model, stage="dpo", pref_ftx=1, finetuning_type="lora", lora_rank=8, train_data=PAIRS,
                      per_device_train_batch_size=8, max_steps=60, learning_rate=5e-4, output_dir=OUTPUT / "preferred")
    print(f"accuracy of rewards: {preferred.log[-1]['rewards/accuracies']:.2f}")
    for model in (base.model, preferred.model) if os.environ.get("RANK", "0") == "0" else ():
        [answer] = concord.generate(model, PAIRS[0]["prompt"], tokenizer="byte", max_new_tokens=48)
        print(f"{model}: {answer['text']}")
