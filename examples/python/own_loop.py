"""Trains with its own loop: python own_loop.py [OUTPUT_DIR]. No download is needed.

The loop evaluates when the training loss has halved, saves a checkpoint there, and stops when evaluations get no better.
Every rank runs the same loop: concord launch --nproc 2 -- python own_loop.py
"""

import sys

import concord
from sft import CONFIG, sums

BATCH = 25


def loop(trainer: concord.Trainer) -> None:
    best, goal = float("inf"), float("inf")
    while logs := trainer.train_step():
        if logs["loss"] > goal:
            continue
        goal = logs["loss"] / 2
        metrics = trainer.evaluate()
        print(f"step {trainer.state.global_step}: loss {logs['loss']:.3f}, eval loss {metrics['eval_loss']:.3f}")
        if metrics["eval_loss"] > best:
            break
        best = metrics["eval_loss"]
        trainer.save()


if __name__ == "__main__":
    rows = list(sums())
    result = concord.train(
        model_config=CONFIG, tokenizer="byte", train_data=rows, eval_data=rows[::7], seq_length=16, max_steps=200,
        learning_rate=4e-3, per_device_train_batch_size=BATCH, logging_steps=1, save_steps=1000,
        output_dir=sys.argv[1] if len(sys.argv) > 1 else "own-loop", overwrite_output_dir=True, loop=loop)
    print(f"{result.reason}: {result.global_step} steps, {result.model}")
