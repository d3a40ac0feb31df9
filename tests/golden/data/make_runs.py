#!/usr/bin/env python3
"""Writes runs.json: what Megatron does at the ends of documents, and the samples and learning rates of its runs.

    PYTHONPATH=Megatron-LM python3 make_runs.py Megatron-LM > runs.json
    made with Megatron-LM core_v0.16.1, torch 2.13.0 (cpu)

A row of |document_ends| is a sample's tokens, the flags, and what _get_ltor_masks_and_position_ids makes of them.
A run has its arguments in Concord's names, the number of steps that update_train_iters finds, and for each step the
indices that each data-parallel rank's sampler gives it, micro-batch by micro-batch, the global batch size and the
learning rates of both groups; from step |resumed_after| on they are those of new samplers and calculators.
"""
import ast
import itertools
import json
import random
import sys
from types import SimpleNamespace

import torch
from megatron.core import num_microbatches_calculator as calculator
from megatron.core.datasets.gpt_dataset import _get_ltor_masks_and_position_ids
from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler

EOD = 9


def definition(file, name):
    """A function or class of megatron/training, without importing all of that."""
    tree = ast.parse(open(f"{sys.argv[1]}/megatron/training/{file}").read())
    own = [node for node in tree.body if getattr(node, "name", None) == name]
    names = {**vars(calculator), "print_rank_0": lambda text: None}
    exec(compile(ast.Module(own, []), file, "exec"), names)
    return names[name]


MegatronPretrainingSampler = definition("datasets/data_samplers.py", "MegatronPretrainingSampler")


def update_train_iters(args):
    definition("training.py", "update_train_iters")(args)
    return args.train_iters


def document_ends():
    rng = random.Random(1)
    rows = [[rng.choice([1, 2, 3, 4, EOD]) for _ in range(12)] for _ in range(6)]
    rows += [[EOD] * 4, [1, 2, 3, 4], [EOD, 1, 2, EOD]]
    for row, positions, attention, loss in itertools.product(rows, *[[False, True]] * 3):
        mask, loss_mask, position_ids = _get_ltor_masks_and_position_ids(
            torch.tensor(row), EOD, positions, attention, loss, True)
        yield {"tokens": row, "reset_position_ids": positions, "reset_attention_mask": attention, "eod_mask_loss": loss,
               "position_ids": position_ids.tolist(), "loss_mask": loss_mask.int().tolist(),
               "attends": ["".join("01"[int(not hidden)] for hidden in line) for line in mask[0].tolist()]}


def run(samples, batch, micro, ranks, ramp, total, resumed_after, lr, decoupled, warmup, decay, decrease=False):
    calculator.unset_num_microbatches_calculator()
    calculator.init_num_microbatches_calculator(0, ramp, batch, micro, ranks, decrease)
    steps = update_train_iters(SimpleNamespace(train_iters=None, rampup_batch_size=ramp, train_samples=samples,
                                               global_batch_size=batch))
    groups = [{"params": [], "max_lr": lr[0], "min_lr": lr[1]}, {"params": [], "max_lr": decoupled[0],
                                                                 "min_lr": decoupled[1]}]
    scheduler = OptimizerParamScheduler(
        SimpleNamespace(param_groups=groups), init_lr=0.0, max_lr=lr[0], min_lr=lr[1], lr_warmup_steps=warmup,
        lr_decay_steps=decay or samples, lr_decay_style="cosine", start_wd=0.0, end_wd=0.0, wd_incr_steps=samples,
        wd_incr_style="constant")
    consumed, rows = 0, []
    for step in range(steps):
        if step in (0, resumed_after):
            readers = [iter(MegatronPretrainingSampler(total, consumed, micro, rank, ranks)) for rank in range(ranks)]
        calculator.update_num_microbatches(consumed)
        count = calculator.get_num_microbatches()
        rows.append({"indices": [[next(reader) for _ in range(count)] for reader in readers],
                     "global_batch_size": calculator.get_current_running_global_batch_size(),
                     "learning_rate": scheduler.get_lr(groups[0]),
                     "decoupled_learning_rate": scheduler.get_lr(groups[1])})
        scheduler.step(increment=count * micro * ranks)
        consumed += count * micro * ranks
    return {"train_samples": samples, "global_batch_size": batch, "micro_batch_size": micro, "dp_size": ranks,
            "rampup_batch_size": ramp, "decrease_batch_size_if_needed": decrease, "samples": total,
            "resumed_after": resumed_after, "learning_rate": lr[0], "min_lr": lr[1], "decoupled_lr": decoupled[0],
            "decoupled_min_lr": decoupled[1], "warmup_samples": warmup, "lr_decay_samples": decay,
            "train_iters": steps, "steps": rows}


def main():
    lr, decoupled = (1e-2, 1e-3), (4e-3, 2e-3)
    runs = [run(39, 4, 1, 2, [2, 2, 8], 64, 5, lr, decoupled, 10, 0),
            run(60, 12, 2, 2, [4, 4, 30], 96, 3, lr, decoupled, 12, 48),
            run(50, 8, 2, 1, None, 64, 2, lr, decoupled, 7, 0),
            run(40, 7, 2, 1, None, 64, 3, lr, decoupled, 8, 0, decrease=True),
            run(5, 8, 1, 1, [2, 2, 16], 64, 1, lr, decoupled, 2, 0)]  # ends while the batch grows
    document = {"eod": EOD, "document_ends": list(document_ends()), "runs": runs}
    print(json.dumps(document))


main()
