"""The peers of init_bench: prints one number, in seconds, or exits with an error if the peer is missing.

init_peer.py groups WORLD TP PP   all groups of a rank, as listed by Megatron's RankGenerator
init_peer.py hello                a process of a torch.distributed job with gloo: join, all-reduce, leave (no number)
"""

import sys
import time


def groups(world, tp, pp):
    import warnings

    warnings.simplefilter("ignore")
    from megatron.core.parallel_state import RankGenerator

    begin = time.process_time()  # it computes on one thread without waiting, so that other load does not count
    dense = RankGenerator(tp=tp, ep=1, dp=world // (tp * pp), pp=pp, cp=1, order="tp-cp-ep-dp-pp")
    expert = RankGenerator(tp=tp, ep=1, dp=world // (tp * pp), pp=pp, cp=1, order="tp-cp-ep-dp-pp")
    for token in ("tp", "pp", "dp", "cp", "dp-cp", "tp-pp", "tp-dp", "tp-cp", "tp-dp-cp"):
        dense.get_ranks(token)
    for token in ("ep", "tp", "dp", "tp-ep", "tp-ep-pp"):
        expert.get_ranks(token)
    print(time.process_time() - begin)


def hello():
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    total = torch.tensor([float(dist.get_rank())])
    dist.all_reduce(total)
    dist.destroy_process_group()


if sys.argv[1] == "groups":
    groups(*(int(word) for word in sys.argv[2:]))
else:
    hello()
