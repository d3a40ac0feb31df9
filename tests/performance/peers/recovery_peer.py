"""The peer of recovery_bench, started by torchrun: DistributedDataParallel over gloo with a checkpoint in memory.

  recovery_peer.py LOG CHECKPOINT STEPS RANK@STEP,...   the n-th attempt kills its rank with SIGKILL after that step

Each attempt resumes from the latest checkpoint. Appends a line to LOG for the first step that all ranks have done and
for each kill: {"event": "training" or "fault", "time": seconds of CLOCK_MONOTONIC}.
"""

import json
import os
import signal
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

EVERY, PAUSE_S = 5, 0.01  # steps between checkpoints; stands for the compute time of a step


def note(log, event):
    with open(log, "a", encoding="utf-8") as file:
        file.write(json.dumps({"event": event, "time": time.monotonic()}) + "\n")


def main():
    log, checkpoint, steps = sys.argv[1], sys.argv[2], int(sys.argv[3])
    kills = [tuple(int(number) for number in kill.split("@")) for kill in sys.argv[4].split(",")]
    attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    kill = kills[attempt] if attempt < len(kills) else None
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = torch.nn.Sequential(*[torch.nn.Linear(230, 230) for _ in range(4)])  # 212 k parameters
    replica = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(replica.parameters(), 1e-3)
    step = 0
    if os.path.exists(checkpoint):
        state = torch.load(checkpoint)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        step = state["step"]
    is_first = True
    while step < steps:
        replica(torch.randn(4, 230)).square().mean().backward()  # waits for all ranks
        optimizer.step()
        optimizer.zero_grad()
        step += 1
        time.sleep(PAUSE_S)
        if is_first and rank == 0:
            note(log, "training")
        is_first = False
        if step % EVERY == 0 and rank == 0:
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, checkpoint + ".new")
            os.replace(checkpoint + ".new", checkpoint)
        if kill == (rank, step):
            note(log, "fault")
            os.kill(os.getpid(), signal.SIGKILL)
    dist.destroy_process_group()


main()
