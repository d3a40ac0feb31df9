"""`concord.initialize`: this process as a rank of a job, without training."""

import importlib.util
import random

import torch

from concord._library import core
from concord._train import words_of


class ParallelContext:
    """The job that this process has joined. As a context manager it leaves the job at the end of the block.

    `coordinates` and `sizes` are dicts by axis: tp, cp, dp, pp, and etp, ep, edp for layers with experts.
    """

    def __init__(self, described):
        self.__dict__.update(described)

    def group(self, kind):
        """Returns the group of this rank called `kind`: tp, dp, pp, cp, dp_cp, ep and so on, or world."""
        return core.group(kind)

    def fork_rng(self, name="model-parallel-rng"):
        """Within the block, concord.parallel.dropout draws from the stream `name`, as Megatron's get_cuda_rng_tracker().fork()."""
        return core.ForkRng(name)

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        if error is None or self.world_size == 1:  # otherwise the others may never leave: this rank's exit tells them
            finalize()

    def __repr__(self):
        return f"<concord rank {self.rank} of {self.world_size} on {self.device}>"


def initialize(**settings):
    """Joins the job given by the environment (torchrun, `concord launch`, srun, mpirun), or makes one of this process.

    `settings` are those of the command line that describe a job: tensor_model_parallel_size, seed and so on. Seeds torch,
    `random` and numpy. Returns the ParallelContext. A second call with the same settings only resets the seeds. Waits for
    all ranks.
    """
    core.initialize(words_of(settings))
    seed = torch.initial_seed()
    random.seed(seed)
    if importlib.util.find_spec("numpy"):
        import numpy
        numpy.random.seed(seed % 2**32)
    return parallel_context()


def parallel_context():
    """Returns the job of this process. Raises Error before initialize and after finalize."""
    return ParallelContext(core.describe_job())


def is_initialized():
    return core.is_initialized()


def finalize():
    """Leaves the job, on all ranks. Waits for work in flight, and on rank 0 for the other ranks."""
    core.finalize()
