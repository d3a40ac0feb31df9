"""The peer of train_step_bench: one rank of torch DistributedDataParallel (gloo) with fused AdamW on the same model.

  train_step_peer.py '{"hidden_size": ..., ...}' ROWS TOKENS STEPS

The settings are those of a Qwen2 config. Started twice, with RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT set like
torchrun. Rank 0 prints the first decile of the seconds of a step (forward, backward, gradients reduced and clipped,
update).
"""
import json
import sys
import time
import warnings

warnings.filterwarnings("ignore")

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
import torch.nn as nn  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

WARM_UP = 3


class Layer(nn.Module):
    def __init__(self, hidden, heads, kv_heads, inner):
        super().__init__()
        self.heads, self.kv_heads, self.size = heads, kv_heads, hidden // heads
        self.norm1, self.norm2 = nn.RMSNorm(hidden, eps=1e-6), nn.RMSNorm(hidden, eps=1e-6)
        self.qkv = nn.Linear(hidden, (heads + 2 * kv_heads) * self.size)
        self.out = nn.Linear(hidden, hidden, bias=False)
        self.gate_up = nn.Linear(hidden, 2 * inner, bias=False)
        self.down = nn.Linear(inner, hidden, bias=False)

    def rotate(self, x, cos, sin):
        a, b = x.chunk(2, -1)
        return x * cos + torch.cat((-b, a), -1) * sin

    def forward(self, x, cos, sin):
        rows, tokens, hidden = x.shape
        parts = self.qkv(self.norm1(x)).view(rows, tokens, -1, self.size).transpose(1, 2)
        q, k, v = parts.split((self.heads, self.kv_heads, self.kv_heads), 1)
        q, k = self.rotate(q, cos, sin), self.rotate(k, cos, sin)
        shared = self.kv_heads != self.heads
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=shared)
        x = x + self.out(y.transpose(1, 2).reshape(rows, tokens, hidden))
        gate, up = self.gate_up(self.norm2(x)).chunk(2, -1)
        return x + self.down(F.silu(gate) * up)


class Model(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.embedding = nn.Embedding(c["vocab_size"], c["hidden_size"])
        self.layers = nn.ModuleList(
            Layer(c["hidden_size"], c["num_attention_heads"], c["num_key_value_heads"], c["intermediate_size"])
            for _ in range(c["num_hidden_layers"]))
        self.norm = nn.RMSNorm(c["hidden_size"], eps=1e-6)
        self.head = nn.Linear(c["hidden_size"], c["vocab_size"], bias=False)
        self.size = c["hidden_size"] // c["num_attention_heads"]

    def forward(self, ids, labels):
        angles = torch.outer(torch.arange(ids.shape[1]).float(),
                             1e4 ** (-torch.arange(0, self.size, 2).float() / self.size)).repeat(1, 2)
        cos, sin = angles.cos(), angles.sin()
        x = self.embedding(ids)
        for layer in self.layers:
            x = layer(x, cos, sin)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1), labels.flatten())


def main():
    config, (rows, tokens, steps) = json.loads(sys.argv[1]), map(int, sys.argv[2:])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    model = DistributedDataParallel(Model(config), gradient_as_bucket_view=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.1, fused=True)
    took = []
    for step in range(WARM_UP + steps):
        ids = torch.randint(config["vocab_size"], (rows, tokens))
        begin = time.perf_counter()
        optimizer.zero_grad()
        model(ids, ids).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step >= WARM_UP:
            took.append(time.perf_counter() - begin)
    if dist.get_rank() == 0:
        print(sorted(took)[len(took) // 10], flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
