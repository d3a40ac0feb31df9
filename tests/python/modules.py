"""Modules that module_test.py trains, and the same training by torch.optim.AdamW and plain autograd."""

import os

import concord
import torch
from runs import SETTINGS
from torch import nn
from torch.nn import functional

VOCABULARY, HIDDEN, TOKENS, BATCH, STEPS = 96, 48, 33, 4, 20
RATE, EPSILON = 1e-3, 1e-4
ROWS = [{"input_ids": [(7 * i + j * j + i * j) % VOCABULARY for j in range(TOKENS)]} for i in range(BATCH * STEPS)]
TRAINING = {**{name: value for name, value in SETTINGS.items() if name != "model"}, "seq_length": TOKENS, "train_data": ROWS,
            "max_steps": STEPS, "learning_rate": RATE, "lr_scheduler_type": "constant", "weight_decay": 0.1, "adam_epsilon": EPSILON, "max_grad_norm": 0, "shuffle": False,
            "per_device_train_batch_size": 2, "save_strategy": "steps", "save_steps": 10}


class Mixing(nn.Module):
    """A token, and the mean of it and those before it."""

    def __init__(self, dropout=0.0, split=False):
        super().__init__()
        layers = concord.parallel
        self.norm = nn.LayerNorm(HIDDEN)
        self.up = layers.ColumnParallelLinear(2 * HIDDEN, 64) if split else nn.Linear(2 * HIDDEN, 64)
        self.down = layers.RowParallelLinear(64, HIDDEN) if split else nn.Linear(64, HIDDEN)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        y = self.norm(x)
        counts = torch.arange(1, y.shape[1] + 1, device=y.device).view(1, -1, 1)
        y = torch.cat([y, y.cumsum(1) / counts], -1)
        return x + self.dropout(self.down(functional.gelu(self.up(y))))


class Net(nn.Module):
    vocab_size = VOCABULARY

    def __init__(self, layers=3, dropout=0.0, split=False, seed=3):
        super().__init__()
        torch.manual_seed(seed)
        self.embedding = nn.Embedding(VOCABULARY, HIDDEN)
        self.layers = nn.ModuleList(Mixing(dropout, split) for _ in range(layers))
        self.head = nn.Linear(HIDDEN, VOCABULARY)

    def stages(self):
        return [self.embedding, *self.layers, self.head]


class Whole(Net):
    """Without stages."""

    stages = None

    def forward(self, ids):
        x = self.embedding(ids)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


class ByHand(nn.Module):
    """A layer that is split by hand: a rank holds some of the rows of `up`, and as many columns of `down`."""

    vocab_size = VOCABULARY
    split_parameters = {r"^up\.": 0, r"^down\.weight": 1}

    def __init__(self, job=None):
        super().__init__()
        torch.manual_seed(3)
        ranks, rank = (job.sizes["tp"], job.coordinates["tp"]) if job else (1, 0)
        up, down = nn.Linear(HIDDEN, 64), nn.Linear(64, HIDDEN, bias=False)
        self.embedding, self.head = nn.Embedding(VOCABULARY, HIDDEN), nn.Linear(HIDDEN, VOCABULARY, bias=False)
        self.up, self.down = nn.Linear(HIDDEN, 64 // ranks), nn.Linear(64 // ranks, HIDDEN, bias=False)
        self.is_split = job is not None
        with torch.no_grad():
            self.up.weight.copy_(up.weight.chunk(ranks)[rank])
            self.up.bias.copy_(up.bias.chunk(ranks)[rank])
            self.down.weight.copy_(down.weight.chunk(ranks, 1)[rank])

    def forward(self, ids):
        x = self.embedding(ids)
        inner = concord.parallel.copy_to_tensor_model_parallel_region(x) if self.is_split else x
        y = self.down(functional.relu(self.up(inner)))
        return self.head(x + (concord.parallel.reduce_from_tensor_model_parallel_region(y) if self.is_split else y))


def run_stages(module, ids):
    if not getattr(module, "stages", None):
        return module(ids)
    for part in module.stages():
        ids = part(ids)
    return ids


def train_by_torch(module):
    """Returns the losses and gradient norms of the steps; trains the module in place."""
    matrices = [each for each in module.parameters() if each.dim() > 1]
    vectors = [each for each in module.parameters() if each.dim() < 2]
    optimizer = torch.optim.AdamW([{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}], lr=RATE,
                                  eps=EPSILON)
    log = []
    for step in range(STEPS):
        ids = torch.tensor([row["input_ids"] for row in ROWS[BATCH * step:BATCH * (step + 1)]])
        logits = run_stages(module, ids)[:, :-1]
        loss = functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
        loss.backward()
        log.append((loss.item(), torch.nn.utils.get_total_norm([each.grad for each in module.parameters()]).item()))
        optimizer.step()
        optimizer.zero_grad()
    return log


def train(kind, settings):
    """Trains a module as a rank; returns the log and the module's weights as they were saved."""
    settings = {**TRAINING, **settings}
    tensor = settings.get("tensor_model_parallel_size", 1)
    if tensor > 1:
        job = concord.initialize(tensor_model_parallel_size=tensor)
        module = ByHand(job) if kind == "by hand" else Net(split=True)
    else:
        module = {"stages": Net, "whole": Whole, "by hand": ByHand, "dropout": lambda: Net(dropout=0.2)}[kind]()
    if settings.pop("another_seed", False) and os.environ["RANK"] != "0":
        module = Net(seed=4)
    result = concord.train(model=module, **settings)
    return [(row["loss"], row["grad_norm"]) for row in result.log], concord.load(result.model)

