"""Teaches a small new model sums that the script itself writes: python sft.py [OUTPUT_DIR]. No download is needed.

With another model: model="models/Qwen2.5-0.5B" instead of model_config and tokenizer, and rows such as
{"messages": [{"role": "user", "content": "..."}, {"role": "assistant", "content": "..."}]}. For two ranks:
concord launch --nproc 2 -- python sft.py
"""

import pathlib
import sys
from collections.abc import Iterator

import concord

CONFIG = pathlib.Path(__file__).parent.parent / "sft/config.json"


def sums() -> Iterator[dict[str, str]]:
    for a in range(10):
        for b in range(10):
            yield {"prompt": f"{a} + {b} = ", "completion": str(a + b)}


class StopWhenKnown(concord.Callback):
    def on_log(self, state: concord.TrainerState, control: concord.TrainerControl, logs: dict[str, float]) -> None:
        control.should_training_stop = logs["loss"] < 0.05


if __name__ == "__main__":
    result = concord.train(
        model_config=CONFIG, tokenizer="byte", train_data=sums(), seq_length=16, max_steps=400, learning_rate=4e-3,
        per_device_train_batch_size=25, lr_scheduler_type="cosine", warmup_steps=20, logging_steps=10,
        output_dir=sys.argv[1] if len(sys.argv) > 1 else "sums", overwrite_output_dir=True, callbacks=[StopWhenKnown()])
    print(f"step {result.global_step}: loss {result.log[0]['loss']:.2f} -> {result.log[-1]['loss']:.2f}, {result.model}")
