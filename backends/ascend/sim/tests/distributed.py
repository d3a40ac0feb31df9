#!/usr/bin/env python3
"""torch.distributed with the backend hccl, as torch_npu's users write it, between processes on simulated devices: every
collective by value, and a data-parallel step whose gradients are those of the whole batch in one process.

Started without arguments it starts itself once a rank and waits for all of them."""

import os
import socket
import subprocess
import sys

WORLD = 2
DEADLINE_S = 300  # ends a hang; no verdict depends on it


def held_port():
    """Returns a socket that reserves its port while it is open: it is bound but does not listen, so TCPStore, which
    sets SO_REUSEADDR, can."""
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind(("", 0))
    return held


def start_ranks(port):
    environment = dict(os.environ, MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), WORLD_SIZE=str(WORLD))
    ranks = [subprocess.Popen([sys.executable, __file__, "rank"], env=dict(environment, RANK=str(rank)))
             for rank in range(WORLD)]
    codes = []
    for rank in ranks:
        try:
            codes.append(rank.wait(DEADLINE_S))
        except subprocess.TimeoutExpired:
            rank.kill()
            codes.append("ended after a hang")
    print("distributed.py: exit codes of the ranks:", codes)
    return 0 if codes == [0] * WORLD else 1


def expect(got, expected, what):
    import torch

    assert torch.equal(got.cpu(), torch.tensor(expected, dtype=got.dtype)), f"{what}: {got.cpu()} instead of {expected}"


def check_collectives(rank):
    import torch
    import torch.distributed as dist

    for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.int32, torch.int64):
        x = torch.tensor([1, 2, 3], dtype=dtype, device="npu") * (rank + 1)
        dist.all_reduce(x)
        expect(x, [3, 6, 9], f"all_reduce {dtype}")
    x = torch.tensor([rank, -rank], dtype=torch.float32, device="npu")
    dist.all_reduce(x, dist.ReduceOp.MAX)
    expect(x, [1, 0], "all_reduce max")
    x = torch.full((2,), float(rank), device="npu")
    dist.broadcast(x, 1)
    expect(x, [1, 1], "broadcast")
    whole = torch.empty(4, device="npu")
    dist.all_gather_into_tensor(whole, torch.tensor([10.0 * rank, 10.0 * rank + 1], device="npu"))
    expect(whole, [0, 1, 10, 11], "all_gather")
    part = torch.empty(2, device="npu")
    dist.reduce_scatter_tensor(part, torch.arange(4.0, device="npu") + rank)
    expect(part, [[1, 3], [5, 7]][rank], "reduce_scatter")
    parts = torch.empty(2, device="npu")
    dist.all_to_all_single(parts, torch.tensor([10.0 * rank, 10.0 * rank + 1], device="npu"))
    expect(parts, [[0, 10], [1, 11]][rank], "all_to_all")
    if rank == 0:
        dist.send(torch.tensor([5.0], device="npu"), 1)
    else:
        x = torch.empty(1, device="npu")
        dist.recv(x, 0)
        expect(x, [5], "recv")
    dist.barrier()


def check_overlap(rank):
    """The work that follows an asynchronous collective waits for it, without a wait of the host's."""
    import torch
    import torch.distributed as dist

    x = torch.full((1 << 16,), float(rank + 1), device="npu")
    handle = dist.all_reduce(x, async_op=True)
    other = torch.ones(8, device="npu") * 2
    handle.wait()
    expect((x + 1)[:2], [4, 4], "sum after an asynchronous all_reduce")
    expect(other, [2] * 8, "what ran meanwhile")


def check_data_parallel(rank):
    import torch
    from torch import nn

    def network():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(6, 16), nn.SiLU(), nn.Linear(16, 3))

    torch.manual_seed(1)
    batch = torch.randn(WORLD * 4, 6)
    reference = network()
    reference(batch).square().mean().backward()
    model = nn.parallel.DistributedDataParallel(network().npu(), device_ids=[rank])
    model(batch.chunk(WORLD)[rank].npu()).square().mean().backward()
    for got, expected in zip(model.parameters(), reference.parameters()):
        torch.testing.assert_close(got.grad.cpu(), expected.grad, rtol=1e-5, atol=1e-7)


def run_rank(rank):
    import torch
    import torch.distributed as dist
    import torch_npu

    torch.npu.set_device(rank)
    dist.init_process_group("hccl", rank=rank, world_size=WORLD)
    check_collectives(rank)
    check_overlap(rank)
    check_data_parallel(rank)
    dist.destroy_process_group()
    print(f"rank {rank}: everything as expected")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        run_rank(int(os.environ["RANK"]))
    else:
        with held_port() as held:
            sys.exit(start_ranks(held.getsockname()[1]))
