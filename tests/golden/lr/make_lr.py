#!/usr/bin/env python3
"""Writes lr.json: learning rates and weight decays as Megatron's and Hugging Face's own schedulers compute them, and
scales as Megatron's DynamicGradScaler does.

    python3 make_lr.py TRAIN/full_batch.json > lr.json
    made with megatron-core 0.16.1, transformers 5.22.2, torch 2.13.0 (cpu, aarch64)

A case is the arguments in Concord's names and the values for counters of 0, 1, 2, ... updates. The case "train" is the
curve that the golden training run was made with (lr_step_offset 1).
"""
import json
import random
import sys
from unittest import mock

import torch
from megatron.core.optimizer import grad_scaler
from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler
from transformers.optimization import get_scheduler

BEYOND = 7  # values after the end of the curve


class Optimizer:
    def __init__(self):
        self.param_groups = [{}]


def megatron(steps, batch, style, warmup=0, decay=0, wsd=0, wsd_style="exponential", lr=3e-4, min_lr=0.0, init=0.0,
             samples=False, wd=(0.1, 0.1, "constant")):
    """|warmup|, |decay| and |wsd| are in steps, or in samples with |samples|; Megatron itself counts samples always."""
    unit = 1 if samples else batch
    end = decay * unit if decay else steps * batch
    optimizer = Optimizer()
    scheduler = OptimizerParamScheduler(
        optimizer, init_lr=init, max_lr=lr, min_lr=min_lr, lr_warmup_steps=warmup * unit, lr_decay_steps=end,
        lr_decay_style=style, start_wd=wd[0], end_wd=wd[1], wd_incr_steps=steps * batch, wd_incr_style=wd[2],
        wsd_decay_steps=wsd * unit, lr_wsd_decay_style=wsd_style)
    rates, decays = [], []
    for _ in range(max(steps, -(-end // batch)) + BEYOND):
        rates.append(optimizer.param_groups[0]["lr"])
        decays.append(optimizer.param_groups[0]["weight_decay"])
        scheduler.step(increment=batch)
    kind = "samples" if samples else "steps"
    arguments = {"lr_scheduler_type": style, "learning_rate": lr, "min_lr": min_lr,
                 "lr_warmup_init": init, f"warmup_{kind}": warmup, f"lr_decay_{kind}": decay,
                 f"lr_wsd_decay_{kind}": wsd, "lr_wsd_decay_style": wsd_style, "start_weight_decay": wd[0],
                 "end_weight_decay": wd[1], "weight_decay_incr_style": wd[2], "max_steps": steps,
                 "global_batch_size": batch}
    return {"source": "megatron", "arguments": arguments, "lr": rates, "weight_decay": decays}


def hugging_face(name, steps, warmup=0, lr=5e-5, beyond=0, **kwargs):
    parameter = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([parameter], lr=lr)
    scheduler = get_scheduler(name, optimizer, num_warmup_steps=warmup, num_training_steps=steps,
                              scheduler_specific_kwargs=dict(kwargs))
    rates = []
    for _ in range(steps + 1 + beyond):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    arguments = {"lr_scheduler_type": name, "lr_scheduler_kwargs": {k: str(v) for k, v in kwargs.items()},
                 "learning_rate": lr, "warmup_steps": warmup, "max_steps": steps}
    return {"source": "transformers", "arguments": arguments, "lr": rates}


def train(path):
    golden = json.load(open(path))
    given = golden["hyperparameters"]
    arguments = {"lr_scheduler_type": "cosine", "learning_rate": given["lr"], "min_lr": given["min_lr"],
                 "warmup_steps": given["warmup"], "max_steps": given["steps"], "lr_step_offset": 1}
    return {"source": "train", "arguments": arguments, "lr": [step["lr"] for step in golden["steps"]]}


def scaler(seed, steps, overflow, **settings):
    """Megatron keeps the scale on the GPU; its arithmetic is the same elsewhere."""
    generator = random.Random(seed)
    real = torch.tensor
    with mock.patch.object(torch, "tensor", lambda data, dtype=None, device=None: real(data, dtype=dtype)):
        scale = grad_scaler.DynamicGradScaler(**settings)
    flags, scales = [], []
    for _ in range(steps):
        flags.append(int(generator.random() < overflow))
        scale.update(bool(flags[-1]))
        scales.append(scale.scale.item())
    return {"settings": settings, "found_inf": flags, "scale": scales}


MEGATRON = [megatron(40, 8, style, warmup, min_lr=3e-5) for style in ("constant", "linear", "cosine", "inverse-square-root")
            for warmup in (0, 1, 9)]
MEGATRON += [megatron(50, 4, "WSD", 6, wsd=15, wsd_style=wsd, min_lr=low)
             for wsd in ("linear", "cosine", "exponential", "minus_sqrt") for low in (0.0, 3e-5)]
MEGATRON += [
    megatron(40, 8, "cosine", 5, decay=30, min_lr=1e-5, init=1e-6),
    megatron(40, 8, "linear", 5, decay=60),
    megatron(30, 8, "cosine", 37, decay=201, samples=True, min_lr=1e-5),
    megatron(30, 8, "WSD", 37, decay=201, wsd=63, samples=True, wsd_style="minus_sqrt"),
    megatron(30, 8, "inverse-square-root", 37, decay=201, samples=True, min_lr=1e-5, init=2e-5),
    megatron(25, 3, "cosine", 4, wd=(0.01, 0.1, "linear")),
    megatron(25, 3, "cosine", 4, wd=(0.01, 0.1, "cosine")),
]
HUGGING_FACE = [hugging_face(name, 40, warmup, beyond=beyond) for name, beyond in
                (("linear", 5), ("cosine", 0), ("constant_with_warmup", 5), ("inverse_sqrt", 30)) for warmup in (0, 1, 9)]
HUGGING_FACE += [
    hugging_face("constant", 10, beyond=5),
    hugging_face("cosine", 40, 5, num_cycles=1.5),
    hugging_face("inverse_sqrt", 40, 5, beyond=30, timescale=20),
    hugging_face("cosine_with_min_lr", 40, 5, min_lr=1e-5),
    hugging_face("cosine_with_min_lr", 40, 5, min_lr_rate=0.1, num_cycles=0.75),
    hugging_face("warmup_stable_decay", 40, 5, beyond=5, num_decay_steps=12),
    hugging_face("warmup_stable_decay", 40, 5, beyond=5, num_decay_steps=12, min_lr_ratio=0.1, decay_type="linear"),
    hugging_face("warmup_stable_decay", 40, 5, beyond=5, num_decay_steps=12, num_stable_steps=9, decay_type="1-sqrt"),
    hugging_face("warmup_stable_decay", 40, 0, beyond=5, num_decay_steps=40, num_cycles=0.25, min_lr_ratio=0.2),
]
MEGATRONS = dict(initial_scale=2.0**32, min_scale=1.0, growth_factor=2.0, backoff_factor=0.5, growth_interval=1000,
                 hysteresis=2)
SCALERS = [scaler(1, 3000, 0.001, **MEGATRONS), scaler(2, 300, 0.4, **dict(MEGATRONS, growth_interval=3)),
           scaler(3, 300, 0.2, **dict(MEGATRONS, initial_scale=64.0, min_scale=4.0, growth_factor=4.0,
                                      backoff_factor=0.25, growth_interval=5, hysteresis=4)),
           scaler(4, 100, 0.9, **dict(MEGATRONS, hysteresis=1))]

rows = [json.dumps(case) for case in MEGATRON + HUGGING_FACE + [train(sys.argv[1])]]
scalers = [json.dumps(case) for case in SCALERS]
print('{"cases": [\n' + ",\n".join(rows) + '\n],\n"scalers": [\n' + ",\n".join(scalers) + "\n]}")
