"""The peer of collectives_bench: one rank of torch.distributed with gloo.

Reads "operation bytes iterations" from standard input, line by line, and replies to each with the microseconds of one
operation on this rank, or with "unsupported: reason". Started by collectives_bench with RANK, WORLD_SIZE, MASTER_ADDR
and MASTER_PORT set, like torchrun.
"""
import sys
import time
import warnings

warnings.filterwarnings("ignore")

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402


def make(operation, count):
    """Returns the operation as a function without arguments. |count| floats is the larger of its two buffers."""
    world, rank = dist.get_world_size(), dist.get_rank()
    if operation == "all_reduce":
        data = torch.ones(count)
        return lambda: dist.all_reduce(data)
    if operation == "broadcast":
        data = torch.ones(count)
        return lambda: dist.broadcast(data, 0)
    if operation == "all_gather":
        data, parts = torch.ones(count // world), [torch.empty(count // world) for _ in range(world)]
        return lambda: dist.all_gather(parts, data)
    if operation == "reduce_scatter":
        data, part = torch.ones(count), torch.empty(count // world)
        return lambda: dist.reduce_scatter_tensor(part, data)
    if operation == "all_to_all":
        data, result = torch.ones(count), torch.empty(count)
        return lambda: dist.all_to_all_single(result, data)
    if operation == "p2p":
        data, result = torch.ones(count), torch.empty(count)

        def exchange():
            sent = dist.isend(data, (rank + 1) % world)
            dist.recv(result, (rank - 1) % world)
            sent.wait()

        return exchange
    raise ValueError(f"unknown operation {operation}")


def measure(operation, size, iterations):
    run = make(operation, size // 4)
    for _ in range(2):
        run()
    dist.barrier()
    start = time.perf_counter()
    for _ in range(iterations):
        run()
    return (time.perf_counter() - start) / iterations * 1e6


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    print(f"ready torch {torch.__version__}", flush=True)
    for line in sys.stdin:
        operation, size, iterations = line.split()
        try:
            print(f"{measure(operation, int(size), int(iterations)):.3f}", flush=True)
        except RuntimeError as error:  # an operation that this version of gloo lacks
            print("unsupported: " + str(error).splitlines()[0], flush=True)


if __name__ == "__main__":
    main()
