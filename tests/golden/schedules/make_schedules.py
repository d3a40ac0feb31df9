"""Writes the schedules of torch.distributed.pipelining as CSV, beside this file. Usage: make_schedules.py

KIND_ppP_mM_vV.csv holds the computations (and REDUCE_GRAD), KIND_ppP_mM_vV_comm.csv the sends and receives too. The
bubbles that torch writes as empty cells are kept. Not part of any build; needs a Python with torch."""
import copy
import os

import torch
import torch.distributed.pipelining.schedules as torch_schedules
from torch.distributed.pipelining._utils import generate_stage_to_rank_mapping

CASES = [("GPipe", 4, 8, 1), ("1F1B", 4, 8, 1), ("1F1B", 8, 32, 1), ("Interleaved1F1B", 2, 4, 3),
         ("Interleaved1F1B", 4, 8, 2), ("Interleaved1F1B", 4, 10, 2), ("Interleaved1F1B", 8, 32, 2),
         ("InterleavedZeroBubble", 4, 8, 2), ("ZBVZeroBubble", 4, 8, 2), ("ZBVZeroBubble", 8, 32, 2)]


def computations(kind, pp, microbatches, vpp):
    """The order of every rank, from torch's own functions, without stages or processes."""
    schedule = object.__new__(getattr(torch_schedules, "Schedule" + kind))
    schedule._n_microbatches = microbatches
    schedule._num_stages = pp * vpp
    if vpp == 1:
        return schedule._get_pipeline_order()
    schedule.pp_group_size = pp
    schedule.n_local_stages = vpp
    schedule.num_stages = pp * vpp
    schedule.n_microbatches = microbatches
    schedule.number_of_rounds = max(1, microbatches // pp)
    schedule.microbatches_per_round = microbatches // schedule.number_of_rounds
    return {rank: schedule._calculate_single_rank_operations(rank) for rank in range(pp)}


def write(name, order):
    folder = os.path.dirname(os.path.abspath(__file__))
    with open(os.path.join(folder, name + ".csv"), "w", encoding="ascii", newline="\n") as file:
        for rank in sorted(order):
            file.write(",".join("" if action is None else str(action) for action in order[rank]) + "\n")


for kind, pp, microbatches, vpp in CASES:
    order = computations(kind, pp, microbatches, vpp)
    ranks = generate_stage_to_rank_mapping(pp, pp * vpp, style="v" if kind.startswith("ZBV") else "loop")
    name = f"{kind.lower()}_pp{pp}_m{microbatches}_v{vpp}"
    write(name, order)
    if kind == "1F1B":
        continue  # torch numbers the forwards of the last rank from 1, and then finds no order for its transfers
    lists = {rank: [action for action in actions if action is not None] for rank, actions in order.items()}
    write(name + "_comm", torch_schedules._add_send_recv(copy.deepcopy(lists), lambda stage: ranks[stage], pp * vpp))
print("torch", torch.__version__)
