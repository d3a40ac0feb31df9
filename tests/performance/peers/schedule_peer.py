"""Prints the seconds in which torch.distributed.pipelining creates an interleaved 1F1B and adds its sends and
receives.

usage: schedule_peer.py RANKS MICROBATCHES CHUNKS. torch checks none of it.
"""
import sys
import time

import torch.distributed.pipelining.schedules as torch_schedules

ranks, microbatches, chunks = map(int, sys.argv[1:])
schedule = object.__new__(torch_schedules.ScheduleInterleaved1F1B)  # for its functions; it has no stages or processes
schedule._n_microbatches = schedule.n_microbatches = microbatches
schedule.pp_group_size, schedule.n_local_stages = ranks, chunks
schedule.num_stages = schedule._num_stages = ranks * chunks
schedule.number_of_rounds = max(1, microbatches // ranks)
schedule.microbatches_per_round = microbatches // schedule.number_of_rounds
begin = time.perf_counter()
order = {rank: [action for action in schedule._calculate_single_rank_operations(rank) if action is not None]
         for rank in range(ranks)}
torch_schedules._add_send_recv(order, lambda stage: stage % ranks, ranks * chunks)
print(time.perf_counter() - begin)
