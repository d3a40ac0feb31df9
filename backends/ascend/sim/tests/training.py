#!/usr/bin/env python3
"""torch_npu as its users write it, on the simulated CANN: a small transformer trains on the device and gives the numbers
of the cpu; streams, events and pinned memory order work; failures are reported. Run again with TASK_QUEUE_ENABLE 0, 1, 2
and ASCEND_LAUNCH_BLOCKING=1; "quick" then trains in one way only."""

import math
import os
import sys

os.environ["TORCH_NPU_FALLBACK_CPU_DISABLE"] = "1"

import torch
import torch.nn.functional as F
import torch_npu
from torch import nn

from simulator import Simulator

OPTIMIZERS = ({"foreach": False}, {"foreach": True}, {"fused": True})
VOCABULARY, WIDTH, HEADS, KV_HEADS, HIDDEN, LENGTH = 64, 32, 4, 2, 48, 16


class RmsNorm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        wide = x.float()
        return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype) * self.weight


def rotate(x, cos, sin):
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat((-second, first), -1) * sin


class Block(nn.Module):
    def __init__(self, fused_attention):
        super().__init__()
        linear = lambda inputs, outputs: nn.Linear(inputs, outputs, bias=False)
        self.fused_attention = fused_attention
        self.width = WIDTH // HEADS
        self.norm1, self.norm2 = RmsNorm(WIDTH), RmsNorm(WIDTH)
        self.q, self.o = linear(WIDTH, WIDTH), linear(WIDTH, WIDTH)
        self.k, self.v = linear(WIDTH, KV_HEADS * self.width), linear(WIDTH, KV_HEADS * self.width)
        self.gate, self.up, self.down = linear(WIDTH, HIDDEN), linear(WIDTH, HIDDEN), linear(HIDDEN, WIDTH)

    def heads(self, x, count):
        return x.unflatten(-1, (count, self.width)).transpose(1, 2)

    def attention(self, x, cos, sin, mask):
        q, k, v = self.heads(self.q(x), HEADS), self.heads(self.k(x), KV_HEADS), self.heads(self.v(x), KV_HEADS)
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        k, v = (t.repeat_interleave(HEADS // KV_HEADS, 1) for t in (k, v))
        if self.fused_attention:
            return F.scaled_dot_product_attention(q, k, v, is_causal=True)
        scores = (q @ k.transpose(-1, -2) / math.sqrt(self.width)).masked_fill(mask, float("-inf"))
        return torch.softmax(scores.float(), -1).to(q.dtype) @ v

    def forward(self, x, cos, sin, mask):
        x = x + self.o(self.attention(self.norm1(x), cos, sin, mask).transpose(1, 2).flatten(2))
        y = self.norm2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Transformer(nn.Module):
    def __init__(self, fused_attention):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(Block(fused_attention) for _ in range(2))
        self.norm = RmsNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens, targets):
        width, device, dtype = WIDTH // HEADS, tokens.device, self.head.weight.dtype
        frequencies = 1.0 / 10000 ** (torch.arange(0, width, 2, device=device).float() / width)
        angles = torch.outer(torch.arange(LENGTH, device=device).float(), frequencies).repeat(1, 2)
        mask = torch.ones(LENGTH, LENGTH, dtype=torch.bool, device=device).triu(1)
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x, angles.cos().to(dtype), angles.sin().to(dtype), mask)
        return F.cross_entropy(self.head(self.norm(x)).float().flatten(0, 1), targets.flatten(), ignore_index=-100)


def train(device, dtype, fused_attention, steps=4, **optimizer_options):
    """The losses and gradient norms of some steps, then the sum of all weights' absolute values."""
    torch.manual_seed(0)
    model = Transformer(fused_attention).to(dtype)
    tokens, targets = torch.randint(0, VOCABULARY, (2, 2, LENGTH)).unbind(0)
    targets[0, :3] = -100
    model, tokens, targets = model.to(device), tokens.to(device), targets.to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.1, **optimizer_options)
    numbers = []
    for _ in range(steps):
        loss = model(tokens, targets)
        optimizer.zero_grad()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        numbers += [loss.item(), norm.item()]
    return numbers + [sum(p.detach().float().abs().sum().item() for p in model.parameters())]


def check_training(dtypes, optimizers):
    """The simulator's operators are ATen's, so float32 differs by the order of sums in fused operators alone: a few units
    of 2^-24 an operator, some hundred operators a step. In bfloat16 one rounding more or less is 2^-8 of a weight's
    change, which is a hundredth of the weight."""
    for dtype in dtypes:
        bound = 1e-5 if dtype == torch.float32 else 2e-2
        for fused_attention in (False, True):
            for options in optimizers:
                expected = train("cpu", dtype, fused_attention, **options)
                got = train("npu", dtype, fused_attention, **options)
                worst = max(abs(a - b) / abs(b) for a, b in zip(got, expected))
                print(f"training {dtype}, fused attention {fused_attention}, {options}: differs by {worst:.2g}")
                assert all(abs(a - b) <= bound * abs(b) for a, b in zip(got, expected)), f"{got} instead of {expected}"  # NaN fails too
                assert got[-3] < got[0], f"the loss did not fall: {got}"


def check_streams():
    """A side stream waits for an event of the main one and the other way round; without either the sum would be wrong."""
    side = torch.npu.Stream()
    begin, end = torch.npu.Event(enable_timing=True), torch.npu.Event(enable_timing=True)
    x = torch.zeros(1000, device="npu")
    begin.record()
    for _ in range(20):
        x += 1
        side.wait_stream(torch.npu.current_stream())
        with torch.npu.stream(side):
            y = x * 2
            y.record_stream(torch.npu.current_stream())
        torch.npu.current_stream().wait_stream(side)
        x = y - x  # 2x - x
    end.record()
    end.synchronize()
    assert torch.equal(x.cpu(), torch.full((1000,), 20.0)), x[:3]
    assert begin.query() and begin.elapsed_time(end) > 0


def check_pinned_copies():
    host = torch.arange(1 << 16, dtype=torch.float32).pin_memory()
    assert host.is_pinned()
    device = host.to("npu", non_blocking=True)
    back = torch.empty_like(host, pin_memory=True)
    back.copy_(device * 2, non_blocking=True)
    torch.npu.synchronize()
    assert torch.equal(back, host * 2)


def check_devices():
    assert torch.npu.is_available() and torch.npu.device_count() == 8
    x = torch.arange(4.0, device="npu:1")
    assert torch.equal(x.to("npu:0").cpu(), torch.arange(4.0)) and torch.npu.current_device() == 0
    before = torch.npu.memory_allocated()
    kept = torch.empty(1 << 20, device="npu")
    assert torch.npu.memory_allocated() - before >= kept.nbytes
    try:
        torch.empty(1 << 40, dtype=torch.uint8, device="npu")
    except torch.OutOfMemoryError as error:
        assert "out of memory" in str(error)
    else:
        raise AssertionError("a terabyte was allocated")


def check_refusal():
    """An operator that the simulator does not have fails by name. Last: torch_npu's queue may skip what comes after."""
    x = torch.ones(3, 3, device="npu")
    try:
        torch.linalg.cross(x, x)
        torch.npu.synchronize()
    except RuntimeError as error:
        assert "LinalgCross" in str(error), error
    else:
        raise AssertionError("aclnnLinalgCross is missing, and no error was reported")


def main():
    Simulator()  # fails unless this is the simulator
    check_devices()
    check_streams()
    check_pinned_copies()
    if sys.argv[1:] == ["quick"]:
        check_training([torch.float32], OPTIMIZERS[:1])
    else:
        check_training([torch.float32, torch.bfloat16], OPTIMIZERS)
    check_refusal()
    print("training.py: all as on the cpu")


if __name__ == "__main__":
    sys.exit(main())
