"""The peer of checkpoint_bench: torch.distributed.checkpoint with the same bytes, every tensor sharded over the
ranks.

  concord launch --nproc N -- python3 checkpoint_peer.py MODEL FOLDER

Prints {"save", "stall", "load"} in seconds, the best of three (two for 1.5b): a synchronous save, the time that
async_save blocks the caller, and a load of the same state.
"""
import json
import os
import shutil
import sys
import time
import warnings

warnings.filterwarnings("ignore")
for engine in ("GLOO", "NCCL"):  # all ranks are on this host, whose name need not resolve
    os.environ.setdefault(f"{engine}_SOCKET_IFNAME", "lo")

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
import torch.distributed.checkpoint as dcp  # noqa: E402
from torch.distributed.device_mesh import init_device_mesh  # noqa: E402
from torch.distributed.tensor import Shard, distribute_tensor  # noqa: E402

SHAPES = {"100m": (768, 2048, 10, 256, 24576, False, False), "0.5b": (896, 4864, 24, 128, 151936, True, True),
          "1.5b": (1536, 8960, 28, 256, 151936, True, True)}


def tensors(model):
    """Returns names and shapes of a Qwen2 model of that size."""
    hidden, intermediate, layers, kv, vocabulary, _, tied = SHAPES[model]
    yield "model.embed_tokens.weight", (vocabulary, hidden)
    if not tied:
        yield "lm_head.weight", (vocabulary, hidden)
    yield "model.norm.weight", (hidden,)
    for i in range(layers):
        p = f"model.layers.{i}."
        yield p + "self_attn.q_proj.weight", (hidden, hidden)
        yield p + "self_attn.q_proj.bias", (hidden,)
        for name in "kv":
            yield p + f"self_attn.{name}_proj.weight", (kv, hidden)
            yield p + f"self_attn.{name}_proj.bias", (kv,)
        yield p + "self_attn.o_proj.weight", (hidden, hidden)
        yield p + "mlp.gate_proj.weight", (intermediate, hidden)
        yield p + "mlp.up_proj.weight", (intermediate, hidden)
        yield p + "mlp.down_proj.weight", (hidden, intermediate)
        yield p + "input_layernorm.weight", (hidden,)
        yield p + "post_attention_layernorm.weight", (hidden,)


def state(model, device, mesh):
    bf16 = SHAPES[model][5]
    kinds = [("model", torch.bfloat16 if bf16 else torch.float32), ("exp_avg", torch.float32),
             ("exp_avg_sq", torch.float32)] + ([("main", torch.float32)] if bf16 else [])
    return {f"{kind}.{name}": distribute_tensor(torch.randn(shape, dtype=dtype, device=device), mesh, [Shard(0)])
            for kind, dtype in kinds for name, shape in tensors(model)}


def timed(body):
    dist.barrier()
    begin = time.perf_counter()
    body()
    took = torch.tensor([time.perf_counter() - begin], dtype=torch.float64)
    dist.all_reduce(took, dist.ReduceOp.MAX)
    return took.item()


def report(found):
    if dist.get_rank() == 0:
        print(json.dumps({key: min(times) for key, times in found.items() if times}), flush=True)


def main():
    model, folder = sys.argv[1:]
    cuda = torch.cuda.is_available() and os.environ.get("CONCORD_PLATFORM") != "cpu"
    torch.set_num_threads(1)
    dist.init_process_group("cpu:gloo,cuda:nccl" if cuda else "gloo")
    device = torch.device("cuda", 0) if cuda else torch.device("cpu")
    values = state(model, device, init_device_mesh(device.type, (dist.get_world_size(),)))

    def fresh():
        if dist.get_rank() == 0:
            shutil.rmtree(folder, ignore_errors=True)
        dist.barrier()

    def sync():
        if cuda:
            torch.cuda.synchronize()

    runs = 2 if model == "1.5b" else 3
    found = {"save": [], "stall": [], "load": []}
    for _ in range(runs):
        fresh()
        found["save"].append(timed(lambda: dcp.save(values, checkpoint_id=folder)))
        report(found)
    for _ in range(runs):
        found["load"].append(timed(lambda: (dcp.load(values, checkpoint_id=folder), sync())))
    report(found)  # async_save may fail
    for _ in range(runs):
        fresh()
        futures = []
        found["stall"].append(timed(lambda: futures.append(dcp.async_save(values, checkpoint_id=folder))))
        futures[0].result()
        report(found)
    dist.barrier()
    dist.destroy_process_group()


main()
